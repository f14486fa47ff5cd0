"""From one receipt and its staged rows to one canonical row, or a rejection (section 5).

The checks have an order, and each covers all rows of the rollout before the next begins. No content of a receipt or a
staged row makes this raise; only an outage of the data plane does, because a rollout that could not be read must not be
published as one that failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rollproof.spec import media, routes, sampler
from rollproof.spec.constants import FINISH_LENGTH, FINISH_REASON, ROUTED_EXPERTS
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import read_metadata
from rollproof.spec.lineage import linearize, repeated
from rollproof.spec.outcomes import Dims, RolloutOutcome, distinct_keys, rejected_rollout
from rollproof.spec.plane import DataPlane
from rollproof.spec.receipt import own_keys_listed, parse_receipt
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig, Receipt
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import StagedRow, base_columns, decode_row
from rollproof.spec.tensor import to_float32
from rollproof.spec.values import fault, first_repeated, show


def finalize_rollout(
    config: ReassemblerConfig,
    rollout_id: str,
    receipt: Any,
    reward: Any,
    plane: DataPlane,
    dims: Dims | None = None,
) -> RolloutOutcome:
    """Return one rollout's canonical row, or its rejection with the first failing check of section 5.

    ``receipt`` is any JSON value or None; ``dims`` is what earlier rollouts taught about (L, K). Raises ``Outage`` if
    the data plane fails, and nothing else.
    """
    parsed: Receipt | None = None
    own = owned_keys(rollout_id, receipt)
    try:
        if receipt is None:
            raise Rejected(Code.MISSING_RECEIPT)
        parsed = parse_receipt(receipt)
        check_identity(rollout_id, parsed)
        staged = fetch(config, parsed, plane)
        row = rebuild(parsed, staged)
        return accept(config, parsed, row, staged, reward, plane, dims, own)
    except Rejected as rejected:
        return rejected_rollout(rollout_id, usable_reward(reward), parsed, own, rejected)


def accept(
    config: ReassemblerConfig,
    receipt: Receipt,
    row: LinearizedRow,
    staged: Sequence[StagedRow],
    reward: Any,
    plane: DataPlane,
    dims: Dims | None,
    own: tuple[str, ...],
) -> RolloutOutcome:
    """Check what remains once the chain is verified, and return the row.

    Media come before sampler columns, these before routes, and the reward last.
    """
    by_call = {item.call.model_call_id: item for item in staged}
    chain = [by_call[call_id] for call_id in row.model_call_ids]
    fields = media.rollout_media(config, row, chain, plane) if config.capture_media else None
    topk = sampler.rollout_topk(config, row, chain) if config.top_logprobs else None
    plan = routes.rollout_plan(config, row, chain, own) if config.router_replay_enabled else None
    routed_experts = None
    if plan is not None and config.direct_routes:
        fetched = routes.with_sidecars(config, plan, chain, plane)
        routed_experts = routes.assemble_directly(config, plan, fetched, dims)
    if not is_usable_reward(reward):
        number = as_number(reward)
        shown = reward if number is None else number
        raise Rejected(Code.INVALID_REWARD, fault("reward", shown, "a number whose float32 is finite"))
    min_wv, max_wv = version_range(receipt)
    rollout = FinalizedRollout(
        rollout_id=row.rollout_id,
        valid=True,
        rejection_reason=None,
        reward=usable_reward(reward),
        staging_keys=distinct_keys(receipt),
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
    beside = [item.call for item in staged if item.call.model_call_id not in row.model_call_ids]
    return RolloutOutcome(
        rollout,
        receipt,
        row,
        route_lengths=tuple(item.routed_len for item in chain),
        media_has_frames=any(item.media_has_frames for item in chain),
        unchecked_media=media.unchecked_calls(config, chain) if config.capture_media else (),
        own_keys=own,
        untrained=tuple((call.model_call_id, call.token_mask_delta.count(1.0)) for call in beside),
        stray_placeholders=media.stray_placeholders(row, chain) if config.capture_media else (),
        stopped_for_length=says_length(chain[-1]),
        topk=topk,
    )


def says_length(terminal: StagedRow) -> bool:
    """Return whether a chain's last call says in its extras that the engine stopped it for its length (decision D38).

    Extras that are not what the call committed to say nothing. The commitment covers the call's routes too: in direct
    router replay it has been compared by now, and in other modes, which do not read routes, extras count as they are.
    """
    try:
        extras = read_metadata(terminal.extras_metadata_json)
        digest = extras_digest(extras)
    except ValueError:
        return False
    committed = terminal.routed_len > 0 or digest == terminal.call.extras_digest
    return committed and extras is not None and extras.get(FINISH_REASON) == FINISH_LENGTH


def owned_keys(rollout_id: str, receipt: Any) -> tuple[str, ...]:
    """Return the staging keys of a raw receipt that are this rollout's own, each once, in order (decision D14).

    A receipt that does not parse owns what can be read of it (decision D34): nobody else will ever clear it.
    """
    return tuple(dict.fromkeys(own_keys_listed(rollout_id, receipt)))


def check_identity(rollout_id: str, receipt: Receipt) -> None:
    """Check that the receipt is this rollout's, that it succeeded, and that its manifest names each row once."""
    if receipt.rollout_id != rollout_id:
        raise Rejected(Code.IDENTITY_MISMATCH, fault("rollout_id", receipt.rollout_id, show(rollout_id)))
    if receipt.failure_reason is not None:
        raise Rejected(Code.ROLLOUT_FAILED, subject=receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.CAPTURE_POISONED)
    distinct = {"staging_key": Code.DUPLICATE_STAGING_KEY, "model_call_id": Code.DUPLICATE_MANIFEST_CALL_ID}
    for field, code in distinct.items():
        again = first_repeated([getattr(record, field) for record in receipt.manifest])
        if again is not None:
            raise Rejected(code, repeated(receipt.manifest[again], field))


def fetch(config: ReassemblerConfig, receipt: Receipt, plane: DataPlane) -> list[StagedRow]:
    """Read the manifest's rows in one batch (decision D15), and decode and identify each.

    In direct mode the same read requests the routes. A data plane may answer for no row with a column that some row
    lacks; then one further read may request the routes of the chain's routed rows.
    """
    keys = [record.staging_key for record in receipt.manifest]
    media, topk, vocab_size = config.capture_media, config.top_logprobs > 0, config.vocab_size
    columns = base_columns(media=media, topk=topk)
    rows = plane.get(config.staging_partition, keys, (*columns, ROUTED_EXPERTS) if config.direct_routes else columns)
    named = zip(keys, rows, strict=True)
    staged = [decode_row(row, media=media, vocab_size=vocab_size, topk=topk, where=key) for key, row in named]
    for record, item in zip(receipt.manifest, staged, strict=True):
        if item.key != record.staging_key:
            detail = fault("staging_key", item.key, show(record.staging_key))
            raise Rejected(Code.STAGING_KEY_MISMATCH, detail, subject=record.model_call_id)
    for record, item in zip(receipt.manifest, staged, strict=True):
        if item.call.model_call_id != record.model_call_id:
            detail = fault("model_call_id", item.call.model_call_id, show(record.model_call_id))
            raise Rejected(Code.CALL_ID_MISMATCH, detail, subject=record.model_call_id)
    again = first_repeated([item.call.model_call_id for item in staged])
    if again is not None:
        raise Rejected(Code.DUPLICATE_FETCHED_CALL_ID, repeated(receipt.manifest[again], "model_call_id"))
    return staged


def rebuild(receipt: Receipt, staged: Sequence[StagedRow]) -> LinearizedRow:
    """Return the verified chain; a violation of section 4 becomes the subject of ``rebuild_failed``."""
    try:
        return linearize(receipt, [item.call for item in staged])
    except Rejected as rejected:
        raise Rejected(Code.REBUILD_FAILED, rejected.detail, subject=rejected.code.code) from None


def version_range(receipt: Receipt) -> tuple[int, int]:
    """Return the oldest and newest weight version of the whole manifest, dead branches included."""
    versions = [record.weight_version for record in receipt.manifest]
    return min(versions), max(versions)


def as_number(value: Any) -> int | float | None:
    """Return the int or float that a value is or holds, else None; a bool is neither (decision D6).

    Training code hands over 0-dimensional arrays and tensors: an object whose ``shape`` is ``()`` holds what its
    ``item()`` returns.
    """
    if not isinstance(value, int | float) and getattr(value, "shape", None) == ():
        try:
            value = value.item()
        except Exception:
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_usable_reward(reward: Any) -> bool:
    """Return whether the reward is a number whose float32 is finite (decision D6)."""
    number = as_number(reward)
    try:
        return number is not None and math.isfinite(to_float32(float(number)))
    except OverflowError:
        return False


def usable_reward(reward: Any) -> float:
    """Return the published reward: float32, and 0.0 where the given one is unusable."""
    number = as_number(reward)
    return to_float32(float(number)) if number is not None and is_usable_reward(number) else 0.0
