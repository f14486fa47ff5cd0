"""Images and videos for rollouts: bundles, spans and placeholders that agree, attached to histories of any shape.

A call gets as many items as its carry has room for. Their placeholders are written over its carry tokens, and all
hashes are made right again, so that a history with media is as valid as it was without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import Call, History, rehash
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.spec.bundles import CHANNELS, staged_media
from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    BUNDLE_PIXELS,
    BUNDLE_SIZES,
    IMAGE,
    MEDIA_SPANS,
    VIDEO,
)
from rollproof.spec.spans import MediaItem, item_value, placeholder_digest
from rollproof.spec.tensor import ITEM_SIZES, Tensor

Sizes = tuple[tuple[int, int], ...]
"""Height and width of every frame of one item; an image has one."""

TOKEN_IDS: Final = (18, 151655, 2**31, 2**53 + 1, 2**62)
"""Ids that may represent embeddings; the first that the history does not use."""


@frozen
class MediaKind:
    """The properties that all media of a group share."""

    pixel_dtype: str = "bfloat16"
    patch: int = 1
    video: bool = False
    merge: int = 1
    """How many patches one embedding represents (decision D37)."""

    @property
    def modality(self) -> str:
        """The modality of every item."""
        return VIDEO if self.video else IMAGE


# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def draw_kind(decide: Bytes) -> MediaKind:
    """Draw a kind: any pixel dtype, patches of 1 to 3 pixels, images or videos, 1 to 4 patches an embedding."""
    return MediaKind(
        decide.choose(("bfloat16", "float32", "float16")),
        1 + decide.choose((0, 0, 1, 2)),
        decide.chance(96),
        decide.choose((1, 1, 2, 3, 4)),
    )


def draw_sizes(decide: Bytes, kind: MediaKind) -> Sizes:
    """Draw an item's frames: one for an image, up to three for a video; each of one, two or four embeddings."""
    count = 1 + decide.below(3) if kind.video else 1
    width = kind.patch * kind.merge
    return tuple(((1 + decide.below(2)) * kind.patch, (1 + decide.below(2)) * width) for _ in range(count))


def embedding_counts(kind: MediaKind, sizes: Sizes) -> tuple[int, int]:
    """Return how many embeddings an item of these sizes has, at least and at most; an image has one number."""
    most = sum(height * width for height, width in sizes) // (kind.patch**2 * kind.merge)
    return (1, most) if kind.video else (most, most)


def pixel_bytes(decide: Bytes, size: int) -> bytes:
    """Return pixels: a ramp, or one element repeated, among them NaN payloads, infinities and both zeros."""
    first, step = decide.next(), decide.next()
    if step < 192:
        return bytes((first + index * (step | 1)) & 0xFF for index in range(size))
    element = bytes((first, 0x00, 0xC0, 0x7F, 0x00, 0x00, 0x80, 0xFF))
    return (element * (size // 8 + 1))[:size]


def make_bundle(
    kind: MediaKind, items: Sequence[Sizes], decide: Bytes, index_dtype: str = "int32"
) -> dict[str, Tensor]:
    """Return the bundle of some items, in order; at least one."""
    sizes = [size for item in items for size in item]
    patches = sum(height * width for height, width in sizes) // kind.patch**2
    features = CHANNELS * kind.patch**2
    data = pixel_bytes(decide, patches * features * ITEM_SIZES[kind.pixel_dtype])
    bundle = {
        BUNDLE_PIXELS: Tensor(kind.pixel_dtype, (1, patches, features), data),
        BUNDLE_SIZES: Tensor.of(index_dtype, [side for size in sizes for side in size], (len(sizes), 2)),
    }
    if kind.video:
        bundle[BUNDLE_FRAMES] = Tensor.of(index_dtype, [len(item) for item in items])
    return bundle


@st.composite
def bundles(draw: DrawFn, kind: MediaKind | None = None) -> dict[str, Tensor]:
    """Draw valid bundles of one to three items, of any kind unless one is given."""
    decide = draw_bytes(draw)
    kind = kind or draw_kind(decide)
    items = [draw_sizes(decide, kind) for _ in range(1 + decide.below(3))]
    return make_bundle(kind, items, decide, decide.choose(("int32", "int64")))


# ── placeholders ────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Expansion:
    """A carry with placeholders written into it, and the items that describe them."""

    carry: tuple[int, ...]
    items: tuple[MediaItem, ...]


def expand(
    kind: MediaKind, items: Sequence[Sizes], carry: Sequence[int], start: int, token_id: int, decide: Bytes
) -> Expansion:
    """Write placeholders for the items over carry tokens, from the first on: as many as they need, some longer.

    ``start`` is the position of the first carry token in the sequence.
    """
    ids = list(carry)
    position, made = 0, []
    counts = [embedding_counts(kind, sizes) for sizes in items]
    for index, (sizes, (least, most)) in enumerate(zip(items, counts, strict=True)):
        room = len(ids) - position - sum(needed for needed, _ in counts[index:])
        gap = decide.below(min(2, room + 1))
        length = least + decide.below(min(5, room - gap + 1))
        offset = position + gap
        embedded = embedding_positions(decide, length, least, most)
        for place in range(length):
            ids[offset + place] = token_id if place in embedded else token_id + 1
        placeholder = ids[offset : offset + length]
        made.append(
            MediaItem(
                modality=kind.modality,
                placeholder_offset=start + offset,
                placeholder_length=length,
                placeholder_digest=placeholder_digest(placeholder),
                token_id=token_id,
                embedding_spans=runs(start + offset, embedded),
                imgs_sizes=sizes,
            )
        )
        position = offset + length
    return Expansion(tuple(ids), tuple(made))


def embedding_positions(decide: Bytes, length: int, least: int, most: int) -> list[int]:
    """Choose which tokens of a placeholder hold embeddings: the first ones, or some, as many as are allowed."""
    pattern = decide.next()
    chosen = [index for index in range(length) if pattern < 96 or pattern >> index & 1]
    others = [index for index in reversed(range(length)) if index not in chosen]
    return sorted((chosen + others)[: max(least, min(most, len(chosen)))])


def runs(offset: int, positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return positions as maximal runs (start, length), in absolute positions."""
    found: list[tuple[int, int]] = []
    for position in positions:
        start, length = found[-1] if found else (0, 0)
        if found and start + length == offset + position:
            found[-1] = start, length + 1
        else:
            found.append((offset + position, 1))
    return tuple(found)


def unused_token(history: History) -> int:
    """Return an id for embeddings such that neither it nor its successor occurs in the history."""
    used = {token for call in history.calls for token in call.staged.token_ids_delta}
    return next(token for token in TOKEN_IDS if not {token, token + 1} & used)


# ── histories ───────────────────────────────────────────────────────────────────────────────────────────────────────


def with_bundle(call: Call, kind: MediaKind, items: Sequence[MediaItem], bundle: Mapping[str, Tensor] | None) -> Call:
    """Return the call with these spans in its extras and this bundle in its media columns.

    Hashes are not made right.
    """
    extras = call.extras
    if items:
        extras = {**(extras or {}), MEDIA_SPANS: [item_value(item) for item in items]}
    return evolve(call, extras=extras, media=staged_media(bundle, kind.pixel_dtype))


def attach(call: Call, kind: MediaKind, token_id: int, decide: Bytes, share: int) -> Call:
    """Return the call with as many items as drawn, as far as its carry has room; ``share`` of 256 calls get any."""
    carry = call.staged.token_mask_delta.count(0.0)
    count = min(carry, 1 + decide.below(3)) if decide.chance(share) or share >= 256 else 0
    if not count:
        plain = with_bundle(call, kind, (), None)
        return evolve(plain, extras={**(call.extras or {}), MEDIA_SPANS: []}) if decide.chance(48) else plain
    sizes, room = [], carry
    for left in reversed(range(count)):
        drawn = draw_sizes(decide, kind)
        fits = embedding_counts(kind, drawn)[0] <= room - left
        sizes.append(drawn if fits else ((kind.patch, kind.patch * kind.merge),))
        room -= embedding_counts(kind, sizes[-1])[0]
    staged = call.staged
    made = expand(kind, sizes, staged.token_ids_delta[:carry], staged.prev_len, token_id, decide)
    bundle = make_bundle(kind, sizes, decide)
    changed = evolve(call, staged=evolve(staged, token_ids_delta=made.carry + staged.token_ids_delta[carry:]))
    return with_bundle(changed, kind, made.items, bundle)


@st.composite
def with_media(draw: DrawFn, history: History, kind: MediaKind | None = None, *, share: float = 0.75) -> History:
    """Draw the history in a media partition: about ``share`` of the calls that have a carry get images or videos."""
    decide = draw_bytes(draw)
    kind = kind or draw_kind(decide)
    token_id = unused_token(history)
    calls = [attach(call, kind, token_id, draw_bytes(draw, 64), int(256 * share)) for call in history.calls]
    return rehash(evolve(history, calls=tuple(calls)))


@st.composite
def _media_histories(draw: DrawFn, kind: MediaKind | None, share: float | None, options: Mapping[str, Any]) -> History:
    history = draw(histories(**{"max_calls": 4, "max_carry": 8, **options}))
    chosen = draw(st.sampled_from([0.75, 1.0, 0.5, 0.0])) if share is None else share
    return draw(with_media(history, kind, share=chosen))


def media_histories(
    kind: MediaKind | None = None, *, share: float | None = None, **options: Any
) -> SearchStrategy[History]:
    """Draw valid rollouts of a media partition; ``options`` are those of ``histories``."""
    return _media_histories(kind, share, options)


@st.composite
def _illustrated(draw: DrawFn, kind: MediaKind | None, calls: int, options: Mapping[str, Any]) -> History:
    decide = draw_bytes(draw)
    kind = kind or draw_kind(decide)
    history = draw(histories(min_calls=calls, max_calls=max(3, calls), min_chain=calls, max_carry=8, **options))
    history = evolve(history, terminal_call_id=deepest(history).id)
    widened = tuple(wider(call) if call in history.chain()[:calls] else call for call in history.calls)
    history = relaid(evolve(history, calls=widened))
    token_id = unused_token(history)
    chosen = {call.id for call in history.chain()[:calls]}
    made = [
        attach(call, kind, token_id, draw_bytes(draw, 64), 256 if call.id in chosen else 128) for call in history.calls
    ]
    return rehash(evolve(history, calls=tuple(made)))


def illustrated(kind: MediaKind | None = None, *, calls: int = 1, **options: Any) -> SearchStrategy[History]:
    """Draw rollouts whose chain has at least ``calls`` calls with media; ``options`` are those of ``histories``."""
    return _illustrated(kind, calls, options)


def deepest(history: History) -> Call:
    """Return a call with the longest path to its root."""
    return max(history.calls, key=lambda call: len(history.path(call.id)))


def wider(call: Call) -> Call:
    """Return the call with room for a placeholder: two carry tokens more."""
    staged = call.staged
    return evolve(
        call,
        staged=evolve(
            staged,
            token_ids_delta=(1, 2, *staged.token_ids_delta),
            token_mask_delta=(0.0, 0.0, *staged.token_mask_delta),
            generation_log_probs_delta=(0.0, 0.0, *staged.generation_log_probs_delta),
        ),
    )


def relaid(history: History) -> History:
    """Return the history with all lengths made right, parents first."""
    ends: dict[str | None, int] = {None: 0}
    done: dict[str, Call] = {}
    for start in history.calls:
        for call in history.path(start.id):
            if call.id not in done:
                before, size = ends[call.staged.parent_call_id], len(call.staged.token_ids_delta)
                staged = evolve(call.staged, prev_len=before, delta_len=size, cum_len=before + size)
                done[call.id], ends[call.id] = evolve(call, staged=staged), before + size
    return evolve(history, calls=tuple(done[call.id] for call in history.calls))


# ── tensors of any kind ─────────────────────────────────────────────────────────────────────────────────────────────

DTYPES: Final = tuple(ITEM_SIZES)
SHAPES: Final[tuple[tuple[int, ...], ...]] = (
    (), (0,), (1,), (3,), (2, 3), (3, 2), (1, 0, 2), (2, 1, 2), (2, 2), (6,), (1, 1, 1, 1),
)  # fmt: skip


def draw_tensor(decide: Bytes, dtypes: Sequence[str] = DTYPES, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Tensor:
    """Draw a tensor of any dtype that the contract names, 0-dimensional, empty or small, with any bytes."""
    dtype, shape = decide.choose(dtypes), decide.choose(shapes)
    count = 1
    for dimension in shape:
        count *= dimension
    data = pixel_bytes(decide, count * ITEM_SIZES[dtype])
    return Tensor(dtype, shape, bytes(byte & 1 for byte in data) if dtype == "bool" else data)


def tensors(dtypes: Sequence[str] = DTYPES, shapes: Sequence[tuple[int, ...]] = SHAPES) -> SearchStrategy[Tensor]:
    """Draw tensors by dtype and shape: NaN payloads, both zeros, no elements, no dimensions."""
    return st.binary(min_size=8, max_size=8).map(lambda data: draw_tensor(Bytes(data), dtypes, shapes))
