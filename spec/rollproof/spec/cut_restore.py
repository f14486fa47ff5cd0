"""Restoring a call that was cut, from its acknowledgement and its chunks (section 11).

The chunks are untrusted: between cut and restore they may be lost, swapped, repeated or overwritten by a worker that
does not know that it was replaced. Whatever differs from what was acknowledged is refused, and the call is generated
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

from rollproof.spec.chunks import call_row, generated_count, joined, parse_cut_key
from rollproof.spec.constants import BASE_COLUMNS, MODE_TEXT, MODE_TOKEN_IN, ROUTE_SENTINEL
from rollproof.spec.cut_records import CutKey, DurablePrefix, RunningCall
from rollproof.spec.cuts import Generation, Partition
from rollproof.spec.digest import extras_digest
from rollproof.spec.plane import DataPlane
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.retained import CallMedia, PrefixRow, restore
from rollproof.spec.staged import StagedRow, decode_row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import expect, fault, is_length, refusing, show


@frozen
class RestoredCall:
    """A call to go on with: what was generated, what may still be, and the media."""

    generation: Generation
    token_ids: tuple[int, ...]
    """The prompt's ids and the generated ones; mask and log-probs are as long."""
    token_mask: tuple[float, ...]
    log_probs: tuple[float, ...]
    tokens_left: int
    weight_version: int
    """The oldest under which a part of it was generated."""
    media: CallMedia | None


def restore_cut(
    call: RunningCall,
    acknowledged: DurablePrefix,
    fresh: CallMedia,
    weight_version: int,
    plane: DataPlane,
    partition: Partition,
) -> RestoredCall:
    """Restore a call that was cut, by a worker with these weights, with the media of its request processed anew.

    One read. Raises ``Rejected`` with the first violated rule; each rule is about all chunks before the next. An
    ``Outage`` propagates: it says nothing about the chunks.
    """
    try:
        return verified(call, acknowledged, fresh, weight_version, plane, partition)
    except Rejected as rejected:
        if rejected.code is Code.INVALID_STAGING_ROW:
            raise
        raise Rejected(rejected.code, f"call {call.model_call_id}: {rejected.detail}") from None


def verified(
    call: RunningCall,
    acknowledged: DurablePrefix,
    fresh: CallMedia,
    weight_version: int,
    plane: DataPlane,
    partition: Partition,
) -> RestoredCall:
    """Check rule by rule, and return what is restored."""
    rows = read_chunks(acknowledged, plane, partition)
    chunks = [row.call for row in rows]
    check_identity(call, acknowledged.staging_keys, chunks)
    check_versions(chunks, weight_version)
    check_masks(chunks)
    count = generated_count(chunks)
    if count != acknowledged.prefix_token_count:
        raise Rejected(Code.TOKEN_COUNT, fault("prefix_token_count", acknowledged.prefix_token_count, f"{count}"))
    record = check_digests(call, chunks, acknowledged.prefix_digest)
    media = restore(PrefixRow(rows[0].extras_metadata_json, chunks[0].extras_digest), fresh)
    limit = acknowledged.effective_output_limit
    if not is_length(limit) or count > limit:
        raise Rejected(Code.CUT_LIMIT_EXCEEDED, fault("effective_output_limit", limit, f"at least {count}"))
    return RestoredCall(
        Generation(call, tuple(chunks), acknowledged.staging_keys),
        record.token_ids_delta,
        record.token_mask_delta,
        record.generation_log_probs_delta,
        limit - count,
        record.weight_version,
        media,
    )


def read_chunks(acknowledged: DurablePrefix, plane: DataPlane, partition: Partition) -> list[StagedRow]:
    """Read the acknowledged chunks in order; one that is absent, or no key at all, is ``cut_chunk_missing``."""
    keys = acknowledged.staging_keys
    if not keys:
        raise Rejected(Code.CUT_CHUNK_MISSING, fault("staging_keys", keys, "at least one"))
    try:
        rows = plane.get(partition.name, keys, BASE_COLUMNS)
    except Rejected as missing:
        expected = f"chunks that are staged ({missing.detail})"
        raise Rejected(Code.CUT_CHUNK_MISSING, fault("staging_keys", keys, expected)) from None
    return [decode_row(row, where=key) for key, row in zip(keys, rows, strict=True)]


def check_identity(call: RunningCall, keys: Sequence[str], chunks: Sequence[StagedCall]) -> None:
    """Check that each chunk is of this call, and its key of its place; else ``cut_identity_mismatch``."""
    mode = MODE_TEXT if call.parent_call_id is None else MODE_TOKEN_IN
    for sequence, (key, chunk) in enumerate(zip(keys, chunks, strict=True)):
        with refusing(Code.CUT_IDENTITY_MISMATCH):
            expect(is_place(key, call, sequence), "staging_keys", key, f"chunk {sequence} of this call")
            for name, found, wanted in (
                ("rollout_id", chunk.rollout_id, call.capture_key),
                ("model_call_id", chunk.model_call_id, call.model_call_id),
                ("parent_call_id", chunk.parent_call_id, call.parent_call_id),
                ("mode", chunk.mode, mode),
                ("prev_len", chunk.prev_len, len(call.before)),
            ):
                expect(found == wanted, name, found, show(wanted))


def is_place(key: str, call: RunningCall, sequence: int) -> bool:
    """Return whether a key is that of one chunk of a call, under whatever checkpoint."""
    try:
        parsed = parse_cut_key(key)
    except ValueError:
        return False
    return parsed == CutKey(parsed.checkpoint, call.capture_key, call.model_call_id, sequence)


def check_versions(chunks: Sequence[StagedCall], weight_version: int) -> None:
    """Check that weight versions rise along the chunks, up to the worker's; else ``cut_version_order``."""
    versions = [chunk.weight_version for chunk in chunks]
    for before, after in pairwise([*versions, weight_version]):
        if before > after:
            detail = fault("weight_version", before, f"at most {after}, that of what follows")
            raise Rejected(Code.CUT_VERSION_ORDER, detail)


def check_masks(chunks: Sequence[StagedCall]) -> None:
    """Check for carry, in the first chunk only, then generation; else ``cut_mask_order``."""
    for sequence, chunk in enumerate(chunks):
        carry = chunk.token_mask_delta.count(0.0)
        expected = (0.0,) * (0 if sequence else carry)
        if chunk.token_mask_delta[:carry] != expected:
            raise Rejected(
                Code.CUT_MASK_ORDER, fault("token_mask_delta", 0.0, "carry in front of the first chunk only")
            )


def check_digests(call: RunningCall, chunks: Sequence[StagedCall], acknowledged: str) -> StagedCall:
    """Return the cumulative record, if it digests to what was acknowledged, and each chunk to its own digest.

    Else ``retained_prefix_changed``. The weight version of a later chunk is in that chunk's digest only.
    """
    for sequence, chunk in enumerate(chunks):
        columns = (chunk.token_ids_delta, chunk.token_mask_delta, chunk.generation_log_probs_delta)
        commitment = extras_digest(None) if sequence else chunk.extras_digest
        own = call_row(call, *columns, chunk.weight_version, commitment)
        if chunk != own:
            detail = fault(f"chunk {sequence}: digest", chunk.digest, f"{own.digest}, that of its content")
            raise Rejected(Code.RETAINED_PREFIX_CHANGED, detail)
    record = joined(call, chunks)
    if record.digest != acknowledged:
        raise Rejected(
            Code.RETAINED_PREFIX_CHANGED, fault("prefix_digest", acknowledged, f"{record.digest}, that of the chunks")
        )
    return record


def restored_routes(routes: Tensor, start: int, end: int, prefills: Sequence[tuple[int, int]]) -> Tensor:
    """Return a restored call's routes ``[T, L, K]``: sentinel for the prefix, unless one prefill observed all of it.

    The prefix is ``[start, end)``, and each prefill observed the tokens of such a range too. Pieces of several prefills
    are not put together: no one context computed them. Raises ``ValueError`` for a prefix outside the tensor.
    """
    expect(0 <= start <= end <= routes.shape[0], "prefix", (start, end), f"a range within {routes.shape[0]} tokens")
    if any(first <= start and end <= last for first, last in prefills):
        return routes
    each = routes.count // max(routes.shape[0], 1)
    values = list(routes.values())
    values[start * each : end * each] = [ROUTE_SENTINEL] * ((end - start) * each)
    return Tensor.of(routes.dtype, values, routes.shape)
