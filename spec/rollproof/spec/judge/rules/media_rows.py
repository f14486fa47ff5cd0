"""Invariants of rows with media (section 14): whatever a trainer finds in a row, it finds as often everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Final

from rollproof.spec.judge.invariant import Case, describe, invariant
from rollproof.spec.judge.portable import MediaRows
from rollproof.spec.judge.requests import Accepted, Area, Crashed
from rollproof.spec.media_rows import embeddings, sampled_placeholders
from rollproof.spec.portable import MediaItem, MediaRollout, MediaRow

ABSENT: Final = -1
"""In place of the number of an item, where a grid and its pixel rows are not one."""


def rows_of(case: Case[MediaRows]) -> tuple[MediaRow, ...]:
    """Return the rows of an accepted answer; none of a refused one."""
    return case.answer.value if isinstance(case.answer, Accepted) else ()


def of_rollouts(case: Case[MediaRows], *, sampled: bool) -> Iterator[tuple[MediaRow, MediaRollout]]:
    """Yield the rows of rollouts that sampled a placeholder's id, or of those that did not, with their rollout."""
    known = {one.rollout: one for one in case.request.rollouts}
    for row in rows_of(case):
        one = known.get(row.rollout)
        if one is not None and sampled_placeholders(one, case.request.placeholder_id) == sampled:
            yield row, one


def positions_of(row: MediaRow, placeholder_id: int) -> list[int]:
    """Return where a trainer puts embeddings: the positions that the row names, or all that have the id."""
    if row.placeholders is not None:
        return list(row.placeholders)
    return [index for index, token in enumerate(row.ids) if token == placeholder_id]


def disagreement(row: MediaRow, request: MediaRows) -> str | None:
    """Return where a row's placeholders are not those of its grids, item by item, or None."""
    positions, at, size = positions_of(row, request.placeholder_id), 0, request.merge_size
    for index, grid in enumerate(row.grids):
        if prod(grid) % size**2:
            return f"{row.rollout}: grids[{index}] is {grid}, expected squares of {size} by {size} patches"
        count = embeddings(grid, size)
        mine = positions[at : at + count]
        if len(mine) < count:
            return f"{row.rollout}: {len(mine)} placeholders for grids[{index}], expected {count}"
        if mine != list(range(mine[0], mine[0] + count)):
            return f"{row.rollout}: grids[{index}] has the placeholders {mine}, which other tokens separate"
        at += count
    if at < len(positions):
        return f"{row.rollout}: {len(positions)} placeholders, expected {at} for {len(row.grids)} grids"
    return None


def items_of(row: MediaRow, one: MediaRollout) -> list[int]:
    """Return which item of its rollout each grid and its pixels are; ``ABSENT`` for what is not a whole one."""
    found, at = [], 0
    for grid in row.grids:
        item = MediaItem(grid, row.pixel_rows[at : at + prod(grid)])
        found.append(one.items.index(item) if item in one.items else ABSENT)
        at += prod(grid)
    return found


@invariant(
    "MROW-1",
    Area.MEDIA_ROWS,
    "14",
    "A row has as many rows of pixels as its grids have patches, and no request crashes.",
    (MediaRows,),
)
def pixels_fill_grids(case: Case[MediaRows]) -> str | None:
    """The vision tower splits pixels by the grids: one too few, and every later image is another."""
    if isinstance(case.answer, Crashed):
        return f"it {describe(case.answer)}"
    for row in rows_of(case):
        patches = sum(map(prod, row.grids))
        if len(row.pixel_rows) != patches:
            return f"{row.rollout}: {len(row.pixel_rows)} rows of pixels, expected {patches} for {list(row.grids)}"
    return None


@invariant(
    "MROW-2",
    Area.MEDIA_ROWS,
    "14",
    "Each grid of a row has, in order, one placeholder for every merged square of its patches, and none is left over.",
    (MediaRows,),
    of_values=True,
)
def placeholders_fill_grids(case: Case[MediaRows]) -> str | None:
    """Embeddings go to placeholders one by one, so that one too many moves all that follow."""
    for row, _ in of_rollouts(case, sampled=False):
        wrong = disagreement(row, case.request)
        if wrong is not None:
            return wrong
    return None


@invariant(
    "MROW-3",
    Area.MEDIA_ROWS,
    "14",
    "A row is not longer than its limit and has whole items only, in order; a rollout that fits keeps all of them.",
    (MediaRows,),
    of_values=True,
)
def whole_items(case: Case[MediaRows]) -> str | None:
    """Half an image, with a grid made to fit, is an image that the policy never saw."""
    for row in rows_of(case):
        if case.request.max_len is not None and len(row.ids) > case.request.max_len:
            return f"{row.rollout}: {len(row.ids)} tokens, expected at most {case.request.max_len}"
        if len(row.mask) != len(row.ids):
            return f"{row.rollout}: {len(row.mask)} of trained, expected {len(row.ids)}, one per token"
    kept: dict[str, set[int]] = {one.rollout: set() for one in case.request.rollouts}
    for sampled in (False, True):
        for row, one in of_rollouts(case, sampled=sampled):
            if not foreign(row, one):
                found = items_of(row, one)
                if ABSENT in found:
                    return f"{row.rollout}: grids[{found.index(ABSENT)}] and its pixel rows are not a whole item of it"
                if found != sorted(set(found)):
                    return f"{row.rollout}: items {found}, expected each once and in order"
                kept[row.rollout].update(found)
    if isinstance(case.answer, Accepted):
        for one in case.request.rollouts:
            fits = case.request.max_len is None or len(one.ids) <= case.request.max_len
            if fits and not sampled_placeholders(one, case.request.placeholder_id):
                lost = set(range(len(one.items))) - kept[one.rollout]
                if lost:
                    return f"{one.rollout}: it fits, and no row has its item {min(lost)}"
    return None


@invariant(
    "MROW-4",
    Area.MEDIA_ROWS,
    "14",
    "A placeholder's id that the policy sampled is not an item: the row's placeholders are those of its grids alone.",
    (MediaRows,),
    of_values=True,
)
def sampled_ids(case: Case[MediaRows]) -> str | None:
    """The policy may sample any id; a trainer would put an image's embedding there, and move all that follow."""
    for row, _ in of_rollouts(case, sampled=True):
        wrong = disagreement(row, case.request)
        if wrong is not None:
            return wrong
        taken = [at for at in positions_of(row, case.request.placeholder_id) if row.mask[at]]
        if taken:
            return f"{row.rollout}: position {taken[0]} is trained, and an embedding takes its place"
    return None


@invariant(
    "MROW-5",
    Area.MEDIA_ROWS,
    "14",
    "A row has pixels of its own rollout only, whatever its siblings have.",
    (MediaRows,),
    of_values=True,
)
def own_pixels(case: Case[MediaRows]) -> str | None:
    """Batches keep the pixels of all rows in one tensor; split by equal shares, one row gets another's image."""
    known = {one.rollout: one for one in case.request.rollouts}
    for row in rows_of(case):
        if row.rollout not in known:
            return f"a row of {row.rollout!r}, which was not asked about"
        strange = foreign(row, known[row.rollout])
        if strange:
            return f"{row.rollout}: rows of pixels {strange[:4]} are not its own"
    return None


def foreign(row: MediaRow, one: MediaRollout) -> list[int]:
    """Return the pixels of a row that are not its rollout's."""
    own = {pixel for item in one.items for pixel in item.pixel_rows}
    return [pixel for pixel in row.pixel_rows if pixel not in own]
