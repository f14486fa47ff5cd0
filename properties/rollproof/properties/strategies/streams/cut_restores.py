"""Restores of calls that were cut: what was acknowledged, and one break per code of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from attrs import evolve, frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.named_tensors import draw_scheme
from rollproof.properties.strategies.rollouts.media import draw_kind
from rollproof.properties.strategies.scalars import EXTRAS, Bytes, draw_bytes, log_prob, token_id
from rollproof.properties.strategies.streams.retained import (
    draw_media,
    entries_of,
    other_spans,
    other_tensors,
    unhashable,
)
from rollproof.spec.chunks import call_row, chunk_row, cut_key, generated_count, joined
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.cut_records import CutKey, DurablePrefix, RunningCall
from rollproof.spec.digest import call_digest, chain_digest
from rollproof.spec.judge.cuts import RestoreCut
from rollproof.spec.judge.staging import OnMiss, Staging
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code
from rollproof.spec.retained import CallMedia, cut_extras
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.tensor import Tensor


@frozen
class CutDraft:
    """A call that was cut, with its chunks by key, before it becomes a request."""

    request: RestoreCut
    chunks: tuple[StagedCall, ...]
    extras: Any

    def with_chunk(self, at: int, chunk: StagedCall) -> CutDraft:
        """Return the draft with another chunk at one place, with the digest that it has."""
        chunks = (*self.chunks[:at], chunk, *self.chunks[at + 1 :])
        rows = {**self.request.staging.rows, self.keys[at]: encode_row(chunk, None if at else self.extras)}
        return evolve(self, chunks=chunks).with_rows(rows)

    def with_rows(self, rows: dict[str, Row]) -> CutDraft:
        """Return the draft with other staged rows."""
        return evolve(self, request=evolve(self.request, staging=evolve(self.request.staging, rows=rows)))

    def acknowledging(self, **changes: Any) -> CutDraft:
        """Return the draft with another acknowledgement."""
        return evolve(self, request=evolve(self.request, acknowledged=evolve(self.request.acknowledged, **changes)))

    @property
    def keys(self) -> tuple[str, ...]:
        """The acknowledged keys."""
        return self.request.acknowledged.staging_keys


def draw_draft(decide: Bytes, *, media: bool = False, least: int = 1) -> CutDraft:
    """Draw a call of ``least`` to four chunks, of rising weight versions; the prompt has a token at least."""
    child = decide.chance(80)
    before = tuple(token_id(decide) for _ in range(1 + decide.below(3))) if child else ()
    call = RunningCall(
        capture_key=decide.choose(("r", "r-a1", "g7_g0")),
        model_call_id=decide.choose(("c", "c 1", "é")),
        parent_call_id="p" if child else None,
        parent_chain_hash=chain_digest(None, before) if child else None,
        before=before,
        carry_ids=tuple(token_id(decide) for _ in range(1 + decide.below(3))),
    )
    extras = decide.choose(EXTRAS)
    spans: list[dict[str, Any]] = []
    entries = None
    if media:
        kind = draw_kind(decide)
        spans, bundle = draw_media(decide, kind)
        extras = cut_extras(extras, CallMedia(spans, bundle), draw_scheme(decide))
        entries = entries_of(decide, bundle)
    chunks: list[StagedCall] = []
    version = decide.below(3)
    for sequence in range(least + decide.below(5 - least)):
        count = 1 + decide.below(3)
        ids = tuple(token_id(decide) for _ in range(count))
        chunks.append(chunk_row(call, sequence, ids, [log_prob(decide) for _ in ids], version, extras))
        version += decide.below(2)
    keys = tuple(
        cut_key(CutKey(f"step_{sequence // 2}", call.capture_key, call.model_call_id, sequence))
        for sequence in range(len(chunks))
    )
    rows = {
        key: encode_row(chunk, None if sequence else extras)
        for sequence, (key, chunk) in enumerate(zip(keys, chunks, strict=True))
    }
    total = generated_count(chunks)
    acknowledged = DurablePrefix(keys, total, joined(call, chunks).digest, total + decide.below(9), decide.chance(48))
    staging = Staging(rows, on_miss=decide.choose(tuple(OnMiss)))
    return CutDraft(RestoreCut(call, acknowledged, staging, version, spans, entries), tuple(chunks), extras)


def digested(chunk: StagedCall) -> StagedCall:
    """Return a chunk with the digest of its content."""
    return evolve(chunk, digest=call_digest(chunk))


def any_chunk(decide: Bytes, draft: CutDraft, first: int = 0) -> int:
    """Return the place of a chunk, from ``first`` on."""
    return first + decide.below(len(draft.chunks) - first)


# ── one break per code ──────────────────────────────────────────────────────────────────────────────────────────────

Break = Callable[[Bytes, CutDraft], CutDraft]


def lost_chunk(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Lose a chunk; or all of them; or acknowledge none."""
    if decide.chance(48):
        return draft.acknowledging(staging_keys=())
    lost = set(draft.keys) if decide.chance(48) else {draft.keys[any_chunk(decide, draft)]}
    return draft.with_rows({key: row for key, row in draft.request.staging.rows.items() if key not in lost})


def broken_row(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Lose a column, or hold one of another dtype, size or value."""
    key = draft.keys[any_chunk(decide, draft)]
    row = dict(draft.request.staging.rows[key])
    kind = decide.below(4)
    if kind == 0:
        del row[decide.choose(tuple(row))]
    elif kind == 1:
        row["weight_version"] = Tensor.of("int32", [0])
    elif kind == 2:
        row["delta_len"] = Tensor.of("int64", [row["delta_len"].values()[0] + 1])
    else:
        row["routed_len"] = Tensor.of("int64", [1])
    return draft.with_rows({**draft.request.staging.rows, key: row})


def other_key(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge a chunk under a key that is not its place's, where it is all the same."""
    at, call = any_chunk(decide, draft), draft.request.call
    key = decide.choose(
        (
            f"__generation_cut__/x/{call.capture_key}/{call.model_call_id}/{at + 1}",
            f"__generation_cut__/x/{call.capture_key}/{call.model_call_id}",
            f"__generation_cut__/x/{call.capture_key}/{call.model_call_id}/0{at}",
            f"__generation_cut__/x/{call.capture_key}-a1/{call.model_call_id}/{at}",
            f"__generation_cut__/x/{call.capture_key}/{call.model_call_id}x/{at}",
            f"{call.capture_key}/{call.model_call_id}",
        )
    )
    keys = (*draft.keys[:at], key, *draft.keys[at + 1 :])
    rows = {**draft.request.staging.rows, key: draft.request.staging.rows[draft.keys[at]]}
    return draft.with_rows(rows).acknowledging(staging_keys=keys)


def swapped_keys(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge two chunks in the opposite order, or one of them twice."""
    at = any_chunk(decide, draft, 1)
    keys = list(draft.keys)
    keys[at - 1], keys[at] = (keys[at], keys[at - 1]) if decide.chance(128) else (keys[at - 1], keys[at - 1])
    return draft.acknowledging(staging_keys=tuple(keys))


def other_call(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Stage a chunk of another rollout, call or parent, or from another position."""
    at = any_chunk(decide, draft)
    chunk = draft.chunks[at]
    kind = decide.below(4)
    if kind == 0:
        other = evolve(chunk, rollout_id="other")
    elif kind == 1:
        other = evolve(chunk, model_call_id="other")
    elif kind == 2:
        prev_len = chunk.prev_len if chunk.parent_call_id else 1
        other = evolve(
            chunk,
            parent_call_id="other",
            mode=MODE_TOKEN_IN,
            prev_len=prev_len,
            cum_len=prev_len + chunk.delta_len,
        )
    elif chunk.parent_call_id is None:
        other = evolve(chunk, parent_call_id="p", mode=MODE_TOKEN_IN, prev_len=1, cum_len=1 + chunk.delta_len)
    else:
        root = decide.chance(128)
        change: dict[str, Any] = (
            {"parent_call_id": None, "mode": MODE_TEXT, "prev_len": 0, "cum_len": chunk.delta_len}
            if root
            else {"prev_len": chunk.prev_len + 1, "cum_len": chunk.cum_len + 1}
        )
        other = evolve(chunk, **change)
    return draft.with_chunk(at, digested(other))


def older_worker(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Restore with weights that are older than the newest chunk."""
    chunk = digested(evolve(draft.chunks[-1], weight_version=draft.request.weight_version + 1 + decide.below(2)))
    return draft.with_chunk(len(draft.chunks) - 1, chunk)


def falling_versions(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Let a chunk be of older weights than the one before."""
    at = any_chunk(decide, draft, 1)
    before = digested(evolve(draft.chunks[at - 1], weight_version=draft.chunks[at].weight_version + 1))
    draft = evolve(draft, request=evolve(draft.request, weight_version=draft.request.weight_version + 4))
    return draft.with_chunk(at - 1, before)


def masked(chunk: StagedCall, mask: tuple[float, ...]) -> StagedCall:
    """Return a chunk with another mask, and without log-probs where it is carry."""
    pairs = zip(chunk.generation_log_probs_delta, mask, strict=True)
    values = tuple(value if one == 1.0 else 0.0 for value, one in pairs)
    return digested(evolve(chunk, token_mask_delta=mask, generation_log_probs_delta=values))


def carry_later(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Let a later chunk hold carry, or the first one hold carry behind what it generated."""
    at = any_chunk(decide, draft) if len(draft.chunks) == 1 or decide.chance(80) else any_chunk(decide, draft, 1)
    chunk = draft.chunks[at]
    if at:
        place = decide.below(chunk.delta_len)
        mask = tuple(0.0 if index == place else 1.0 for index in range(chunk.delta_len))
    else:
        mask = chunk.token_mask_delta[::-1]
    return draft.with_chunk(at, masked(chunk, mask))


def swapped_rows(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Swap the first chunk's row with a later one's, or stage it twice."""
    for place, chunk in enumerate(draft.chunks):
        same = evolve(chunk, weight_version=draft.chunks[0].weight_version)
        draft = draft.with_chunk(place, digested(same))
    at, rows = any_chunk(decide, draft, 1), dict(draft.request.staging.rows)
    first = rows[draft.keys[0]]
    if decide.chance(128):
        rows[draft.keys[0]] = rows[draft.keys[at]]
    rows[draft.keys[at]] = first
    return draft.with_rows(rows)


def other_count(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge one token more or less."""
    count = draft.request.acknowledged.prefix_token_count
    return draft.acknowledging(prefix_token_count=count + decide.choose((1, -1)))


def dropped_chunk(_: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge all chunks but the last one, with the count of all."""
    return draft.acknowledging(staging_keys=draft.keys[:-1])


def other_digest(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge another digest."""
    digest = draft.request.acknowledged.prefix_digest
    return draft.acknowledging(prefix_digest=decide.choose(("0" * 64, draft.chunks[0].chain_hash, digest.upper(), "")))


def other_content(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Change a token, a log-prob or the commitment to extras; the chunk's own digests may be made right again."""
    at, call = any_chunk(decide, draft), draft.request.call
    chunk = draft.chunks[at]
    ids, values = list(chunk.token_ids_delta), list(chunk.generation_log_probs_delta)
    commitment = chunk.extras_digest
    kind = decide.below(3)
    if kind == 0:
        ids[-1 - decide.below(len(ids))] ^= 1
    elif kind == 1:
        values[-1] = -0.25 if values[-1] != -0.25 else -0.5
    else:
        commitment = "f" * 64
    if decide.chance(128):
        columns = tuple(ids), chunk.token_mask_delta, tuple(values)
        return draft.with_chunk(at, call_row(call, *columns, chunk.weight_version, commitment))
    changed = evolve(
        chunk, token_ids_delta=tuple(ids), generation_log_probs_delta=tuple(values), extras_digest=commitment
    )
    return draft.with_chunk(at, changed)


def other_version(_: Bytes, draft: CutDraft) -> CutDraft:
    """Change the weight version of the last chunk upwards, up to the worker's, under the digest that it had."""
    at = len(draft.chunks) - 1
    newer = evolve(draft.chunks[at], weight_version=draft.chunks[at].weight_version + 1)
    draft = evolve(draft, request=evolve(draft.request, weight_version=draft.request.weight_version + 1))
    return draft.with_chunk(at, newer)


def other_before(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Take the call up behind other tokens than it was cut behind."""
    call = draft.request.call
    if not call.before:
        return other_digest(decide, draft)
    before = (call.before[0] ^ 1, *call.before[1:])
    return evolve(draft, request=evolve(draft.request, call=evolve(call, before=before)))


def exchanged_content(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Swap the rows of two later chunks that differ; where there are not two, change one."""
    at = len(draft.chunks) - 1
    first, last = draft.chunks[at - 1 :] if at >= 2 else (None, None)
    if first is None or last is None or first == last or first.weight_version != last.weight_version:
        return other_content(decide, draft)
    return draft.with_chunk(at - 1, last).with_chunk(at, first)


def other_extras(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Stage other extras with the first chunk than it commits to."""
    extras = decide.choose(({"x": 1}, None, {}))
    extras = {"y": 2} if extras == draft.extras else extras
    row = encode_row(draft.chunks[0], extras)
    return draft.with_rows({**draft.request.staging.rows, draft.keys[0]: row})


def unexpected_media(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Send media with the request, although the cut saw none."""
    spans, bundle = draw_media(decide, draw_kind(decide))
    return evolve(draft, request=evolve(draft.request, spans=spans, tensors=entries_of(decide, bundle)))


def on_request(edit: Callable[[Bytes, Any], Any]) -> Break:
    """Make an edit of the request's media a break."""
    return lambda decide, draft: evolve(draft, request=edit(decide, draft.request))


def lower_limit(decide: Bytes, draft: CutDraft) -> CutDraft:
    """Acknowledge more tokens than the call may generate."""
    count = draft.request.acknowledged.prefix_token_count
    return draft.acknowledging(effective_output_limit=decide.below(count))


RESTORE_EDITS: Final[dict[Code, tuple[Break, ...]]] = {
    Code.CUT_CHUNK_MISSING: (lost_chunk,),
    Code.INVALID_STAGING_ROW: (broken_row,),
    Code.CUT_IDENTITY_MISMATCH: (other_key, swapped_keys, other_call),
    Code.CUT_VERSION_ORDER: (older_worker, falling_versions),
    Code.CUT_MASK_ORDER: (carry_later, swapped_rows),
    Code.TOKEN_COUNT: (other_count, dropped_chunk),
    Code.RETAINED_PREFIX_CHANGED: (other_digest, other_content, other_version, other_before, exchanged_content),
    Code.MEDIA_CAPTURE_REJECTED: (on_request(unhashable), other_extras, unexpected_media),
    Code.RETAINED_MEDIA_CHANGED: (on_request(other_tensors), on_request(other_spans)),
    Code.CUT_LIMIT_EXCEEDED: (lower_limit,),
}
"""Every code of a restore, in the order of its rules."""

WITHOUT_MEDIA: Final = (unexpected_media, other_extras)
SEVERAL_CHUNKS: Final = (swapped_keys, falling_versions, swapped_rows, dropped_chunk)
"""Breaks of calls with at least two chunks."""
LATER_BREAKS: Final[tuple[tuple[Code, Break], ...]] = (
    (Code.TOKEN_COUNT, other_count),
    (Code.RETAINED_PREFIX_CHANGED, other_digest),
    (Code.CUT_LIMIT_EXCEEDED, lambda _, draft: draft.acknowledging(effective_output_limit=0)),
)
"""Breaks that concern the acknowledgement alone, so that they can be added to any other."""


def broken(decide: Bytes, code: Code, edit: Break) -> CutDraft:
    """Return a call that cannot be restored because of one edit."""
    media = code in (Code.MEDIA_CAPTURE_REJECTED, Code.RETAINED_MEDIA_CHANGED) and edit not in WITHOUT_MEDIA
    return edit(decide, draw_draft(decide, media=media, least=2 if edit in SEVERAL_CHUNKS else 1))


@st.composite
def restores(draw: DrawFn, code: Code | None = None) -> RestoreCut:
    """Draw a restore that succeeds; with ``code``, one that is refused with it, and perhaps is wrong later too."""
    decide = draw_bytes(draw, 192)
    if code is None:
        return draw_draft(decide, media=decide.chance(96)).request
    draft = broken(decide, code, decide.choose(RESTORE_EDITS[code]))
    order = list(RESTORE_EDITS)
    for later, another in LATER_BREAKS:
        if order.index(later) > order.index(code) and decide.chance(64):
            draft = another(decide, draft)
    return draft.request


def odd_restores() -> Iterator[RestoreCut]:
    """Yield every break a few times."""
    rng = Random(0)
    for code, edits in RESTORE_EDITS.items():
        for edit in edits:
            for _ in range(8):
                yield broken(Bytes(rng.randbytes(192)), code, edit).request
