"""From one receipt and its staged rows to one canonical row, or a rejection (section 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollproof.impl import media, routes
from rollproof.impl.checks import is_text
from rollproof.impl.lineage import ChainRow, verify
from rollproof.impl.outcomes import Dims, FinalizedRollout, RolloutOutcome, RowColumns
from rollproof.impl.records import ReceiptColumns, read_receipt
from rollproof.impl.staged import StagedColumns, base_columns, decode
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected


def finalize_rollout(
    config: ReassemblerConfig,
    source: StagingSource,
    rollout_id: str,
    receipt: Any,
    reward: Any,
    dims: Dims | None,
) -> RolloutOutcome:
    """One rollout's canonical row, or its rejection with the first failing check of section 5.

    ``receipt`` is any JSON value or None, ``dims`` what earlier rollouts taught about (L, K). Whatever a receipt or a
    staged row holds, this returns; only an error of the data plane propagates, as it is.
    """
    dims = config.routed_dims or dims
    parsed: ReceiptColumns | None = None
    try:
        if receipt is None:
            raise Rejected(Code.MISSING_RECEIPT)
        parsed = read_receipt(receipt)
        _check_receipt(rollout_id, parsed)
        staged = _fetch(config, source, parsed)
        row = _rebuild(parsed, staged)
        return _accept(config, source, parsed, staged, row, reward, dims)
    except Rejected as rejected:
        published = usable_reward(reward)
        rollout = FinalizedRollout(
            rollout_id,
            valid=False,
            rejection_reason=rejected.reason,
            reward=0.0 if published is None else published,
            staging_keys=distinct_keys(parsed),
        )
        return RolloutOutcome(rollout, parsed, dims=dims)


def distinct_keys(receipt: ReceiptColumns | None) -> list[str]:
    """The manifest's staging keys without repetitions, in order; none where no receipt parsed."""
    return [] if receipt is None else list(dict.fromkeys(receipt.staging_keys))


def owned_keys(rollout_id: str, receipt: ReceiptColumns | None) -> list[str]:
    """The manifest keys that are this rollout's own (D14). An id that no rollout can have owns nothing."""
    if receipt is None or not is_text(rollout_id) or not rollout_id or "/" in rollout_id:
        return []
    pairs = zip(receipt.staging_keys, receipt.call_ids, strict=True)
    return list(dict.fromkeys(key for key, call_id in pairs if key == f"{rollout_id}/{call_id}"))


def usable_reward(reward: Any) -> float | None:
    """The reward as float32, or None if it is not an int or float whose float32 is finite (D6)."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        return None
    try:
        with np.errstate(over="ignore"):
            narrow = float(np.float32(float(reward)))
    except OverflowError:
        return None
    return narrow if math.isfinite(narrow) else None


def _check_receipt(rollout_id: str, receipt: ReceiptColumns) -> None:
    """The receipt is this rollout's, it succeeded, and it names each row once."""
    if receipt.rollout_id != rollout_id:
        raise Rejected(Code.IDENTITY_MISMATCH, receipt.rollout_id)
    if receipt.failure_reason is not None:
        raise Rejected(Code.ROLLOUT_FAILED, subject=receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.CAPTURE_POISONED)
    if len(set(receipt.staging_keys)) != len(receipt):
        raise Rejected(Code.DUPLICATE_STAGING_KEY)


def _fetch(config: ReassemblerConfig, source: StagingSource, receipt: ReceiptColumns) -> StagedColumns:
    """The manifest's rows from one batched read (D15), decoded, each the row that was asked for."""
    columns = base_columns(media=config.capture_media)
    if config.direct_routes:
        columns.append(ROUTED_EXPERTS)
    answer = source.read(receipt.staging_keys, columns)
    staged = decode(answer, media=config.capture_media, vocab_size=config.vocab_size)
    rollout_ids, call_ids = staged.fields["rollout_id"].tolist(), staged.fields["model_call_id"].tolist()
    found = [f"{rollout_id}/{call_id}" for rollout_id, call_id in zip(rollout_ids, call_ids, strict=True)]
    _expect_same(receipt, found, receipt.staging_keys, Code.STAGING_KEY_MISMATCH)
    _expect_same(receipt, call_ids, receipt.call_ids, Code.CALL_ID_MISMATCH)
    return staged


def _expect_same(receipt: ReceiptColumns, found: Sequence[str], expected: Sequence[str], code: Code) -> None:
    if found != expected:
        row = next(row for row, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
        raise Rejected(code, subject=receipt.call_ids[row])


def _rebuild(receipt: ReceiptColumns, staged: StagedColumns) -> ChainRow:
    """The verified chain; a violation of section 4 becomes the subject of ``rebuild_failed``."""
    try:
        return verify(receipt, staged)
    except Rejected as rejected:
        raise Rejected(Code.REBUILD_FAILED, rejected.detail, subject=rejected.code.code) from None


def _accept(
    config: ReassemblerConfig,
    source: StagingSource,
    receipt: ReceiptColumns,
    staged: StagedColumns,
    row: ChainRow,
    reward: Any,
    dims: Dims | None,
) -> RolloutOutcome:
    """The checks after the chain is verified: media, routes, reward."""
    fetched = routes.ChainRoutes(row, staged, source)
    fields = media.rollout_media(config, row, staged, fetched) if config.capture_media else None
    plan = routed_experts = None
    if config.router_replay_enabled:
        plan = routes.rollout_plan(config, row, staged, owned_keys(row.rollout_id, receipt))
        if config.direct_routes:
            routed_experts, dims = routes.assemble_directly(config, plan, fetched, dims)
    published_reward = usable_reward(reward)
    if published_reward is None:
        raise Rejected(Code.INVALID_REWARD, f"got a {type(reward).__name__}")
    versions = staged.fields["weight_version"]
    rollout = FinalizedRollout(
        rollout_id=row.rollout_id,
        valid=True,
        rejection_reason=None,
        reward=published_reward,
        staging_keys=distinct_keys(receipt),
        columns=RowColumns(row.token_ids, row.token_mask, row.logprobs),
        prompt_len=row.prompt_len,
        min_wv=int(versions.min()),
        max_wv=int(versions.max()),
        routed_experts=routed_experts,
        route_plan=plan,
        media=fields,
    )
    has_frames = fields is not None and media.has_frames(row, staged)
    return RolloutOutcome(rollout, receipt, row, staged.routed_lens[row.calls], dims, has_frames)
