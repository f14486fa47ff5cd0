"""Generation cuts: when a running call can be cut, what is put, and what is acknowledged (section 11).

The acknowledgement is a promise that the chunks exist, so it is given after the put returned, and never before. Where
it cannot be given there is none: the call is generated anew, which is always correct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from rollproof.spec.bundles import staged_media
from rollproof.spec.chunks import chunk_row, cut_key, ends_inside_character, generated_count, joined, without_routes
from rollproof.spec.constants import FINISH_REASONS, MEDIA_SHA256, MEDIA_SPANS
from rollproof.spec.cut_records import CutKey, CutOrder, DurableFailure, DurablePrefix, RunningCall
from rollproof.spec.digest import extras_digest
from rollproof.spec.plane import DataPlane, Outage, PublishedRow
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Rejected
from rollproof.spec.retained import CallMedia, cut_extras
from rollproof.spec.staged import encode_row
from rollproof.spec.values import expect, is_length, owned_key


@frozen
class Partition:
    """Where calls are staged; with the dtype of its pixels, if it is a partition that carries media."""

    name: str = "staging"
    pixel_dtype: str | None = None
    scheme: str = MEDIA_SHA256


@frozen
class Generation:
    """A running call as its worker holds it: the chunks that are durable, and behind them what is not."""

    call: RunningCall
    chunks: tuple[StagedCall, ...] = ()
    keys: tuple[str, ...] = ()
    pending_ids: tuple[int, ...] = ()
    pending_log_probs: tuple[float, ...] = ()
    pending_version: int = 0
    text: bytes = b""
    """What the engine decoded since the call began or was restored, as UTF-8."""
    aligned: bool = True
    """Whether every token ever came with its own log-prob: later ones do not make up for one that is missing."""

    def with_tokens(
        self, ids: Sequence[int], log_probs: Sequence[float], text: bytes, weight_version: int
    ) -> Generation:
        """Return the call after the engine generated more. Tokens of several versions count as of the oldest."""
        if not ids and not log_probs:
            return evolve(self, text=self.text + text)
        aligned = self.aligned and len(ids) == len(log_probs)
        return evolve(
            self,
            pending_ids=(*self.pending_ids, *ids),
            pending_log_probs=(*self.pending_log_probs, *log_probs),
            pending_version=min(weight_version, self.pending_version) if self.pending_ids else weight_version,
            text=self.text + text,
            aligned=aligned,
        )

    @property
    def count(self) -> int:
        """How many tokens were generated so far."""
        return generated_count(self.chunks) + len(self.pending_ids)


def cut(
    generation: Generation, order: CutOrder, media: CallMedia | None, plane: DataPlane, partition: Partition
) -> tuple[DurablePrefix | DurableFailure, Generation]:
    """Cut a call: return the acknowledgement, and the call as its worker holds it afterwards.

    After a failure nothing has changed: what is not durable stays in front of whatever is generated later. Without new
    tokens the earlier chunks are acknowledged again, and nothing is written. ``media`` is None outside media capture.
    """
    try:
        check_cut(generation, order)
        if not generation.pending_ids:
            return acknowledgement(generation, order), generation
        key, chunk, row = next_chunk(generation, order.checkpoint, media, partition)
    except (ValueError, Rejected) as error:
        return DurableFailure(str(error)), generation
    try:
        plane.put(partition.name, (key,), (row,))
    except Outage as error:
        clear(plane, partition, (key,))
        return DurableFailure(str(error)), generation
    durable = Generation(generation.call, (*generation.chunks, chunk), (*generation.keys, key), text=generation.text)
    return acknowledgement(durable, order), durable


def check_cut(generation: Generation, order: CutOrder) -> None:
    """Check that a call can be cut where it is, and that the order says what a restore needs; else ``ValueError``."""
    ids, log_probs, limit = generation.pending_ids, generation.pending_log_probs, order.effective_output_limit
    expect(generation.aligned, "log-probs", len(log_probs), f"{len(ids)}, one per token, at any time")
    expect(generation.count > 0, "generated tokens", 0, "at least one")
    expect(not ends_inside_character(generation.text), "text", generation.text[-4:], "whole characters")
    expect(is_length(limit) and limit != 0, "effective_output_limit", limit, "a number of tokens, at least 1")
    reasons = (None, *FINISH_REASONS) if order.terminal else (None,)
    expect(order.finish_reason in reasons, "finish_reason", order.finish_reason, "stop or length, of a terminal cut")


def next_chunk(
    generation: Generation, checkpoint: str, media: CallMedia | None, partition: Partition
) -> tuple[str, StagedCall, PublishedRow]:
    """Return key, call and row of the next chunk. Raises ``ValueError`` or ``Rejected`` where it has none."""
    call, sequence = generation.call, len(generation.chunks)
    extras = without_routes(cut_extras(call.extras, media, partition.scheme)) if sequence == 0 else None
    ids, log_probs = generation.pending_ids, generation.pending_log_probs
    chunk = chunk_row(call, sequence, ids, log_probs, generation.pending_version, extras)
    key = cut_key(CutKey(checkpoint, call.capture_key, call.model_call_id, sequence))
    return key, chunk, staged(chunk, extras, partition, None)


def staged(call: StagedCall, extras: Any, partition: Partition, bundle: Mapping[str, Any] | None) -> PublishedRow:
    """Return one staged row; with media columns where the partition carries media, and without tags."""
    media = None if partition.pixel_dtype is None else staged_media(bundle, partition.pixel_dtype)
    return PublishedRow(encode_row(call, extras, media=media), {})


def acknowledgement(generation: Generation, order: CutOrder) -> DurablePrefix:
    """Return the promise for a call of which everything is durable."""
    assert order.effective_output_limit is not None
    return DurablePrefix(
        generation.keys,
        generation.count,
        joined(generation.call, generation.chunks).digest,
        order.effective_output_limit,
        order.terminal,
        order.finish_reason,
    )


def clear(plane: DataPlane, partition: Partition, keys: Sequence[str]) -> int:
    """Remove chunks by one clear, and by none where there are none.

    Return how many clears failed. That is not fatal: the rows that stay are nobody's (decision D24).
    """
    if not keys:
        return 0
    try:
        plane.clear(partition.name, keys)
    except Outage:
        return 1
    return 0


def complete(
    generation: Generation, call_id: str, media: CallMedia | None, plane: DataPlane, partition: Partition
) -> tuple[StagedCall, int]:
    """Stage a call's final row, prefix and tail, and clear its chunks, once, after the put.

    Return the row, and how many clears failed. ``call_id`` names the call that took the cut one up. Pixels are staged
    here. Raises ``ValueError`` or ``Rejected`` for what cannot be staged, and ``Outage`` where the put fails; the
    chunks stay then.
    """
    call, chunks = generation.call, generation.chunks
    expect(generation.aligned, "log-probs", len(generation.pending_log_probs), "one per token, at any time")
    extras = without_routes(call.extras)
    if media is not None:
        extras = {**(extras or {}), MEDIA_SPANS: media.spans}
    if generation.pending_ids:
        ids, log_probs = generation.pending_ids, generation.pending_log_probs
        chunks = (*chunks, chunk_row(call, len(chunks), ids, log_probs, generation.pending_version, None))
    expect(chunks != (), "generated tokens", 0, "at least one")
    whole = (evolve(chunks[0], extras_digest=extras_digest(extras)), *chunks[1:])
    final = joined(evolve(call, model_call_id=call_id), whole)
    row = staged(final, extras, partition, None if media is None else media.tensors)
    plane.put(partition.name, (owned_key(final.rollout_id, final.model_call_id),), (row,))
    return final, clear(plane, partition, generation.keys)


def abandon(generation: Generation, plane: DataPlane, partition: Partition) -> int:
    """Clear the chunks of a call that nobody will complete; return how many clears failed."""
    return clear(plane, partition, generation.keys)
