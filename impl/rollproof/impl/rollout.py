"""From one receipt and its staged rows to one canonical row, or a rejection (section 5)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from attrs import evolve

from rollproof.impl import media, routes
from rollproof.impl.assembly import read_metadata
from rollproof.impl.checks import call_fault, fault, first_repeated, is_text, show
from rollproof.impl.columns import own_rows
from rollproof.impl.digest import extras_digest
from rollproof.impl.in_place import Place
from rollproof.impl.lineage import ChainRow, verify
from rollproof.impl.outcomes import Dims, FinalizedRow, RolloutOutcome, RowColumns
from rollproof.impl.records import ReceiptColumns, read_receipt
from rollproof.impl.sampler import chain_topk
from rollproof.impl.staged import StagedColumns, base_columns, decode
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import (
    FINISH_LENGTH,
    FINISH_REASON,
    MEDIA_TENSOR_COLUMNS,
    RESERVED_ROLLOUT_ID,
    ROUTED_EXPERTS,
)
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected


def finalize_rollout(
    config: ReassemblerConfig,
    source: StagingSource,
    rollout_id: str,
    receipt: Any,
    reward: Any,
    dims: Dims | None,
    place: Place | None = None,
    parsed: ReceiptColumns | None = None,
) -> RolloutOutcome:
    """Return one rollout's canonical row, or its rejection with the first failing check of section 5.

    ``receipt`` is any JSON value or None, ``parsed`` the same where it has been read, ``dims`` what earlier rollouts
    taught about (L, K), ``place`` where the group publishes its routes
    and pixels. Whatever a receipt or a staged row holds, this
    returns; only an error of the data plane propagates, as it is.
    """
    dims = config.routed_dims or dims
    staged: StagedColumns | None = None
    own = owned_keys(rollout_id, receipt)
    try:
        if receipt is None:
            raise Rejected(Code.MISSING_RECEIPT)
        parsed = read_receipt(receipt) if parsed is None else parsed
        check_receipt(rollout_id, parsed)
        staged = _fetch(config, source, parsed)
        row = _rebuild(parsed, staged)
        return _accept(config, source, parsed, own, staged, row, reward, dims, place)
    except Rejected as rejected:
        published = usable_reward(reward)
        rollout = FinalizedRow(
            rollout_id,
            valid=False,
            rejection_reason=rejected.reason,
            reward=0.0 if published is None else published,
            staging_keys=distinct_keys(parsed),
        )
        return RolloutOutcome(rollout, parsed, own, dims=dims, staged_routes=_any_routes(staged))


def _any_routes(staged: StagedColumns | None) -> bool:
    return staged is not None and bool(staged.routed_lens.any())


def distinct_keys(receipt: ReceiptColumns | None) -> list[str]:
    """Return the manifest's staging keys without repetitions, in order; none where no receipt parsed."""
    return [] if receipt is None else list(dict.fromkeys(receipt.staging_keys))


def owned_keys(rollout_id: str, receipt: Any) -> list[str]:
    """Return the manifest keys of a raw receipt that are this rollout's own, each once, in order (D14).

    Those of a receipt that does not parse too (D34). An id that no rollout can have owns nothing.
    """
    return list(dict.fromkeys(key for key in _own_entries(rollout_id, receipt) if key is not None))


def unreadable_entries(rollout_id: str, receipt: Any) -> int:
    """Return how many manifest entries of a raw receipt name no key of its rollout."""
    return sum(key is None for key in _own_entries(rollout_id, receipt))


def _own_entries(rollout_id: str, receipt: Any) -> Iterator[str | None]:
    """Yield per manifest entry its key, where that is its rollout's id, a slash and its call's id; else None."""
    manifest = receipt.get("manifest") if type(receipt) is dict else None
    known = is_text(rollout_id) and rollout_id not in ("", RESERVED_ROLLOUT_ID) and "/" not in rollout_id
    for row in manifest if type(manifest) is list else ():
        call_id = row.get("model_call_id") if known and type(row) is dict else None
        key = f"{rollout_id}/{call_id}" if is_text(call_id) and call_id else None
        yield key if key is not None and row.get("staging_key") == key else None


def _held(reward: Any) -> Any:
    """Return what a 0-dimensional array or tensor holds, anything else as it is."""
    if isinstance(reward, int | float) or getattr(reward, "shape", None) != ():
        return reward
    try:
        return reward.item()
    except Exception:
        return reward


def usable_reward(reward: Any) -> float | None:
    """Return the reward as float32, or None if it is not a number whose float32 is finite (D6).

    A number is an int or float, or a 0-dimensional array or tensor that holds one; a bool is not one.
    """
    number = _held(reward)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        with np.errstate(over="ignore"):
            narrow = float(np.float32(float(number)))
    except OverflowError:
        return None
    return narrow if math.isfinite(narrow) else None


def check_receipt(rollout_id: str, receipt: ReceiptColumns) -> None:
    """Raise the first of the faults that the receipt has before a row is read."""
    if receipt.rollout_id != rollout_id:
        raise Rejected(Code.IDENTITY_MISMATCH, fault("rollout_id", receipt.rollout_id, show(rollout_id)))
    if receipt.failure_reason is not None:
        raise Rejected(Code.ROLLOUT_FAILED, subject=receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.CAPTURE_POISONED)
    again = first_repeated(receipt.staging_keys)
    if again is not None:
        key = receipt.staging_keys[again]
        detail = call_fault(receipt.call_ids[again], "staging_key", key, "another one in every row")
        raise Rejected(Code.DUPLICATE_STAGING_KEY, detail)


def _fetch(config: ReassemblerConfig, source: StagingSource, receipt: ReceiptColumns) -> StagedColumns:
    """Return the manifest's rows from one batched read (D15), decoded, each identified as the requested row."""
    columns = base_columns(config)
    answer = source.read(receipt.staging_keys, columns, [ROUTED_EXPERTS] if config.direct_routes else [])
    staged = decode(
        answer,
        media=config.capture_media,
        vocab_size=config.vocab_size,
        keys=receipt.staging_keys,
        topk=config.top_logprobs > 0,
    )
    if (
        staged.routed_experts is not None
        and config.capture_media
        and not source.has_read(receipt.staging_keys, MEDIA_TENSOR_COLUMNS)
    ):
        # Media are read before the routes are assembled, perhaps into the same memory.
        staged = evolve(staged, routed_experts=own_rows(staged.routed_experts))
    rollout_ids, call_ids = staged.fields["rollout_id"].tolist(), staged.fields["model_call_id"].tolist()
    found = [f"{rollout_id}/{call_id}" for rollout_id, call_id in zip(rollout_ids, call_ids, strict=True)]
    for code, name, values, expected in (
        (Code.STAGING_KEY_MISMATCH, "staging_key", found, receipt.staging_keys),
        (Code.CALL_ID_MISMATCH, "model_call_id", call_ids, receipt.call_ids),
    ):
        if values != expected:
            row = next(row for row, pair in enumerate(zip(values, expected, strict=True)) if pair[0] != pair[1])
            raise Rejected(code, fault(name, values[row], show(expected[row])), subject=receipt.call_ids[row])
    return staged


def _rebuild(receipt: ReceiptColumns, staged: StagedColumns) -> ChainRow:
    """Return the verified chain; a violation of section 4 becomes the subject of ``rebuild_failed``."""
    try:
        return verify(receipt, staged)
    except Rejected as rejected:
        raise Rejected(Code.REBUILD_FAILED, rejected.detail, subject=rejected.code.code) from None


def _accept(
    config: ReassemblerConfig,
    source: StagingSource,
    receipt: ReceiptColumns,
    own_keys: list[str],
    staged: StagedColumns,
    row: ChainRow,
    reward: Any,
    dims: Dims | None,
    place: Place | None,
) -> RolloutOutcome:
    """Run the checks after the chain is verified: media, sampler columns, routes, reward."""
    fetched = routes.ChainRoutes(row, staged, source)
    fields, unproven, stray = (
        media.rollout_media(config, row, staged, fetched, place) if config.capture_media else (None, 0, 0)
    )
    topk = chain_topk(config, row, staged.topk) if config.top_logprobs else None
    plan = routed_experts = None
    if config.router_replay_enabled:
        plan = routes.rollout_plan(config, row, staged, own_keys)
        if config.direct_routes:
            routed_experts, dims = routes.assemble_directly(config, plan, fetched, dims, place)
    published_reward = usable_reward(reward)
    if published_reward is None:
        raise Rejected(Code.INVALID_REWARD, fault("reward", _held(reward), "a number whose float32 is finite"))
    versions = staged.fields["weight_version"]
    rollout = FinalizedRow(
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
    return RolloutOutcome(
        rollout,
        receipt,
        own_keys,
        row,
        staged.routed_lens[row.calls],
        dims,
        has_frames,
        _any_routes(staged),
        unproven,
        int(staged.generated.sum() - row.generation_lens.sum()),
        stray,
        _stopped_for_length(row, staged),
        topk,
    )


def _stopped_for_length(row: ChainRow, staged: StagedColumns) -> bool:
    """Return whether the extras of the chain's last call say that it stopped for its length (D38).

    They must be what the call committed to. A commitment that covers routes is compared where those are assembled.
    """
    call = int(row.calls[-1])
    data = staged.extras_metadata_json[call]
    try:
        extras = read_metadata(data)
        if extras is None or extras.get(FINISH_REASON) != FINISH_LENGTH:
            return False
        digest = extras_digest(extras)
    except ValueError:
        return False
    return bool(staged.routed_lens[call]) or digest == row.extras_digests[-1].tobytes().hex()
