"""Rollouts with media in which one thing is wrong, by the code that they must be rejected with.

Most faults happen before anything is digested: an engine, a template or a truncation got something wrong, and what it
staged was committed to in good faith. So after an edit all hashes are made right again. Media columns are not covered
by any digest, and are simply overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks.media_columns import COLUMN_EDITS
from rollproof.properties.strategies.rollouts.history import Call, History, rehash
from rollproof.properties.strategies.rollouts.media import (
    MediaKind,
    attach,
    draw_kind,
    embedding_counts,
    illustrated,
    relaid,
    unused_token,
)
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.spec.bundles import staged_media
from rollproof.spec.constants import (
    IMAGE,
    MEDIA_SPANS,
    MEDIA_TENSOR_COLUMNS,
    VIDEO,
)
from rollproof.spec.judge.requests import FinalizeRollout
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.spans import placeholder_digest
from rollproof.spec.tensor import Tensor

MEDIA: Final = ReassemblerConfig(capture_media=True)

Spans = list[dict[str, Any]]
SpanEdit = Callable[[Bytes, Spans], None]
"""Changes the spans of a call in place."""
CallEdit = Callable[[Bytes, Call], Call]
"""Another call in place of one with media; lengths and hashes are made right afterwards."""


def spans_of(call: Call) -> Spans:
    """Return the spans of a call, as new objects."""
    found: Spans = [
        {name: [list(pair) for pair in value] if type(value) is list else value for name, value in item.items()}
        for item in (call.extras or {}).get(MEDIA_SPANS, [])
    ]
    return found


def illustrated_chain(history: History) -> list[Call]:
    """Return the calls of the chain that have media."""
    return [call for call in history.chain() if spans_of(call)]


def committed(history: History, changed: Call) -> History:
    """Return the history with one call exchanged, as if it had been staged so."""
    return rehash(relaid(history.with_call(changed)))


# ── spans that disagree with their call ─────────────────────────────────────────────────────────────────────────────

ODD: Final[dict[str, tuple[Any, ...]]] = {
    "modality": ("audio", None, 1, "Image", ["image"]),
    "placeholder_offset": (-1, 1.0, "0", None, True, -(2**63)),
    "placeholder_length": (0, -1, 1.5, None, False, "1"),
    "placeholder_digest": ("", "0" * 63, "A" * 64, None, 0, "0" * 64),
    "token_id": (-1, -(2**63), None, "18", 18.0, False),
    "embedding_spans": ([], None, {}, [[]], [[0]], [["0", 1]], [[0, 0]], [[0, 1, 2]], [[-1, 1]], [[0, True]], "x"),
    "imgs_sizes": ([], None, [[1]], [[0, 1]], [[1, -1]], [[2**31, 1]], [[1.0, 1]], [[1, 1, 1]], [1, 1], "x"),
}  # fmt: skip
"""Values that no item has. Extras have no digest for an integer beyond 64 bits, so none is here."""


def odd_field(decide: Bytes, spans: Spans) -> None:
    """Give a field a value that it cannot have."""
    name = decide.choose(tuple(ODD))
    decide.choose(spans)[name] = decide.choose(ODD[name])


def other_fields(decide: Bytes, spans: Spans) -> None:
    """Drop, rename or add a field."""
    item = decide.choose(spans)
    name = decide.choose(tuple(item))
    if decide.chance(128):
        item["extra"] = 0
    else:
        item[name.upper()] = item.pop(name)


def moved(decide: Bytes, spans: Spans) -> None:
    """Move an item away from its placeholder, embeddings included."""
    item = decide.choose(spans)
    by = decide.choose((1, -1, 7))
    item["placeholder_offset"] += by
    item["embedding_spans"] = [[start + by, length] for start, length in item["embedding_spans"]]


def stretched(decide: Bytes, spans: Spans) -> None:
    """Make a placeholder longer or shorter than it was hashed."""
    decide.choose(spans)["placeholder_length"] += decide.choose((1, -1, 2**62))


def split_run(_: Bytes, spans: Spans) -> None:
    """Write one run as two that touch, or twice."""
    item = spans[0]
    (start, length), *rest = item["embedding_spans"]
    pieces = [[start, 1], [start + 1, length - 1]] if length > 1 else [[start, 1], [start, 1]]
    item["embedding_spans"] = [*pieces, *rest]


def lost_position(_: Bytes, spans: Spans) -> None:
    """Drop an item's last embedding position from its runs, as a template that cuts it off does."""
    item = spans[-1]
    *rest, (start, length) = item["embedding_spans"]
    item["embedding_spans"] = [*rest, [start, length - 1]] if length > 1 else rest


def other_token(decide: Bytes, spans: Spans) -> None:
    """Make an item name another token than its positions hold."""
    decide.choose(spans)["token_id"] += 1 + decide.below(2)


def other_size(decide: Bytes, spans: Spans) -> None:
    """Make a size differ from the bundle's: the image was resized after it was hashed."""
    size = decide.choose(decide.choose(spans)["imgs_sizes"])
    size[decide.below(2)] += 1


def other_modality(_: Bytes, spans: Spans) -> None:
    """Call images videos, or videos images."""
    for item in spans:
        item["modality"] = VIDEO if item["modality"] == IMAGE else IMAGE


def reordered(_: Bytes, spans: Spans) -> None:
    """Put items out of ascending order; list a single one twice."""
    spans[:] = spans[::-1] if len(spans) > 1 else spans * 2


def lost_item(decide: Bytes, spans: Spans) -> None:
    """Drop the item of an image that is in the bundle."""
    spans.pop(decide.below(len(spans)))


def no_list(decide: Bytes, spans: Spans) -> None:
    """Replace an entry by something that is not an object."""
    odd: tuple[Any, ...] = (None, 0, "x", [], {})
    spans[decide.below(len(spans))] = decide.choose(odd)


def extra_frame(_: Bytes, spans: Spans) -> None:
    """Give an item one frame more than the bundle has."""
    spans[-1]["imgs_sizes"].append(list(spans[-1]["imgs_sizes"][-1]))


SPAN_EDITS: Final[tuple[SpanEdit, ...]] = (
    odd_field, other_fields, moved, stretched, split_run, lost_position, other_token, other_size, other_modality,
    reordered, lost_item, no_list, extra_frame,
)  # fmt: skip


def with_spans(call: Call, spans: Any) -> Call:
    """Return the call with other spans."""
    return evolve(call, extras={**(call.extras or {}), MEDIA_SPANS: spans})


def retokenized(call: Call, at: int, remove: int, insert: Sequence[int], *, generated: bool = False) -> Call:
    """Return the call with tokens exchanged from ``at`` on, counted from its own first token."""
    staged, count = call.staged, len(insert)
    mask, value = (1.0, -0.5) if generated else (0.0, 0.0)

    def spliced(column: tuple[Any, ...], new: Sequence[Any]) -> tuple[Any, ...]:
        return (*column[:at], *new, *column[at + remove :])

    return evolve(
        call,
        staged=evolve(
            staged,
            token_ids_delta=spliced(staged.token_ids_delta, insert),
            token_mask_delta=spliced(staged.token_mask_delta, [mask] * count),
            generation_log_probs_delta=spliced(staged.generation_log_probs_delta, [value] * count),
        ),
    )


def run_end(call: Call) -> int:
    """Return the position after the last embedding of the call's last item, counted from the call's first token."""
    start, length = spans_of(call)[-1]["embedding_spans"][-1]
    return int(start + length - call.staged.prev_len)


def expanded_twice(decide: Bytes, call: Call) -> Call:
    """Expand the last placeholder further than its spans know: 4 tokens of one image become 16."""
    token_id = spans_of(call)[-1]["token_id"]
    return retokenized(call, run_end(call), 0, [token_id] * (1 + decide.below(12)))


def truncated(_: Bytes, call: Call) -> Call:
    """Cut off the last embedding token, but keep its pixels."""
    return retokenized(call, run_end(call) - 1, 1, [])


def overwritten_token(decide: Bytes, call: Call) -> Call:
    """Re-tokenise a placeholder token into another one."""
    return retokenized(call, run_end(call) - 1, 1, [decide.choose((0, 5, 2**40))])


def generated_placeholder(_: Bytes, call: Call) -> Call:
    """Let the policy sample the token that represents embeddings."""
    token_id = spans_of(call)[-1]["token_id"]
    return retokenized(call, len(call.staged.token_ids_delta) - 1, 1, [token_id], generated=True)


def generated_carry(_: Bytes, call: Call) -> Call:
    """Mark placeholder tokens as generated, from the last embedding on."""
    at, ids = run_end(call) - 1, call.staged.token_ids_delta
    return retokenized(call, at, len(ids) - at, ids[at:], generated=True)


def generated_tail(decide: Bytes, call: Call) -> Call:
    """Continue the placeholder after its last embedding, into the generated tokens."""
    item, ids = spans_of(call)[-1], call.staged.token_ids_delta
    at, end = run_end(call), item["placeholder_offset"] + item["placeholder_length"] - call.staged.prev_len
    if at == end:
        return generated_carry(decide, call)
    return retokenized(call, at, len(ids) - at, ids[at:], generated=True)


def lost_pixels(_: Bytes, call: Call) -> Call:
    """Keep the spans, but lose the pixels."""
    assert call.media is not None
    return evolve(call, media=staged_media(None, call.media[MEDIA_TENSOR_COLUMNS[0]].dtype))


def lost_spans(decide: Bytes, call: Call) -> Call:
    """Keep the pixels, but lose the spans: a sibling's images."""
    extras = {name: value for name, value in (call.extras or {}).items() if name != MEDIA_SPANS}
    if decide.chance(128):
        extras[MEDIA_SPANS] = decide.choose(([], None, {}, "x", 0))
    return evolve(call, extras=extras or None)


def swapped_frames(decide: Bytes, call: Call) -> Call:
    """Divide the frames of a call's videos among other videos; without two frames, lose the pixels."""
    assert call.media is not None
    counts = [int(count) for count in call.media["media_num_frames"].values()]
    total = sum(counts)
    divided = [1] * total if counts == [total] else [total]
    if total < 2:
        return lost_pixels(decide, call)
    return evolve(call, media={**call.media, "media_num_frames": Tensor.of("int32", divided, (1, len(divided)))})


CALL_EDITS: Final[tuple[CallEdit, ...]] = (
    expanded_twice, truncated, overwritten_token, generated_placeholder, generated_carry, generated_tail,
    lost_pixels, lost_spans, swapped_frames,
)  # fmt: skip


def recounted(call: Call, count: int) -> Call:
    """Give the call's last item this many embeddings, in its tokens and in its spans."""
    spans = spans_of(call)
    item = spans[-1]
    ids, offset = [item["token_id"]] * count, item["placeholder_offset"]
    changed = retokenized(call, offset - call.staged.prev_len, item["placeholder_length"], ids)
    spans[-1] = {
        **item,
        "placeholder_length": count,
        "placeholder_digest": placeholder_digest(ids),
        "embedding_spans": [[offset, count]],
    }
    return with_spans(changed, spans)


@st.composite
def miscounted(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout whose last image has another merge factor than the ones before, or a video too many embeddings."""
    decide = draw_bytes(draw)
    kind = evolve(draw_kind(decide), merge=2 + decide.below(2))
    history = draw(illustrated(kind, calls=2))
    call = illustrated_chain(history)[-1]
    most = embedding_counts(kind, tuple(map(tuple, spans_of(call)[-1]["imgs_sizes"])))[1]
    known = decide.chance(64)
    patches = most * kind.merge
    wrong = [count for count in range(1, patches + 4) if count != most]
    if kind.video:
        wrong = [count for count in range(1, patches + 4) if count > (most if known else patches)]
    config = evolve(MEDIA, patches_per_embedding=kind.merge if known else None)
    return committed(history, recounted(call, decide.choose(wrong))).finalize(config)


def mismatched(decide: Bytes, history: History) -> History:
    """Make the last call of the chain with media disagree with itself, and commit to all of it."""
    call = illustrated_chain(history)[-1]
    if decide.chance(144):
        spans = spans_of(call)
        decide.choose(SPAN_EDITS)(decide, spans)
        return committed(history, with_spans(call, spans))
    return committed(history, decide.choose(CALL_EDITS)(decide, call))


@st.composite
def disagreeing(draw: DrawFn, edit: CallEdit) -> FinalizeRollout:
    """Draw a rollout whose last call with media went through one of ``CALL_EDITS``."""
    history = draw(illustrated())
    call = illustrated_chain(history)[-1]
    return committed(history, edit(draw_bytes(draw), call)).finalize(MEDIA)


# ── columns that are not a bundle ───────────────────────────────────────────────────────────────────────────────────


def bad_columns(decide: Bytes, history: History) -> FinalizeRollout:
    """Give one call of the chain media columns that are not a bundle."""
    call = decide.choose(illustrated_chain(history))
    edits = COLUMN_EDITS if len(illustrated_chain(history)) == 1 else COLUMN_EDITS[:4]
    return overwritten(history, call, decide.choose(edits)(decide, call))


def overwritten(history: History, call: Call, columns: Mapping[str, Tensor | None]) -> FinalizeRollout:
    """Return the request to finalize a history one of whose staged rows was changed afterwards."""
    rows = history.rows()
    changed = {**rows[call.key], **columns}
    rows[call.key] = {name: value for name, value in changed.items() if value is not None}
    return history.finalize(MEDIA, staging=Staging(rows))


# ── calls that do not go together ───────────────────────────────────────────────────────────────────────────────────


def other_kind(decide: Bytes, kind: MediaKind) -> MediaKind:
    """Return a kind that differs in one property."""
    return decide.choose(
        (
            evolve(kind, video=not kind.video),
            evolve(kind, patch=kind.patch + 1),
            evolve(kind, pixel_dtype="float32" if kind.pixel_dtype != "float32" else "float16"),
        )
    )


def unlike(decide: Bytes, history: History, kind: MediaKind) -> History:
    """Give the last call with media another kind of media than the calls before it have."""
    call = illustrated_chain(history)[-1]
    plain = evolve(call, extras=None, media=None)
    return committed(history, attach(plain, other_kind(decide, kind), unused_token(history), decide, 256))


# ── by code ─────────────────────────────────────────────────────────────────────────────────────────────────────────

ROLLOUT_CODES: Final = (Code.MEDIA_CHAIN_INCOMPATIBLE, Code.INVALID_MEDIA_COLUMNS, Code.MEDIA_PLACEHOLDER_MISMATCH)


@st.composite
def _broken(draw: DrawFn, code: Code) -> FinalizeRollout:
    kind = draw_kind(draw_bytes(draw))
    decide = draw_bytes(draw, 64)
    if code is Code.MEDIA_CHAIN_INCOMPATIBLE:
        return unlike(decide, draw(illustrated(kind, calls=2)), kind).finalize(MEDIA)
    history = draw(illustrated(kind, calls=1))
    if code is Code.INVALID_MEDIA_COLUMNS:
        return bad_columns(decide, history)
    return mismatched(decide, history).finalize(MEDIA)


def broken_media(code: Code) -> SearchStrategy[FinalizeRollout]:
    """Draw rollouts that are rejected with ``code``, one of ``ROLLOUT_CODES``."""
    return _broken(code)
