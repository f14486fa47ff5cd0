"""Cutting the padding off a published row, whether its put is recorded in a check or in production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollproof.spec.plane import PublishedRow
from rollproof.spec.rows import row_padding
from rollproof.spec.tensor import ITEM_SIZES, READABLE, Tensor


def rows_without_padding(
    columns: Mapping[str, Sequence[Tensor]], tags: Sequence[Mapping[str, Any]], pad_token_id: int
) -> tuple[PublishedRow, ...]:
    """Return a put's rows without padding, one for each of its ``tags``; every column has as many rows."""
    known = [value.count == 1 and value.dtype in READABLE for value in columns.get("input_lengths", ())]
    lengths = [columns["input_lengths"][at].values()[0] if one else None for at, one in enumerate(known)]
    if not lengths:
        lengths = [None] * len(tags)
    return tuple(
        PublishedRow(
            {name: unpadded(name, rows[at], lengths[at], pad_token_id) for name, rows in columns.items()}, dict(own)
        )
        for at, own in enumerate(tags)
    )


def unpadded(name: str, row: Tensor, length: Any, pad_token_id: int) -> Tensor:
    """Return a per-token row cut to its length, if it continues with the padding that the contract allows.

    Other padding stays, so that the row is seen to differ.
    """
    padding = row_padding(name, pad_token_id)
    if padding is None or type(length) is not int or not row.shape or not 0 <= length < row.shape[0]:
        return row
    kept = len(row.data) // row.shape[0] * length
    rest = Tensor.of(row.dtype, [int(padding)], ()).data * ((len(row.data) - kept) // ITEM_SIZES[row.dtype])
    return Tensor(row.dtype, (length, *row.shape[1:]), row.data[:kept]) if row.data[kept:] == rest else row
