"""Pieces of several tensors laid back to back, with gaps filled: routes of a row, patches of a chain.

One launch per source dtype reads every piece in place and writes it, converted, to its destination. A piece without
a source is filled. The pieces' table is all that is sent to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from attrs import frozen

BLOCK: Final = 1024
"""Elements per program."""

_TYPES: Final = {
    torch.int8: tl.int8,
    torch.int16: tl.int16,
    torch.int32: tl.int32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


@frozen(eq=False)
class Piece:
    """``count`` elements of the output: those of a contiguous ``source`` from element ``first`` on, or the filling."""

    count: int
    source: torch.Tensor | None = None
    first: int = 0


@triton.jit
def _lay_out(table, out, FILLING: tl.constexpr, DTYPE: tl.constexpr, WIDTH: tl.constexpr):
    """Copy a block of one piece; ``table`` holds per piece the source's address or 0, its place, and its count."""
    row = table + tl.program_id(0) * 3
    address, place, count = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    index = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    mask = index < count
    source = address.to(tl.pointer_type(DTYPE))
    readable = tl.where(address == 0, 0, count)
    values = tl.load(source + index, mask=index < readable, other=0).to(out.dtype.element_ty)
    tl.store(out + place + index, tl.where(index < readable, values, FILLING), mask=mask)


def gather(pieces: Sequence[Piece], out: torch.Tensor, filling: int = 0) -> None:
    """Write ``pieces`` back to back into the contiguous ``out``; their sources are on its device.

    Elements are converted to ``out``'s dtype unchecked: the caller guarantees that they fit. ``ValueError`` where
    the pieces do not fill ``out``, or a source is not contiguous, too short, of another dtype, or on another device.
    """
    if sum(piece.count for piece in pieces) != out.numel() or not out.is_contiguous():
        raise ValueError(
            f"pieces: got {sum(piece.count for piece in pieces)} elements, expected those of shape {list(out.shape)}"
        )
    by_dtype: dict[torch.dtype, list[tuple[int, int, int]]] = {}
    fillings: list[tuple[int, int, int]] = []
    place = 0
    for piece in pieces:
        source = piece.source
        if source is None:
            fillings.append((0, place, piece.count))
        else:
            if source.device != out.device or not source.is_contiguous():
                raise ValueError(f"source: got one on {source.device}, expected a contiguous one on {out.device}")
            if source.dtype not in _TYPES:
                raise ValueError(f"source: got {source.dtype}, expected {' or '.join(map(str, _TYPES))}")
            if not 0 <= piece.first <= source.numel() - piece.count:
                end = piece.first + piece.count
                raise ValueError(f"piece: got elements {piece.first} to {end}, expected some of {source.numel()}")
            address = source.data_ptr() + piece.first * source.element_size()
            by_dtype.setdefault(source.dtype, []).append((address, place, piece.count))
        place += piece.count
    if fillings:
        by_dtype.setdefault(next(iter(by_dtype), out.dtype), []).extend(fillings)
    for dtype, rows in by_dtype.items():
        longest = max(count for _, _, count in rows)
        if longest:
            table = torch.tensor(rows, dtype=torch.int64).to(out.device)
            grid: Any = (len(rows), triton.cdiv(longest, BLOCK))
            _lay_out[grid](table, out, FILLING=filling, DTYPE=_TYPES[dtype], WIDTH=BLOCK)
