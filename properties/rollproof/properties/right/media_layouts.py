"""Right rows with media that differ: where they are cut, how many there are, what a sampled placeholder becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from attrs import evolve

from rollproof.properties.right.portable import PortableRight
from rollproof.spec.judge.area import Area
from rollproof.spec.media_rows import item_spans, media_rows, sampled_placeholders
from rollproof.spec.portable import MediaItem, MediaRollout, MediaRow

OTHER_ID: Final = 7
"""A token that is not a placeholder's."""

Layout = Callable[[Sequence[MediaRollout], int, int, int | None], tuple[MediaRow, ...]]


def row_of(one: MediaRollout, start: int, end: int, items: Sequence[MediaItem]) -> MediaRow:
    """Return the row of a part of a rollout."""
    return MediaRow(
        one.rollout,
        one.ids[start:end],
        one.mask[start:end],
        tuple(item.grid for item in items),
        tuple(pixel for item in items for pixel in item.pixel_rows),
    )


def clean(rollouts: Sequence[MediaRollout], placeholder_id: int) -> Iterator[MediaRollout]:
    """Yield the rollouts that sampled no placeholder."""
    yield from (one for one in rollouts if not sampled_placeholders(one, placeholder_id))


def newest_tokens(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Keep the end of a rollout, from after the item that the limit would cut."""
    rows = []
    for one in clean(rollouts, placeholder_id):
        spans = item_spans(one, placeholder_id, merge_size)
        start = 0 if max_len is None else max(0, len(one.ids) - max_len)
        start = next((span[-1] + 1 for span in spans if span[0] < start <= span[-1]), start)
        kept = [item for item, span in zip(one.items, spans, strict=True) if span[0] >= start]
        rows.append(row_of(one, start, len(one.ids), kept))
    return tuple(rows)


def what_fits(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Leave out rollouts that do not fit, last rollout first."""
    fitting = [one for one in rollouts if max_len is None or len(one.ids) <= max_len]
    return media_rows(fitting[::-1], placeholder_id, merge_size, None)


def row_per_turn(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Write one row for everything up to the end of each sampled run."""
    parts = []
    for one in rollouts:
        spans = item_spans(one, placeholder_id, merge_size)
        ends = [at + 1 for at, on in enumerate(one.mask) if on and not (*one.mask, 0)[at + 1]]
        for end in ends:
            items = tuple(item for item, span in zip(one.items, spans, strict=True) if span[-1] < end)
            parts.append(MediaRollout(one.rollout, one.ids[:end], one.mask[:end], items))
    return media_rows(parts, placeholder_id, merge_size, max_len)


def sampled_replaced(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Put another token in the place of a sampled placeholder, and do not train it."""
    written = []
    for one in rollouts:
        odd = [bool(on) and token == placeholder_id for token, on in zip(one.ids, one.mask, strict=True)]
        ids = tuple(OTHER_ID if wrong else token for token, wrong in zip(one.ids, odd, strict=True))
        mask = tuple(0 if wrong else on for on, wrong in zip(one.mask, odd, strict=True))
        written.append(evolve(one, ids=ids, mask=mask))
    return media_rows(written, placeholder_id, merge_size, max_len)


def placeholders_named(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Keep and train sampled placeholders; say at which positions embeddings go."""
    rows = []
    for one, row in zip(rollouts, sampled_replaced(rollouts, placeholder_id, merge_size, max_len), strict=True):
        end = len(row.ids)
        positions = tuple(at for at, token in enumerate(row.ids) if token == placeholder_id)
        rows.append(evolve(row, ids=one.ids[:end], mask=one.mask[:end], placeholders=positions))
    return tuple(rows)


def all_or_no_items(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Cut anywhere; a row that loses part of an item loses all of them, and has other tokens in their places."""
    rows = []
    for one in clean(rollouts, placeholder_id):
        end = len(one.ids) if max_len is None else min(max_len, len(one.ids))
        kept = sum(token == placeholder_id for token in one.ids[:end])
        if kept == sum(token == placeholder_id for token in one.ids):
            rows.append(row_of(one, 0, end, one.items))
        else:
            row = row_of(one, 0, end, ())
            rows.append(evolve(row, ids=tuple(OTHER_ID if token == placeholder_id else token for token in row.ids)))
    return tuple(rows)


def right(name: str, sentence: str, layout: Layout) -> PortableRight:
    """Return a right way to write rows with media, and what it does otherwise than the spec."""
    return PortableRight(name, sentence, Area.MEDIA_ROWS, layout, frozenset())


LAYOUTS: Final = (
    right("newest-tokens", "A row that is cut keeps its end.", newest_tokens),
    right("what-fits", "A rollout that does not fit has no row, and the last rollout's row is first.", what_fits),
    right("row-per-turn", "A rollout has one row per turn.", row_per_turn),
    right("sampled-replaced", "A sampled placeholder becomes another token, untrained.", sampled_replaced),
    right("placeholders-named", "A row says where embeddings go.", placeholders_named),
    right("all-or-no-items", "A row that would lose part of an item has none.", all_or_no_items),
)
