"""From one receipt and its staged rows to one canonical row, or a rejection (section 5).

The checks have an order, and each covers all rows of the rollout before the next begins. Nothing a receipt or a
staged row can contain makes this raise; only an outage of the data plane does, because a rollout that could not be
read must not be published as one that failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from attrs import define, field

from rollproof.spec import media, routes
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.lineage import linearize
from rollproof.spec.outcomes import Dims, RolloutOutcome
from rollproof.spec.plane import Effect, Get, Staging
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig, Receipt, RouteAssemblyPlan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import StagedRow, base_columns, decode_row
from rollproof.spec.tensor import Tensor, to_float32
from rollproof.spec.values import is_rollout_id, owned_key


@define
class _Progress:
    """What has been established so far: a rejection by a later check still reports it."""

    effects: list[Effect] = field(factory=list)
    receipt: Receipt | None = None


def finalize_rollout(
    config: ReassemblerConfig,
    rollout_id: str,
    receipt: Any,
    reward: Any,
    staging: Staging,
    dims: Dims | None = None,
) -> RolloutOutcome:
    """One rollout's canonical row, or its rejection with the first failing check of section 5.

    ``receipt`` is any JSON value or None; ``dims`` is what earlier rollouts taught about (L, K). Raises ``Outage`` if
    the data plane fails, and nothing else.
    """
    dims = config.routed_dims or dims
    progress = _Progress()
    try:
        return _accept(config, rollout_id, receipt, reward, staging, dims, progress)
    except Rejected as rejected:
        rollout = FinalizedRollout(
            rollout_id=rollout_id,
            valid=False,
            rejection_reason=rejected.reason,
            reward=usable_reward(reward),
            staging_keys=distinct_keys(progress.receipt),
        )
        return RolloutOutcome(rollout, tuple(progress.effects), progress.receipt, dims=dims)


def _accept(
    config: ReassemblerConfig,
    rollout_id: str,
    receipt: Any,
    reward: Any,
    staging: Staging,
    dims: Dims | None,
    progress: _Progress,
) -> RolloutOutcome:
    """The checks in their order; the first that fails raises ``Rejected``."""
    if receipt is None:
        raise Rejected(Code.MISSING_RECEIPT)
    parsed = progress.receipt = parse_receipt(receipt)
    check_receipt_for(rollout_id, parsed)
    staged = fetch(config, parsed, staging, progress.effects)
    row = rebuild(parsed, staged)
    by_call = {item.call.model_call_id: item for item in staged}
    chain = [by_call[call_id] for call_id in row.model_call_ids]
    fields = media.rollout_media(config, row, chain, staging, progress.effects) if config.capture_media else None
    plan: RouteAssemblyPlan | None = None
    routed_experts: Tensor | None = None
    if config.router_replay_enabled:
        keys = owned_keys(rollout_id, parsed)
        plan = routes.rollout_plan(config, row, chain, keys)
        if config.direct_routes:
            routed_experts, dims = routes.assemble_directly(config, plan, chain, dims)
    if not is_usable_reward(reward):
        raise Rejected(Code.INVALID_REWARD, f"got {type(reward).__name__}")
    min_wv, max_wv = version_range(parsed)
    rollout = FinalizedRollout(
        rollout_id=rollout_id,
        valid=True,
        rejection_reason=None,
        reward=usable_reward(reward),
        staging_keys=distinct_keys(parsed),
        token_ids=row.token_ids,
        token_mask=row.token_mask,
        logprobs=row.logprobs,
        prompt_len=row.prompt_len,
        min_wv=min_wv,
        max_wv=max_wv,
        routed_experts=routed_experts,
        route_plan=plan,
        media=fields,
    )
    lengths = tuple(item.routed_len for item in chain)
    has_frames = any(item.media_has_frames for item in chain)
    return RolloutOutcome(rollout, tuple(progress.effects), parsed, row, lengths, dims, has_frames)


def distinct_keys(receipt: Receipt | None) -> tuple[str, ...]:
    """The manifest's staging keys without repetitions, in order; none where no receipt parsed."""
    return () if receipt is None else tuple(dict.fromkeys(record.staging_key for record in receipt.manifest))


def owned_keys(rollout_id: str, receipt: Receipt | None) -> tuple[str, ...]:
    """The manifest keys that are this rollout's own (decision D14), in order.

    Receipts are untrusted: a key that names another rollout's data must never be cleared. A rollout id with a "/" in
    it is no rollout id, and owns nothing: "a/b" + "/" + "c" would be the key of rollout "a", call "b/c".
    """
    if receipt is None or not is_rollout_id(rollout_id):
        return ()
    own = (
        record.staging_key
        for record in receipt.manifest
        if record.staging_key == owned_key(rollout_id, record.model_call_id)
    )
    return tuple(dict.fromkeys(own))


def check_receipt_for(rollout_id: str, receipt: Receipt) -> None:
    """The receipt is this rollout's, it succeeded, and its manifest names each row once."""
    if receipt.rollout_id != rollout_id:
        raise Rejected(Code.IDENTITY_MISMATCH, receipt.rollout_id)
    if receipt.failure_reason is not None:
        raise Rejected(Code.ROLLOUT_FAILED, subject=receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.CAPTURE_POISONED)
    if len(distinct_keys(receipt)) != len(receipt.manifest):
        raise Rejected(Code.DUPLICATE_STAGING_KEY)
    if len({record.model_call_id for record in receipt.manifest}) != len(receipt.manifest):
        raise Rejected(Code.DUPLICATE_MANIFEST_CALL_ID)


def fetch(config: ReassemblerConfig, receipt: Receipt, staging: Staging, effects: list[Effect]) -> list[StagedRow]:
    """One batched read of the manifest's rows (decision D15), each decoded and identified."""
    keys = tuple(record.staging_key for record in receipt.manifest)
    columns = base_columns(media=config.capture_media)
    if config.direct_routes:
        columns = (*columns, ROUTED_EXPERTS)
    read = Get(config.staging_partition, keys, columns)
    rows = staging.get(keys, effects_then(effects, read))
    staged = [decode_row(row, media=config.capture_media, vocab_size=config.vocab_size) for row in rows]
    for record, item in zip(receipt.manifest, staged, strict=True):
        if item.key != record.staging_key:
            raise Rejected(Code.STAGING_KEY_MISMATCH, subject=record.model_call_id)
    for record, item in zip(receipt.manifest, staged, strict=True):
        if item.call.model_call_id != record.model_call_id:
            raise Rejected(Code.CALL_ID_MISMATCH, subject=record.model_call_id)
    if len({item.call.model_call_id for item in staged}) != len(staged):
        raise Rejected(Code.DUPLICATE_FETCHED_CALL_ID)
    return staged


def effects_then(effects: list[Effect], effect: Effect) -> tuple[Effect, ...]:
    """Note that ``effect`` is happening; the answer is what had happened before it."""
    before = tuple(effects)
    effects.append(effect)
    return before


def rebuild(receipt: Receipt, staged: Sequence[StagedRow]) -> LinearizedRow:
    """The verified chain; a violation of section 4 becomes the subject of ``rebuild_failed``."""
    try:
        return linearize(receipt, [item.call for item in staged])
    except Rejected as rejected:
        raise Rejected(Code.REBUILD_FAILED, rejected.detail, subject=rejected.code.code) from None


def version_range(receipt: Receipt) -> tuple[int, int]:
    """The oldest and newest weight version of the whole manifest, dead branches included."""
    versions = [record.weight_version for record in receipt.manifest]
    return min(versions), max(versions)


def is_usable_reward(reward: Any) -> bool:
    """Whether the reward is an int or float, not a bool, whose float32 is finite (decision D6)."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return False
    try:
        return math.isfinite(to_float32(float(reward)))
    except OverflowError:
        return False


def usable_reward(reward: Any) -> float:
    """The published reward: float32, and 0.0 where the given one is unusable."""
    return to_float32(float(reward)) if is_usable_reward(reward) else 0.0
