"""Media of training rows: pixels and grids agree with placeholders, in any framework (section 14).

An image reaches a trainer three times: as placeholder tokens in a row's ids, as a grid of patches, and as a row of
pixels per patch. The model puts one embedding, merged from some patches, at each placeholder, in order. Where the
three disagree it fails at best; at worst every later image moves to another one's place.

This chapter asks for no layout and for no number of rows. The function below is one way that has all it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import prod

from rollproof.spec.portable import Grid, MediaRollout, MediaRow
from rollproof.spec.values import fault


def media_rows(
    rollouts: Sequence[MediaRollout], placeholder_id: int, merge_size: int, max_len: int | None
) -> tuple[MediaRow, ...]:
    """Return one row per rollout, at most ``max_len`` tokens long, without half an item.

    A rollout that sampled the placeholder's id has no row: a trainer would look for pixels there. Raises ``ValueError``
    for a rollout whose placeholders, grids and pixel rows do not agree to begin with.
    """
    if type(merge_size) is not int or merge_size < 1:
        raise ValueError(fault("merge_size", merge_size, "an integer above 0"))
    if max_len is not None and (type(max_len) is not int or max_len < 0):
        raise ValueError(fault("max_len", max_len, "None, or an integer of at least 0"))
    for one in rollouts:
        check_rollout(one, placeholder_id, merge_size)
    return tuple(
        media_row(one, placeholder_id, merge_size, max_len)
        for one in rollouts
        if not sampled_placeholders(one, placeholder_id)
    )


def check_rollout(one: MediaRollout, placeholder_id: int, merge_size: int) -> None:
    """Raise ``ValueError`` for a rollout that is not one of tokens and whole items."""
    if len(one.ids) != len(one.mask):
        raise ValueError(fault(f"{one.rollout}: mask", one.mask, f"{len(one.ids)} values, one per token"))
    for index, item in enumerate(one.items):
        where = f"{one.rollout}: items[{index}]"
        if not all(type(size) is int and size > 0 for size in item.grid) or prod(item.grid) % merge_size**2:
            raise ValueError(fault(f"{where}.grid", item.grid, f"squares of {merge_size} by {merge_size} patches"))
        if len(item.pixel_rows) != prod(item.grid):
            raise ValueError(fault(f"{where}.pixel_rows", item.pixel_rows, f"{prod(item.grid)} of them"))
    found = len(placeholder_positions(one, placeholder_id))
    needed = sum(embeddings(item.grid, merge_size) for item in one.items)
    if found != needed:
        raise ValueError(fault(f"{one.rollout}: placeholders", found, f"{needed}, as its items have"))


def media_row(one: MediaRollout, placeholder_id: int, merge_size: int, max_len: int | None) -> MediaRow:
    """Return the longest beginning of a rollout that fits and cuts no item."""
    spans = item_spans(one, placeholder_id, merge_size)
    end = cut_end(spans, len(one.ids), max_len)
    kept = [item for item, span in zip(one.items, spans, strict=True) if span[-1] < end]
    return MediaRow(
        rollout=one.rollout,
        ids=one.ids[:end],
        mask=one.mask[:end],
        grids=tuple(item.grid for item in kept),
        pixel_rows=tuple(pixel for item in kept for pixel in item.pixel_rows),
    )


def cut_end(spans: Sequence[tuple[int, ...]], length: int, max_len: int | None) -> int:
    """Return where a row must end: at its limit, or before the item that the limit would cut."""
    limit = length if max_len is None else min(length, max_len)
    return next((span[0] for span in spans if span[0] < limit <= span[-1]), limit)


def item_spans(one: MediaRollout, placeholder_id: int, merge_size: int) -> list[tuple[int, ...]]:
    """Return the positions of each item's placeholders."""
    positions = iter(placeholder_positions(one, placeholder_id))
    return [tuple(islice(positions, embeddings(item.grid, merge_size))) for item in one.items]


def placeholder_positions(one: MediaRollout, placeholder_id: int) -> list[int]:
    """Return where a rollout has placeholders: the tokens of this id that the policy did not sample."""
    return [
        index
        for index, (token, sampled) in enumerate(zip(one.ids, one.mask, strict=True))
        if token == placeholder_id and not sampled
    ]


def embeddings(grid: Grid, merge_size: int) -> int:
    """Return how many placeholders a grid has: one for each square of ``merge_size`` by ``merge_size`` patches."""
    return prod(grid) // merge_size**2


def sampled_placeholders(one: MediaRollout, placeholder_id: int) -> bool:
    """Return whether the policy sampled the placeholder's id anywhere."""
    return any(token == placeholder_id and sampled for token, sampled in zip(one.ids, one.mask, strict=True))
