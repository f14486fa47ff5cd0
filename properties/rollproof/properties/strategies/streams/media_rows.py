"""Rollouts with media for portable rows: items of all sizes, limits anywhere, sampled placeholder ids, siblings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.scalars import draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.area import Area
from rollproof.spec.judge.portable import MediaRows
from rollproof.spec.portable import Grid, MediaItem, MediaRollout

GRIDS: Final[tuple[Grid, ...]] = ((1, 2, 2), (1, 2, 4), (1, 4, 2), (1, 4, 4), (2, 2, 2), (1, 2, 6))
"""Grids that squares of one and of two patches a side divide."""
PLACEHOLDER_IDS: Final = (99, 0, 151655)
MOST_ROLLOUTS: Final = 4
MOST_TURNS: Final = 3
NEEDED: Final = 128
"""Bytes that the largest request is drawn from."""


Part: TypeAlias = MediaItem | tuple[int, ...] | list[int]
"""An item, some prompt tokens, or a list of sampled ones."""


class Writing:
    """Rollouts in the making: tokens and items of one request, whose pixel rows are all different."""

    def __init__(self, placeholder_id: int, merge_size: int) -> None:
        self.placeholder_id, self.merge_size = placeholder_id, merge_size
        self.pixels = 0

    def item(self, grid: Grid) -> MediaItem:
        """Return an item whose pixel rows no other has."""
        start = self.pixels
        self.pixels += prod(grid)
        return MediaItem(grid, tuple(range(start, self.pixels)))

    def placeholders(self, item: MediaItem) -> list[int]:
        """Return an item's tokens."""
        return [self.placeholder_id] * (prod(item.grid) // self.merge_size**2)

    def rollout(self, name: str, parts: Sequence[Part]) -> MediaRollout:
        """Return a rollout of items, prompts (tuples) and what was sampled (lists)."""
        ids: list[int] = []
        mask: list[int] = []
        for part in parts:
            tokens = self.placeholders(part) if isinstance(part, MediaItem) else list(part)
            ids += tokens
            mask += [int(isinstance(part, list))] * len(tokens)
        items = tuple(part for part in parts if isinstance(part, MediaItem))
        return MediaRollout(name, tuple(ids), tuple(mask), items)


@st.composite
def _requests(draw: DrawFn, least_rollouts: int, cut: bool, sampling: bool) -> MediaRows:
    decide = draw_bytes(draw, NEEDED)
    writing = Writing(decide.choose(PLACEHOLDER_IDS), 2 - decide.below(2))
    first = writing.item(decide.choose(GRIDS))
    rollouts = []
    for index in range(least_rollouts + decide.below(MOST_ROLLOUTS + 1 - least_rollouts)):
        parts: list[Part] = [(1,)]
        # Siblings have one prompt with one image, a prompt of their own, or no image at all.
        match decide.below(4):
            case 0 | 1:
                parts.append(first)
            case 2:
                parts.append(writing.item(decide.choose(GRIDS)))
        for turn in range(1 + decide.below(MOST_TURNS)):
            parts.append([10 + turn, *[20] * decide.below(3)])
            if sampling and (not turn or decide.chance(96)):
                parts.append([writing.placeholder_id] * (1 + decide.below(4)))
            for _ in range(decide.below(3) if turn else 0):
                parts += [writing.item(decide.choose(GRIDS)), *([] if decide.chance(96) else [(2,)])]
        rollouts.append(writing.rollout(f"r{index}", [*parts, [30]]))
    longest = max(len(one.ids) for one in rollouts)
    limit = 1 + decide.below(longest) if cut else None if decide.chance(128) else longest + decide.below(2)
    return MediaRows(tuple(rollouts), writing.placeholder_id, writing.merge_size, limit)


def media_requests(*, least_rollouts: int = 1, cut: bool = False, sampling: bool = False) -> SearchStrategy[MediaRows]:
    """Draw rollouts with media; with ``cut`` not all fit, with ``sampling`` they sample the placeholder's id."""
    return _requests(least_rollouts, cut, sampling)


def _at_every_limit() -> Iterator[MediaRows]:
    """Yield two items side by side, and one after some text, cut before, at and after each of their tokens."""
    writing = Writing(99, 2)
    items = [writing.item(grid) for grid in ((1, 2, 4), (1, 4, 4), (1, 2, 2))]
    one = writing.rollout("r0", [(1,), items[0], items[1], [10, 11], items[2], (2,), [12]])
    for limit in range(1, len(one.ids) + 1):
        yield MediaRows((one,), 99, 2, limit)


def _sampled_runs() -> Iterator[MediaRows]:
    """Yield a sampled run as long as an item, before it, after it, and where no item is at all."""
    writing = Writing(99, 2)
    item, run = writing.item((1, 4, 4)), [99] * 4
    rollouts: tuple[list[Part], ...] = (
        [(1,), item, run, (2,)],
        [(1,), run, (2,), item],
        [(1,), run, [10]],
        [(1,), item, [10, 99]],
    )
    for parts in rollouts:
        for limit in (None, 5):
            yield MediaRows((writing.rollout("r0", parts),), 99, 2, limit)


def _siblings() -> Iterator[MediaRows]:
    """Yield siblings of which the first, the second or the last has no item, and two whose items look alike."""
    writing = Writing(99, 2)
    items = [writing.item(grid) for grid in ((1, 2, 2), (1, 2, 2), (1, 4, 4))]
    rollouts = [writing.rollout(f"r{at}", [(1,), item, [10]]) for at, item in enumerate(items)]
    text = writing.rollout("r3", [(1,), [10]])
    for at in range(len(rollouts) + 1):
        yield MediaRows((*rollouts[:at], text, *rollouts[at:]), 99, 2, None)
    yield MediaRows((text,), 99, 2, None)
    yield MediaRows((), 99, 2, None)


EDGES: Final = (*_at_every_limit(), *_sampled_runs(), *_siblings())
"""Requests at the borders of rules."""


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area media-rows."""
    if area is Area.MEDIA_ROWS:
        yield listed("edges", area, EDGES)
        yield Stream("whole", area, media_requests(), 2.0)
        yield Stream("cut", area, media_requests(cut=True), 3.0)
        yield Stream("siblings", area, media_requests(least_rollouts=2), 2.0)
        yield Stream("sampled placeholders", area, media_requests(sampling=True), 2.0)
        yield Stream("sampled placeholders:cut", area, media_requests(sampling=True, cut=True))
