"""Mutants of portable rows with media (section 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.media_rows import embeddings
from rollproof.spec.portable import Grid, MediaRollout, MediaRow

PAD_ID: Final = 3
"""What takes the place of a token that is removed."""


def each_row(change: Callable[[MediaRow, MediaRollout, Any], MediaRow]) -> Any:
    """Change each row, given its rollout and the function that wrote it."""

    def replacement(media_row: Any) -> Any:
        def wrong(one: MediaRollout, placeholder_id: int, merge_size: int, max_len: int | None) -> MediaRow:
            def rebuilt(other: MediaRollout, limit: int | None) -> MediaRow:
                row: MediaRow = media_row(other, placeholder_id, merge_size, limit)
                return row

            return change(rebuilt(one, max_len), one, rebuilt)

        return wrong

    return replacement


def tokens_cut_alone(row: MediaRow, one: MediaRollout, rebuilt: Any) -> MediaRow:
    """Cut the tokens after everything else was computed."""
    whole: MediaRow = rebuilt(one, None)
    return evolve(row, grids=whole.grids, pixel_rows=whole.pixel_rows)


def grids_cut_alone(row: MediaRow, one: MediaRollout, rebuilt: Any) -> MediaRow:
    """Forget the pixels of the items that were cut."""
    return evolve(row, pixel_rows=rebuilt(one, None).pixel_rows)


def first_frames(row: MediaRow, *_: Any) -> MediaRow:
    """Count a frame's patches, and leave out those of further frames."""
    found: list[int] = []
    at = 0
    for grid in row.grids:
        found += row.pixel_rows[at : at + prod(grid[1:])]
        at += prod(grid)
    return evolve(row, pixel_rows=tuple(found))


def wherever(cut_end: Any) -> Any:
    """Cut at the limit, also inside an item, which is dropped; its tokens stay."""
    return lambda _spans, length, max_len: length if max_len is None else min(length, max_len)


def one_more(cut_end: Any) -> Any:
    """Cut before the last placeholder of an item instead of its first."""

    def wrong(spans: Sequence[tuple[int, ...]], length: int, max_len: int | None) -> int:
        end = int(cut_end(spans, length, max_len))
        return next((span[-1] for span in spans if span[0] == end < min(length, max_len or length)), end)

    return wrong


def unlimited(cut_end: Any) -> Any:
    """Take the limit for advice."""
    return lambda spans, length, _: cut_end(spans, length, None)


def half_items(media_row: Any) -> Any:
    """Cut inside an item, and give it a grid of the squares that are left."""

    def wrong(one: MediaRollout, placeholder_id: int, merge_size: int, max_len: int | None) -> MediaRow:
        row: MediaRow = media_row(one, placeholder_id, merge_size, max_len)
        if max_len is None or len(row.ids) == min(max_len, len(one.ids)):
            return row
        cut = one.items[len(row.grids)]
        left = min(max_len, len(one.ids)) - len(row.ids)
        part: Grid = (1, merge_size, merge_size * left)
        return evolve(
            row,
            ids=one.ids[: len(row.ids) + left],
            mask=one.mask[: len(row.ids) + left],
            grids=(*row.grids, part),
            pixel_rows=(*row.pixel_rows, *cut.pixel_rows[: prod(part)]),
        )

    return wrong


def without_items(row: MediaRow, *_: Any) -> MediaRow:
    """Leave out all items of a row, and say so."""
    return evolve(row, grids=(), pixel_rows=(), placeholders=())


def last_item_first(row: MediaRow, one: MediaRollout, _: Any) -> MediaRow:
    """Bring the newest item first."""
    kept = one.items[: len(row.grids)][::-1]
    return evolve(
        row,
        grids=tuple(item.grid for item in kept),
        pixel_rows=tuple(pixel for item in kept for pixel in item.pixel_rows),
    )


def rewritten(change: Callable[[MediaRow, MediaRollout, int], MediaRow]) -> Any:
    """Write rows of all rollouts, also of those that sampled a placeholder's id, and change them."""

    def replacement(media_rows: Any) -> Any:
        def wrong(rollouts: Sequence[MediaRollout], placeholder_id: int, *limits: Any) -> tuple[MediaRow, ...]:
            found = []
            for one in rollouts:
                hidden = tuple(
                    PAD_ID if mask and token == placeholder_id else token
                    for token, mask in zip(one.ids, one.mask, strict=True)
                )
                for row in media_rows([evolve(one, ids=hidden)], placeholder_id, *limits):
                    found.append(change(row, one, placeholder_id))
            return tuple(found)

        return wrong

    return replacement


def kept_ids(row: MediaRow, one: MediaRollout, _: int) -> MediaRow:
    """Keep what was sampled, whatever it is."""
    return evolve(row, ids=one.ids[: len(row.ids)])


def kept_and_masked(row: MediaRow, one: MediaRollout, placeholder_id: int) -> MediaRow:
    """Do not train a placeholder's id that was sampled; keep it."""
    ids = one.ids[: len(row.ids)]
    return evolve(row, ids=ids, mask=tuple(int(m and t != placeholder_id) for t, m in zip(ids, row.mask, strict=True)))


def first_come(row: MediaRow, one: MediaRollout, placeholder_id: int) -> MediaRow:
    """Give the first placeholders to the items, whoever wrote them."""
    ids = one.ids[: len(row.ids)]
    mine = [at for at, token in enumerate(row.ids) if token == placeholder_id]
    taken = [at for at, token in enumerate(ids) if token == placeholder_id][: len(mine)]
    return evolve(row, ids=ids, placeholders=tuple(taken))


def over_all(change: Callable[[list[MediaRow]], list[MediaRow]]) -> Any:
    """Change all rows of an answer together."""

    def replacement(media_rows: Any) -> Any:
        return lambda *arguments: tuple(change(list(media_rows(*arguments))))

    return replacement


def equal_shares(rows: list[MediaRow]) -> list[MediaRow]:
    """Split the pixels of the batch into as many equal shares as it has rows, as a tensor is split."""
    pixels = [pixel for row in rows for pixel in row.pixel_rows]
    size = len(pixels) // max(1, len(rows))
    return [evolve(row, pixel_rows=tuple(pixels[at * size : (at + 1) * size])) for at, row in enumerate(rows)]


def text_rows_skipped(rows: list[MediaRow]) -> list[MediaRow]:
    """Keep the media of rows that have some, and give them out from the first row on."""
    media = [(row.grids, row.pixel_rows) for row in rows if row.grids]
    media += [((), ())] * (len(rows) - len(media))
    return [evolve(row, grids=grids, pixel_rows=pixels) for row, (grids, pixels) in zip(rows, media, strict=True)]


def cached_by_grid(rows: list[MediaRow]) -> list[MediaRow]:
    """Keep pixels by the size of their item, and take what is there."""
    known: dict[Grid, tuple[int, ...]] = {}
    found = []
    for row in rows:
        pixels: list[int] = []
        at = 0
        for grid in row.grids:
            pixels += known.setdefault(grid, row.pixel_rows[at : at + prod(grid)])
            at += prod(grid)
        found.append(evolve(row, pixel_rows=tuple(pixels)))
    return found


def one_per_square(media_row: Any) -> Any:
    """Keep one row of pixels for each embedding."""

    def wrong(one: MediaRollout, placeholder_id: int, merge_size: int, max_len: int | None) -> MediaRow:
        row: MediaRow = media_row(one, placeholder_id, merge_size, max_len)
        count = sum(embeddings(grid, merge_size) for grid in row.grids)
        return evolve(row, pixel_rows=row.pixel_rows[:count])

    return wrong


MUTANTS: Final = (
    Mutant(
        "pixels-of-cut-items",
        "MROW-1",
        "PrimeIntellect-ai/prime-rl 2013",
        "Grids follow the cut, pixels do not.",
        patches(media_rows__media_row=each_row(grids_cut_alone)),
    ),
    Mutant(
        "pixels-per-embedding",
        "MROW-1",
        "contract section 14",
        "A row has one row of pixels per embedding, as if they were merged already.",
        patches(media_rows__media_row=one_per_square),
    ),
    Mutant(
        "first-frame-alone",
        "MROW-1",
        "contract section 14",
        "A grid's frames are not counted, so later frames have no pixels.",
        patches(media_rows__media_row=each_row(first_frames)),
    ),
    Mutant(
        "tokens-cut-alone",
        "MROW-2",
        "huggingface/trl 5904, 5881",
        "Tokens are cut, and the images that lose their placeholders stay.",
        patches(media_rows__media_row=each_row(tokens_cut_alone)),
    ),
    Mutant(
        "cut-inside-an-item",
        "MROW-2",
        "Gabesarch/grounded-rl 23",
        "An item that the limit cuts is dropped, and the placeholders before the limit stay.",
        patches(media_rows__cut_end=wherever),
    ),
    Mutant(
        "all-placeholders-but-one",
        "MROW-2",
        "contract section 14",
        "A row that must end before an item ends before its last placeholder.",
        patches(media_rows__cut_end=one_more),
    ),
    Mutant(
        "half-an-image",
        "MROW-3",
        "contract section 14",
        "An image is cut along with its row, and its grid is made to fit: the policy never saw that image.",
        patches(media_rows__media_row=half_items),
    ),
    Mutant(
        "limit-is-advice",
        "MROW-3",
        "contract section 14",
        "Rows with media are not cut.",
        patches(media_rows__cut_end=unlimited),
    ),
    Mutant(
        "items-left-out",
        "MROW-3",
        "contract section 14",
        "All images are dropped, also of rows that fit.",
        patches(media_rows__media_row=each_row(without_items)),
    ),
    Mutant(
        "newest-item-first",
        "MROW-3",
        "contract section 14",
        "The items of a row come in another order than their placeholders.",
        patches(media_rows__media_row=each_row(last_item_first)),
    ),
    Mutant(
        "sampled-placeholder-kept",
        "MROW-4",
        "StarsfieldAI/R1-V 91; hiyouga/EasyR1 110",
        "The policy samples the image's token, and the trainer finds one placeholder too many.",
        patches(judge__oracle__media_rows=rewritten(kept_ids)),
    ),
    Mutant(
        "sampled-placeholder-masked",
        "MROW-4",
        "contract section 14",
        "A sampled placeholder's id is not trained, and stays where an embedding will go.",
        patches(judge__oracle__media_rows=rewritten(kept_and_masked)),
    ),
    Mutant(
        "sampled-placeholder-takes-the-image",
        "MROW-4",
        "contract section 14",
        "Embeddings go to the first placeholders, also where the policy sampled them.",
        patches(judge__oracle__media_rows=rewritten(first_come)),
    ),
    Mutant(
        "equal-shares-of-pixels",
        "MROW-5",
        "contract section 14",
        "The pixels of a batch are split by the number of rows, not by their grids.",
        patches(judge__oracle__media_rows=over_all(equal_shares)),
    ),
    Mutant(
        "text-rows-skipped",
        "MROW-5",
        "contract section 14",
        "A sibling without media gets the next one's.",
        patches(judge__oracle__media_rows=over_all(text_rows_skipped)),
    ),
    Mutant(
        "pixels-by-grid",
        "MROW-5",
        "contract section 14",
        "Pixels are kept by the size of their image, so siblings whose images are equally large share one.",
        patches(judge__oracle__media_rows=over_all(cached_by_grid)),
    ),
)
