"""Portable rows with media: one way to write them, worked by hand."""

from __future__ import annotations

import pytest
from attrs import evolve

from rollproof.spec.media_rows import media_rows
from rollproof.spec.portable import MediaItem, MediaRollout, MediaRow

SMALL = MediaItem((1, 2, 2), (0, 1, 2, 3))
WIDE = MediaItem((1, 2, 4), tuple(range(10, 18)))
BOTH = MediaRollout("r", (1, 9, 5, 9, 9, 6), (0, 0, 1, 0, 0, 1), (SMALL, WIDE))


def test_a_rollout_that_fits_keeps_everything():
    expected = MediaRow("r", BOTH.ids, BOTH.mask, (SMALL.grid, WIDE.grid), SMALL.pixel_rows + WIDE.pixel_rows)
    assert media_rows([BOTH], 9, 2, None) == media_rows([BOTH], 9, 2, 6) == (expected,)


@pytest.mark.parametrize(
    "limit, length, items", [(5, 5, [SMALL, WIDE]), (4, 3, [SMALL]), (3, 3, [SMALL]), (2, 2, [SMALL]), (1, 1, [])]
)
def test_a_cut_row_ends_before_the_item_that_the_limit_would_cut(limit, length, items):
    (row,) = media_rows([BOTH], 9, 2, limit)
    assert row.ids == BOTH.ids[:length]
    assert row.mask == BOTH.mask[:length]
    assert row.grids == tuple(item.grid for item in items)
    assert row.pixel_rows == tuple(pixel for item in items for pixel in item.pixel_rows)


def test_a_rollout_that_sampled_a_placeholder_has_no_row():
    sampled = MediaRollout("s", (1, 9, 9), (0, 0, 1), (SMALL,))
    assert [row.rollout for row in media_rows([sampled, BOTH], 9, 2, None)] == ["r"]


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"mask": (0,)}, "mask: got .*, expected 6 values, one per token"),
        ({"items": (SMALL,)}, "placeholders: got 3, expected 1, as its items have"),
        (
            {"items": (SMALL, MediaItem((1, 3, 3), WIDE.pixel_rows))},
            r"items\[1\].grid: got .*, expected squares of 2 by 2",
        ),
        ({"items": (SMALL, MediaItem((1, 2, 4), (1, 2)))}, r"items\[1\].pixel_rows: got .*, expected 8 of them"),
        ({"items": (SMALL, MediaItem((1, 2, -2), ()))}, r"items\[1\].grid: got"),
    ],
)
def test_a_rollout_that_does_not_agree_with_itself_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        media_rows([evolve(BOTH, **change)], 9, 2, None)


@pytest.mark.parametrize("merge_size, max_len, complaint", [(0, None, "merge_size: got 0"), (2, -1, "max_len: got -1")])
def test_a_limit_that_is_not_one_is_refused(merge_size, max_len, complaint):
    with pytest.raises(ValueError, match=complaint):
        media_rows([BOTH], 9, merge_size, max_len)
