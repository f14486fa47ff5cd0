"""Generation cuts over a data plane: cut a running call, restore it elsewhere, complete it (section 11).

``CutStore`` keeps the promise of an acknowledgement: it is given after the put returned, and everything that it names
was in that put or an earlier one. Whatever goes wrong is a failure without a promise, after which the call is generated
anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from attrs import define, evolve, field, frozen
from tensordict import TensorDict

from rollproof.impl import staged
from rollproof.impl.arguments import as_name, as_plane
from rollproof.impl.checks import as_hex, fault, first_of, is_length
from rollproof.impl.chunks import (
    NO_EXTRAS,
    call_record,
    cut_key,
    ends_inside_character,
    restored_routes,
    rounded,
    with_extras,
    without_routes,
)
from rollproof.impl.columns import Ints
from rollproof.impl.cut_checks import UNDER_WAY, carry_of, check_digests, check_identity, check_versions
from rollproof.impl.dataplane.memory import pack_rows
from rollproof.impl.digest import extras_digest
from rollproof.impl.envelope import encode_routes
from rollproof.impl.retained import CallMedia, PrefixRow, cut_extras, restore
from rollproof.impl.staged import StagedColumns
from rollproof.impl.staged_row import staged_row
from rollproof.impl.staging import StagingSource, call_plane, put_staged
from rollproof.spec.constants import FINISH_REASONS, MEDIA_SPANS, ROUTED_EXPERTS
from rollproof.spec.cut_records import CutKey, CutOrder, DurableFailure, DurablePrefix, RunningCall
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code, Rejected

LOGGER: Final = logging.getLogger(__name__)


@define(eq=False)
class Generation:
    """A running call in its worker's memory: all that it generated, and how much of that is durable.

    One thread may append while another cuts: what is appended meanwhile belongs to the next cut.
    """

    call: RunningCall
    token_ids: list[int] = field(factory=list)
    """Generated ids; ``log_probs`` is as long, unless the engine lost some."""
    log_probs: list[float] = field(factory=list)
    keys: list[str] = field(factory=list)
    restored: int = 0
    """How many of the tokens another worker generated."""
    _durable: int = 0
    _first_commitment: str = NO_EXTRAS
    _oldest: int | None = None
    """The oldest weight version of the durable tokens."""
    _versions: list[tuple[int, int]] = field(factory=list)
    """(end, weight version) of each append that is not durable."""
    _text: bytes = b""
    _aligned: bool = True
    """Whether every token came with its own log-prob: later ones do not make up for one that is missing."""
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)
    _cutting: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def append(self, ids: Sequence[int], log_probs: Sequence[float], weight_version: int, text: bytes = b"") -> None:
        """Take over what the engine generated, under one weight version, and what it reads as, in UTF-8."""
        with self._lock:
            self.token_ids += ids
            self.log_probs += log_probs
            self._text = (self._text + text)[-4:]
            self._aligned = self._aligned and len(ids) == len(log_probs)
            if ids or log_probs:
                self._versions.append((len(self.token_ids), weight_version))


@frozen
class _Snapshot:
    """A generation as it was when a cut of it began."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    durable: int
    aligned: bool
    version: int | None
    """The oldest weight version of the tokens that are not durable."""
    text: bytes

    @classmethod
    def of(cls, generation: Generation) -> _Snapshot:
        with generation._lock:
            return cls(
                tuple(generation.token_ids),
                tuple(generation.log_probs),
                generation._durable,
                generation._aligned,
                min((version for _, version in generation._versions), default=None),
                generation._text,
            )


@frozen(eq=False)
class Restored:
    """What a worker goes on with: ``generation`` to append to, the prompt and prefix, and what is left to generate."""

    generation: Generation
    token_ids: Ints
    """``[T]``, the prompt's ids and the generated ones; ``token_mask`` and ``log_probs`` are float32 ``[T]``."""
    token_mask: np.ndarray[Any, Any]
    log_probs: np.ndarray[Any, Any]
    tokens_left: int
    weight_version: int
    media: CallMedia | None


@frozen
class Completed:
    """A final row that is staged: what a receipt's manifest says of it, and how many clears failed."""

    staging_key: str
    record: StagedCall
    failed_clears: int


@frozen(eq=False)
class CutStore:
    """Cuts, restores and completes calls of one staging partition.

    ``media_pixel_dtype`` is the dtype of all pixels of a partition that carries media; chunks then have its media
    columns, empty ones. Thread-safe where the data plane is.
    """

    dp_client: Any
    staging_partition: str
    media_pixel_dtype: torch.dtype | None = None
    scheme: str | None = None
    """Of the media digest; None takes the one that hashes the tensors where they are."""

    def __attrs_post_init__(self) -> None:
        as_plane("dp_client", self.dp_client)
        as_name("staging_partition", self.staging_partition)

    # ── cut ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def cut(
        self, generation: Generation, order: CutOrder, media: CallMedia | None = None
    ) -> DurablePrefix | DurableFailure:
        """Make one call durable; see ``cut_all``."""
        (answer,) = self.cut_all([(generation, order, media)])
        return answer

    def cut_all(
        self, cuts: Sequence[tuple[Generation, CutOrder, CallMedia | None]]
    ) -> list[DurablePrefix | DurableFailure]:
        """Make calls durable with one put of what is new in each, and answer for each, in order. Never raises.

        A failure changes nothing: the tokens stay in front of what is generated later. A failed put fails every call
        that it was of, and its rows are removed. Without new tokens the earlier chunks are acknowledged again.
        ``media`` are those of the call, None outside media capture; only the first cut of a call hashes them.
        """
        answers: list[DurablePrefix | DurableFailure] = []
        writes: list[tuple[int, _Write]] = []
        held: list[Generation] = []
        try:
            for generation, order, media in cuts:
                if not generation._cutting.acquire(blocking=False):
                    answers.append(DurableFailure(UNDER_WAY))
                    continue
                held.append(generation)
                try:
                    write = self._prepared(generation, order, media)
                except Exception as error:
                    answers.append(DurableFailure(str(error)))
                    continue
                answers.append(write.acknowledgement)
                if write.key is not None:
                    writes.append((len(answers) - 1, write))
            failure = self._put([write for _, write in writes])
            for place, write in writes:
                if failure is None:
                    write.take_effect()
                else:
                    answers[place] = failure
        finally:
            for generation in held:
                generation._cutting.release()
        return answers

    def _prepared(self, generation: Generation, order: CutOrder, media: CallMedia | None) -> _Write:
        """Return what a cut puts, and the acknowledgement that it earns once that is done."""
        call, now = generation.call, _Snapshot.of(generation)
        limit = check_cut(now, order)
        commitment, extras, first = generation._first_commitment, None, not generation.keys
        if first:
            extras = without_routes(cut_extras(call.extras, media, self.scheme))
            commitment = extras_digest(extras)
        keys, carry, oldest = generation.keys, call.carry_ids, _older(generation._oldest, now.version)
        log_probs = rounded(now.log_probs)
        key = record = row = None
        if len(now.ids) > now.durable:
            key = cut_key(CutKey(order.checkpoint, call.capture_key, call.model_call_id, len(keys)))
            new, values = now.ids[now.durable :], log_probs[now.durable :]
            version = _older(now.version, None)
            if first:
                chunk = call_record(call, (*carry, *new), len(carry), values, version, commitment)
            else:
                chunk = call_record(call, new, 0, values, version, NO_EXTRAS)
            record = with_extras(chunk, extras)
            row = staged_row(record, None, self.media_pixel_dtype)
        whole = call_record(call, (*carry, *now.ids), len(carry), log_probs, oldest, commitment)
        promise = DurablePrefix(
            staging_keys=tuple(keys) if key is None else (*keys, key),
            prefix_token_count=len(now.ids),
            prefix_digest=whole.digest,
            effective_output_limit=limit,
            terminal=order.terminal,
            finish_reason=order.finish_reason,
        )
        return _Write(generation, promise, oldest, commitment, key, record, row)

    def _put(self, writes: Sequence[_Write]) -> DurableFailure | None:
        """Put the new rows, all in one; where that fails, remove them and say why."""
        if not writes:
            return None
        keys = [str(write.key) for write in writes]
        rows = [write.row for write in writes]
        try:
            fields = rows[0] if len(rows) == 1 else _batched(rows)
            put_staged(self.dp_client, self.staging_partition, keys, [write.record for write in writes], fields)
        except Exception as error:
            self._clear(keys)
            return DurableFailure(f"{type(error).__name__} from the data plane: {error}")
        return None

    # ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def restore(
        self,
        call: RunningCall,
        acknowledged: DurablePrefix,
        *,
        weight_version: int,
        fresh: CallMedia | None = None,
    ) -> Restored:
        """Return a call that was cut, for a worker with these weights and with the media of its request made anew.

        One read. Raises ``Rejected`` with the first violated rule of section 11; each rule is about all chunks before
        the next. Errors of the data plane propagate: they say nothing about the chunks.
        """
        try:
            return self._verified(call, acknowledged, weight_version, fresh or CallMedia())
        except Rejected as rejected:
            if rejected.code is Code.INVALID_STAGING_ROW:
                raise
            raise Rejected(rejected.code, f"call {call.model_call_id}: {rejected.detail}") from None

    def _verified(
        self, call: RunningCall, acknowledged: DurablePrefix, weight_version: int, fresh: CallMedia
    ) -> Restored:
        columns = self._chunks(acknowledged.staging_keys)
        check_identity(call, acknowledged.staging_keys, columns)
        check_versions([*columns.fields["weight_version"].tolist(), weight_version])
        carry = carry_of(columns)
        ids, log_probs = columns.token_ids, columns.logprobs
        count = len(ids) - carry
        if count != acknowledged.prefix_token_count:
            raise Rejected(Code.TOKEN_COUNT, fault("prefix_token_count", acknowledged.prefix_token_count, str(count)))
        oldest = int(columns.fields["weight_version"].min())
        commitment = as_hex(columns.fields["extras_digest"][0])
        check_digests(call, columns, carry, oldest, commitment, acknowledged.prefix_digest)
        media = restore(PrefixRow(columns.extras_metadata_json[0], commitment), fresh)
        limit = acknowledged.effective_output_limit
        if not is_length(limit) or count > limit:
            raise Rejected(Code.CUT_LIMIT_EXCEEDED, fault("effective_output_limit", limit, f"at least {count}"))
        generation = Generation(
            evolve(call, carry_ids=tuple(ids[:carry].tolist())),
            ids[carry:].tolist(),
            log_probs[carry:].tolist(),
            list(acknowledged.staging_keys),
            count,
            count,
            commitment,
            oldest,
        )
        return Restored(generation, ids, columns.token_mask, log_probs, limit - count, oldest, media)

    def _chunks(self, keys: Sequence[str]) -> StagedColumns:
        """Read chunks in order. A key that repeats is read once: planes differ in what they answer to that."""
        if not keys:
            raise Rejected(Code.CUT_CHUNK_MISSING, fault("staging_keys", keys, "at least one"))
        distinct = list(dict.fromkeys(keys))
        source = StagingSource(self.dp_client, self.staging_partition)
        try:
            answer = source.read(distinct, staged.base_columns())
        except Rejected as rejected:
            if rejected.code is not Code.MISSING_STAGING_ROW:
                raise
            expected = f"chunks that are staged ({rejected.detail})"
            raise Rejected(Code.CUT_CHUNK_MISSING, fault("staging_keys", keys, expected)) from None
        return staged.decode(answer, keys=distinct)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def complete(
        self,
        generation: Generation,
        model_call_id: str,
        media: CallMedia | None = None,
        *,
        routes: torch.Tensor | None = None,
        prefills: Sequence[tuple[int, int]] = (),
    ) -> Completed:
        """Stage a call's final row under the id of the call that completed it, then clear its chunks, once.

        Pixels are staged here. ``routes`` int16 ``[T, L, K]`` are those of prompt, prefix and tail; what was restored
        becomes sentinel unless one of the ``prefills``, as ranges of T, observed all of it. A failed clear is counted,
        and not fatal. Waits for a cut that is under way. Raises ``ValueError`` or ``Rejected`` for what cannot be
        staged, also where another row is staged under this key: a worker that was replaced has completed the call.
        Errors of the put propagate; the chunks stay.
        """
        with generation._cutting:
            call, now = evolve(generation.call, model_call_id=model_call_id), _Snapshot.of(generation)
            extras = without_routes(call.extras)
            if media is not None:
                extras = {**(extras or {}), MEDIA_SPANS: media.spans}
            carry = len(call.carry_ids)
            if routes is not None:
                masked = restored_routes(routes, carry, carry + generation.restored, prefills)
                extras = {**(extras or {}), ROUTED_EXPERTS: encode_routes(masked)}
            if not now.ids or not now.aligned:
                expected = "at least one, and a log-prob for each"
                raise ValueError(fault("generated tokens", len(now.ids), expected))
            oldest = _older(generation._oldest, now.version)
            ids, log_probs = (*call.carry_ids, *now.ids), rounded(now.log_probs)
            final = with_extras(call_record(call, ids, carry, log_probs, oldest, extras_digest(extras)), extras)
            attachments = None if media is None or self.media_pixel_dtype is None else media.tensors
            row = staged_row(final, attachments, self.media_pixel_dtype)
            key = f"{final.rollout_id}/{final.model_call_id}"
            self._stage_once(key, final, row)
            return Completed(key, final, self._clear(generation.keys))

    def _stage_once(self, key: str, record: StagedCall, row: TensorDict) -> None:
        """Put the final row, unless it is there; ``ValueError`` where another one is."""
        held = StagingSource(self.dp_client, self.staging_partition).holds(key, row)
        if held is False:
            raise ValueError(f"{key}: another call is staged under this key")
        if held is None:
            put_staged(self.dp_client, self.staging_partition, [key], [record], row)

    def abandon(self, generation: Generation) -> int:
        """Clear the chunks of a call that nobody restores any more; return how many clears failed."""
        with generation._cutting:
            return self._clear(generation.keys)

    def _clear(self, keys: Sequence[Any]) -> int:
        """Remove rows with one clear; one that fails is logged: the rows that stay are nobody's (decision D24)."""
        if not keys:
            return 0
        try:
            call_plane(self.dp_client, "clear_samples", sample_ids=list(keys), partition_id=self.staging_partition)
        except Exception as error:
            named = first_of(list(keys))
            LOGGER.warning("orphaned: %s in %r cannot be removed (%r)", named, self.staging_partition, error)
            return 1
        return 0


@frozen(eq=False)
class _Write:
    """A cut that is about to happen: the acknowledgement, and the row behind it if there is a new one."""

    generation: Generation
    acknowledgement: DurablePrefix
    oldest: int
    commitment: str
    key: str | None
    record: StagedCall | None
    row: TensorDict | None

    def take_effect(self) -> None:
        """Note that the row is durable. What was appended since the cut began is not."""
        generation = self.generation
        with generation._lock:
            generation.keys.append(str(self.key))
            generation._durable, generation._oldest = self.acknowledgement.prefix_token_count, self.oldest
            generation._first_commitment = self.commitment
            later = [(end, version) for end, version in generation._versions if end > generation._durable]
            generation._versions = later


def _older(left: int | None, right: int | None) -> int:
    """Return the older of two weight versions, one of which may be none."""
    return min(version for version in (left, right) if version is not None)


def check_cut(now: _Snapshot, order: CutOrder) -> int:
    """Return how long the call may get, if it can be cut where it is (section 11). Raises ``ValueError``."""
    if not now.aligned:
        raise ValueError(fault("log-probs", len(now.log_probs), f"{len(now.ids)}, one per token, at any time"))
    if not now.ids:
        raise ValueError(fault("generated tokens", 0, "at least one"))
    if ends_inside_character(now.text):
        raise ValueError(fault("text", now.text, "whole characters"))
    limit, reason = order.effective_output_limit, order.finish_reason
    if limit is None or not is_length(limit) or limit == 0:
        raise ValueError(fault("effective_output_limit", limit, "a number of tokens, at least 1"))
    if reason is not None and not (order.terminal and reason in FINISH_REASONS):
        raise ValueError(fault("finish_reason", reason, "stop or length, of a terminal cut"))
    return limit


def _batched(rows: Sequence[TensorDict | None]) -> TensorDict:
    """Return rows of batch size 1 as one batch; they have the same columns."""
    known = [row for row in rows if row is not None]
    names = [str(name) for name in known[0].keys()]  # noqa: SIM118 - a TensorDict iterates over its rows
    columns = {name: pack_rows([row.get(name)[0] for row in known]) for name in names}
    return TensorDict(columns, batch_size=[len(known)])
