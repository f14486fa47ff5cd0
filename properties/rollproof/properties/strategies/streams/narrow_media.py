"""Streams of one feature each, as in ``narrow``, of the area media."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks.media import MEDIA, mismatched
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.media import (
    TOKEN_IDS,
    MediaKind,
    Sizes,
    illustrated,
    make_bundle,
    media_histories,
    relaid,
    wider,
)
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.media import DEFERRED, DIMS
from rollproof.properties.strategies.streams.narrow import NARROW
from rollproof.spec.constants import MEDIA_SPANS, PIXEL_DTYPES
from rollproof.spec.judge.requests import Area, ChainMedia, FinalizeRollout, StageMedia

EQUAL_AREAS: Final[tuple[tuple[tuple[Sizes, ...], ...], ...]] = (
    ((((1, 2),),), (((2, 1),),)),
    ((((2, 1),),), (((1, 2),),), (((2, 1),),)),
    ((((2, 2),),), (((1, 4),),), (((4, 1),),)),
    ((((1, 2),), ((1, 1),)), (((1, 1),), ((1, 2),))),
    ((((2, 2),), ((1, 3),)), (((1, 3),), ((4, 1),))),
    ((((1, 1),),), (((1, 2),),), (((1, 1),),)),
    ((((1, 6),),), (((1, 6),),), (((2, 3),),)),
    ((((3, 2),),), (((2, 3),),), (((2, 3),),)),
)
"""Per chain, part and image, its sizes: parts of as many images with the same area, in other sizes or another order."""


def equal_areas() -> Iterator[ChainMedia]:
    """Yield chains whose parts have equally many patches: of images, and of videos with these frames."""
    for sizes in EQUAL_AREAS:
        parts = [make_bundle(MediaKind(), items, Bytes(bytes((9 * at, 2)))) for at, items in enumerate(sizes)]
        yield ChainMedia(tuple(parts))
    video = MediaKind(video=True)
    for frames in (((1, 2), (2, 1)), ((2, 1), (1, 2))):
        yield ChainMedia(tuple(make_bundle(video, [each], Bytes(b"")) for each in (frames, frames[::-1])))


def mixed_kinds() -> Iterator[ChainMedia]:
    """Yield chains of images and videos, whichever comes first and however many follow."""
    sizes: Sizes = ((1, 2),)
    for order in (*product((False, True), repeat=2), *product((False, True), repeat=3)):
        yield ChainMedia(tuple(make_bundle(MediaKind(video=video), [sizes], Bytes(b"")) for video in order))


def without_media() -> Iterator[StageMedia]:
    """Yield calls without media, once for each dtype of pixels."""
    yield from (StageMedia(None, dtype) for dtype in PIXEL_DTYPES)


@st.composite
def spelled_alone(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout without media whose prompts spell a placeholder: the same token twice or more in a row."""
    history = draw(media_histories(share=0.0, max_calls=3))
    decide = draw_bytes(draw)
    token_id = decide.choose(TOKEN_IDS)
    calls = []
    for call in relaid(evolve(history, calls=tuple(map(wider, history.calls)))).calls:
        staged = call.staged
        carry = staged.token_mask_delta.count(0.0)
        count = 2 + decide.below(carry - 1)
        at = decide.below(carry - count + 1)
        ids = list(staged.token_ids_delta)
        ids[at : at + count] = [token_id] * count
        extras = call.extras and {name: value for name, value in call.extras.items() if name != MEDIA_SPANS}
        calls.append(evolve(call, extras=extras, staged=evolve(staged, token_ids_delta=tuple(ids))))
    return rehash(evolve(history, calls=tuple(calls))).finalize(MEDIA)


@st.composite
def merged_by_no_square(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout with images whose patches are merged by a number that is no square, known or not."""
    decide = draw_bytes(draw)
    merge = decide.choose((2, 3, 5, 6, 8))
    kind = MediaKind(decide.choose(PIXEL_DTYPES), 1 + decide.below(2), merge=merge)
    history = draw(illustrated(kind, calls=1 + decide.below(2)))
    return history.finalize(evolve(MEDIA, patches_per_embedding=decide.choose((None, merge))))


@st.composite
def broken_behind_routes(draw: DrawFn) -> FinalizeRollout:
    """Draw a rollout in deferred mode whose calls all have routes, and one of which has media that disagree."""
    history = mismatched(draw_bytes(draw, 64), draw(illustrated()))
    return draw(with_routes(history, DIMS, share=1.0)).finalize(DEFERRED)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area media."""
    if area is not Area.MEDIA:
        return

    stream = StreamsOf(area)

    yield listed("equal areas", area, equal_areas())
    yield listed("mixed kinds", area, mixed_kinds())
    yield listed("without media", area, without_media())
    yield stream("spelled placeholders", spelled_alone(), NARROW)
    yield stream("merged by no square", merged_by_no_square(), NARROW)
    yield stream("broken behind routes", broken_behind_routes(), NARROW)
