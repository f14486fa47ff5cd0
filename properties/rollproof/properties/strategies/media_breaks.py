"""Rollouts with media in which one thing is wrong, by the code that they must be rejected with.

Most faults are older than the digests: an engine, a template or a truncation got something wrong, and what it staged
was committed to in good faith. So after an edit all hashes are made right again. Media columns are covered by no
digest, and are simply overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.history import Call, History, rehash
from rollproof.properties.strategies.media import MediaKind, attach, draw_kind, illustrated, relaid, unused_token
from rollproof.properties.strategies.values import Bytes, draw_bytes
from rollproof.spec.bundles import absent, staged_media
from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    BUNDLE_PIXELS,
    BUNDLE_SIZES,
    IMAGE,
    MEDIA_SPANS,
    MEDIA_TENSOR_COLUMNS,
    VIDEO,
)
from rollproof.spec.plane import Staging
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.requests import FinalizeRollout
from rollproof.spec.tensor import ITEM_SIZES, Tensor

MEDIA: Final = ReassemblerConfig(capture_media=True)

Spans = list[dict[str, Any]]
SpanEdit = Callable[[Bytes, Spans], None]
"""Changes the spans of a call in place."""
CallEdit = Callable[[Bytes, Call], Call]
"""Another call in place of one with media; lengths and hashes are made right afterwards."""
ColumnEdit = Callable[[Bytes, Call], Mapping[str, Tensor | None]]
"""Columns to overwrite, or to drop, in the staged row of a call with media."""


def spans_of(call: Call) -> Spans:
    """The spans of a call, as new objects."""
    found: Spans = [
        {name: [list(pair) for pair in value] if type(value) is list else value for name, value in item.items()}
        for item in (call.extras or {}).get(MEDIA_SPANS, [])
    ]
    return found


def illustrated_chain(history: History) -> list[Call]:
    """The calls of the chain that have media."""
    return [call for call in history.chain() if spans_of(call)]


def committed(history: History, changed: Call) -> History:
    """The history with one call exchanged, as if it had been staged so."""
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
    """A field has a value that it cannot have."""
    name = decide.choose(tuple(ODD))
    decide.choose(spans)[name] = decide.choose(ODD[name])


def other_fields(decide: Bytes, spans: Spans) -> None:
    """A field is missing, has another name, or is one too many."""
    item = decide.choose(spans)
    name = decide.choose(tuple(item))
    if decide.chance(128):
        item["extra"] = 0
    else:
        item[name.upper()] = item.pop(name)


def moved(decide: Bytes, spans: Spans) -> None:
    """An item stands elsewhere than its placeholder, embeddings and all."""
    item = decide.choose(spans)
    by = decide.choose((1, -1, 7))
    item["placeholder_offset"] += by
    item["embedding_spans"] = [[start + by, length] for start, length in item["embedding_spans"]]


def stretched(decide: Bytes, spans: Spans) -> None:
    """A placeholder reaches further, or less far, than it was hashed."""
    decide.choose(spans)["placeholder_length"] += decide.choose((1, -1, 2**62))


def split_run(_: Bytes, spans: Spans) -> None:
    """One run is written as two that touch, or is written twice."""
    item = spans[0]
    (start, length), *rest = item["embedding_spans"]
    pieces = [[start, 1], [start + 1, length - 1]] if length > 1 else [[start, 1], [start, 1]]
    item["embedding_spans"] = [*pieces, *rest]


def lost_position(_: Bytes, spans: Spans) -> None:
    """The last embedding position of an item is missing from its runs, as where a template cut it."""
    item = spans[-1]
    *rest, (start, length) = item["embedding_spans"]
    item["embedding_spans"] = [*rest, [start, length - 1]] if length > 1 else rest


def other_token(decide: Bytes, spans: Spans) -> None:
    """An item names another token than its positions hold."""
    decide.choose(spans)["token_id"] += 1 + decide.below(2)


def other_size(decide: Bytes, spans: Spans) -> None:
    """A size differs from the bundle's: the image was resized after it was hashed."""
    size = decide.choose(decide.choose(spans)["imgs_sizes"])
    size[decide.below(2)] += 1


def other_modality(_: Bytes, spans: Spans) -> None:
    """Images are called videos, or videos images."""
    for item in spans:
        item["modality"] = VIDEO if item["modality"] == IMAGE else IMAGE


def reordered(_: Bytes, spans: Spans) -> None:
    """Items do not ascend; a single one is listed twice."""
    spans[:] = spans[::-1] if len(spans) > 1 else spans * 2


def lost_item(decide: Bytes, spans: Spans) -> None:
    """The bundle holds an image that no item names."""
    spans.pop(decide.below(len(spans)))


def no_list(decide: Bytes, spans: Spans) -> None:
    """An entry is no object."""
    odd: tuple[Any, ...] = (None, 0, "x", [], {})
    spans[decide.below(len(spans))] = decide.choose(odd)


def extra_frame(_: Bytes, spans: Spans) -> None:
    """An item has one frame more than the bundle."""
    spans[-1]["imgs_sizes"].append(list(spans[-1]["imgs_sizes"][-1]))


SPAN_EDITS: Final[tuple[SpanEdit, ...]] = (
    odd_field, other_fields, moved, stretched, split_run, lost_position, other_token, other_size, other_modality,
    reordered, lost_item, no_list, extra_frame,
)  # fmt: skip


def with_spans(call: Call, spans: Any) -> Call:
    """The call with other spans."""
    return evolve(call, extras={**(call.extras or {}), MEDIA_SPANS: spans})


def retokenized(call: Call, at: int, remove: int, insert: Sequence[int], *, generated: bool = False) -> Call:
    """The call with tokens exchanged from ``at`` on, relative to its own first."""
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
    """The position after the last embedding of the call's last item, relative to the call's first token."""
    start, length = spans_of(call)[-1]["embedding_spans"][-1]
    return int(start + length - call.staged.prev_len)


def expanded_twice(decide: Bytes, call: Call) -> Call:
    """The last placeholder was expanded further than its spans know: 4 tokens of one image became 16."""
    token_id = spans_of(call)[-1]["token_id"]
    return retokenized(call, run_end(call), 0, [token_id] * (1 + decide.below(12)))


def truncated(_: Bytes, call: Call) -> Call:
    """The last embedding token was cut off, its pixels were not."""
    return retokenized(call, run_end(call) - 1, 1, [])


def overwritten_token(decide: Bytes, call: Call) -> Call:
    """A placeholder token was re-tokenised into another one."""
    return retokenized(call, run_end(call) - 1, 1, [decide.choose((0, 5, 2**40))])


def generated_placeholder(_: Bytes, call: Call) -> Call:
    """The policy sampled the token that stands for embeddings."""
    token_id = spans_of(call)[-1]["token_id"]
    return retokenized(call, len(call.staged.token_ids_delta) - 1, 1, [token_id], generated=True)


def generated_carry(_: Bytes, call: Call) -> Call:
    """Placeholder tokens are marked as generated, from the last embedding on."""
    at, ids = run_end(call) - 1, call.staged.token_ids_delta
    return retokenized(call, at, len(ids) - at, ids[at:], generated=True)


def generated_tail(decide: Bytes, call: Call) -> Call:
    """The placeholder goes on after its last embedding, into what is generated."""
    item, ids = spans_of(call)[-1], call.staged.token_ids_delta
    at, end = run_end(call), item["placeholder_offset"] + item["placeholder_length"] - call.staged.prev_len
    if at == end:
        return generated_carry(decide, call)
    return retokenized(call, at, len(ids) - at, ids[at:], generated=True)


def lost_pixels(_: Bytes, call: Call) -> Call:
    """The spans are there, the pixels are not."""
    assert call.media is not None
    return evolve(call, media=staged_media(None, call.media[MEDIA_TENSOR_COLUMNS[0]].dtype))


def lost_spans(decide: Bytes, call: Call) -> Call:
    """The pixels are there, the spans are not: a sibling's images."""
    extras = {name: value for name, value in (call.extras or {}).items() if name != MEDIA_SPANS}
    if decide.chance(128):
        extras[MEDIA_SPANS] = decide.choose(([], None, {}, "x", 0))
    return evolve(call, extras=extras or None)


def swapped_frames(decide: Bytes, call: Call) -> Call:
    """The frames of a call's videos are divided among other videos; without two frames, the pixels are lost."""
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


def mismatched(decide: Bytes, history: History) -> History:
    """The last call of the chain with media disagrees with itself, and everything is committed to."""
    call = illustrated_chain(history)[-1]
    if decide.chance(144):
        spans = spans_of(call)
        decide.choose(SPAN_EDITS)(decide, spans)
        return committed(history, with_spans(call, spans))
    return committed(history, decide.choose(CALL_EDITS)(decide, call))


@st.composite
def disagreeing(draw: DrawFn, edit: CallEdit) -> FinalizeRollout:
    """A rollout whose last call with media went through one of ``CALL_EDITS``."""
    history = draw(illustrated())
    call = illustrated_chain(history)[-1]
    return committed(history, edit(draw_bytes(draw), call)).finalize(MEDIA)


# ── columns that are no bundle ──────────────────────────────────────────────────────────────────────────────────────


def pixels_of(call: Call) -> Tensor:
    """The staged pixels of a call with media."""
    assert call.media is not None
    return call.media["media_imgs"]


def zeros(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of zeros."""
    count = 1
    for dimension in shape:
        count *= dimension
    return Tensor(dtype, shape, bytes(count * ITEM_SIZES[dtype]))


def dropped_column(decide: Bytes, _: Call) -> Mapping[str, Tensor | None]:
    """A column is not there."""
    return {decide.choose(MEDIA_TENSOR_COLUMNS): None}


def odd_pixels(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Pixels of another dtype, rank or feature width, none at all, or one patch more."""
    dtype, (_, patches, width) = pixels_of(call).dtype, pixels_of(call).shape
    options = (
        zeros("uint8", (1, patches, width)),
        zeros("float64", (1, patches, width)),
        zeros(dtype, (1, patches * width)),
        zeros(dtype, (1,)),
        zeros(dtype, (1, patches, width, 1)),
        zeros(dtype, (1, 0, width)),
        zeros(dtype, (1, patches + 1, width)),
        zeros(dtype, (1, patches, 0)),
        zeros(dtype, (1, patches, 4)),
        zeros(dtype, (1, patches, 6)),
        absent(BUNDLE_PIXELS, dtype),
    )
    return {"media_imgs": decide.choose(options)}


def odd_sizes(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Sizes of another dtype or rank, none at all, not positive, or that do not add up to the pixels."""
    assert call.media is not None
    sizes = call.media["media_imgs_sizes"]
    values, count = list(sizes.values()), sizes.shape[1]
    options = (
        Tensor.of("int64", values, sizes.shape),
        Tensor.of("float32", values, sizes.shape),
        Tensor.of("int32", values, (1, 2 * count)),
        Tensor.of("int32", [], (1, 0, 2)),
        Tensor.of("int32", [0, *values[1:]], sizes.shape),
        Tensor.of("int32", [-values[0], -values[1], *values[2:]], sizes.shape),
        Tensor.of("int32", [2**31 - 1, *values[1:]], sizes.shape),
        Tensor.of("int32", [*values, *values[:2]], (1, count + 1, 2)),
        absent(BUNDLE_SIZES, "float32"),
    )
    return {"media_imgs_sizes": decide.choose(options)}


def wrapping_sizes(_: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Seventeen sizes that add up to one patch in 64 bits, and to 2**64 + 1 in truth (decision D18)."""
    sizes = [2**30] * 32 + [1, 1]
    return {
        "media_imgs": zeros(pixels_of(call).dtype, (1, 1, 3)),
        "media_imgs_sizes": Tensor.of("int32", sizes, (1, 17, 2)),
        "media_has_frames": Tensor.of("bool", [False]),
        "media_num_frames": absent(BUNDLE_FRAMES, "float32"),
    }


def indivisible(_: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Sizes whose area is right and which do not consist of whole patches."""
    return {
        "media_imgs": zeros(pixels_of(call).dtype, (1, 1, 12)),
        "media_imgs_sizes": Tensor.of("int32", [1, 4], (1, 1, 2)),
        "media_has_frames": Tensor.of("bool", [False]),
        "media_num_frames": absent(BUNDLE_FRAMES, "float32"),
    }


def odd_frames(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Frame counts of another dtype or rank, not positive, that do not add up, or where there should be none."""
    assert call.media is not None
    counts = [int(count) for count in call.media["media_num_frames"].values()]
    options = [
        Tensor.of("int64", counts, (1, len(counts))),
        Tensor.of("int32", counts[:1], (1,)),
        Tensor.of("int32", [count + 1 for count in counts], (1, len(counts))),
        Tensor.of("int32", [*counts, 1], (1, len(counts) + 1)),
        Tensor.of("int32", [*counts, 0], (1, len(counts) + 1)),
        Tensor.of("int32", [], (1, 0)),
    ]
    return {"media_num_frames": decide.choose(options)}


COLUMN_EDITS: Final[tuple[ColumnEdit, ...]] = (
    dropped_column, odd_pixels, odd_sizes, odd_frames, wrapping_sizes, indivisible,
)  # fmt: skip


def bad_columns(decide: Bytes, history: History) -> FinalizeRollout:
    """One call of the chain has media columns that are no bundle."""
    call = decide.choose(illustrated_chain(history))
    edits = COLUMN_EDITS if len(illustrated_chain(history)) == 1 else COLUMN_EDITS[:4]
    return overwritten(history, call, decide.choose(edits)(decide, call))


def overwritten(history: History, call: Call, columns: Mapping[str, Tensor | None]) -> FinalizeRollout:
    """The request to finalize a history one of whose staged rows was changed behind its back."""
    rows = history.rows()
    changed = {**rows[call.key], **columns}
    rows[call.key] = {name: value for name, value in changed.items() if value is not None}
    return history.finalize(MEDIA, staging=Staging(rows))


# ── calls that do not go together ───────────────────────────────────────────────────────────────────────────────────


def other_kind(decide: Bytes, kind: MediaKind) -> MediaKind:
    """A kind that differs in one thing."""
    return decide.choose(
        (
            evolve(kind, video=not kind.video),
            evolve(kind, patch=kind.patch + 1),
            evolve(kind, pixel_dtype="float32" if kind.pixel_dtype != "float32" else "float16"),
        )
    )


def unlike(decide: Bytes, history: History, kind: MediaKind) -> History:
    """The last call with media has another kind of media than those before it."""
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
    """Rollouts that are rejected with ``code``, one of ``ROLLOUT_CODES``."""
    return _broken(code)
