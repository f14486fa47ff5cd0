"""Rows of tensors that differ in length: the form in which a trainer gets media.

``PackedTensor`` offers what NeMo RL's class of this name offers, without its sharing of equal segments. A *row* belongs
to one training sample and consists of *segments*, tensors that are packed along one dimension. On the wire every row is
flat, so that rows differ in length alone; the shapes of its segments travel beside it, in the sample's tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import torch

from rollproof.impl.in_place import joined
from rollproof.impl.nested import nested_from


@dataclass(init=False, eq=False)
class PackedTensor:
    """Rows of segments, packed along ``dim_to_pack``.

    ``tensors`` is one tensor, or a list with one tensor per row, None for a row without one. ``pad_to_max_shape`` pads
    the other dimensions with zeros to the largest of all segments where the rows become one tensor.
    """

    _rows: list[list[torch.Tensor]]
    dim_to_pack: int
    pad_to_max_shape: bool

    def __init__(
        self,
        tensors: torch.Tensor | Sequence[torch.Tensor | None],
        dim_to_pack: int,
        *,
        pad_to_max_shape: bool = False,
    ) -> None:
        rows = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not rows:
            raise ValueError("tensors: got no row, expected at least one")
        self._rows = [[] if row is None else [row] for row in rows]
        self.dim_to_pack = dim_to_pack
        self.pad_to_max_shape = pad_to_max_shape

    def _like(self, rows: Iterable[Iterable[torch.Tensor]]) -> PackedTensor:
        """Return other rows, packed in the same way; there may be none."""
        made = type(self).__new__(type(self))
        made._rows = [list(row) for row in rows]
        made.dim_to_pack, made.pad_to_max_shape = self.dim_to_pack, self.pad_to_max_shape
        return made

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        """The segments of all rows, one after the other, and None for every row without one."""
        nothing: list[torch.Tensor | None] = [None]
        return [segment for row in self._rows for segment in (row or nothing)]

    def iter_logical_segments(self) -> Iterator[torch.Tensor]:
        """Yield the segments of all rows, row by row."""
        return chain.from_iterable(self._rows)

    def logical_segment_counts_by_row(self) -> list[int]:
        """Return the number of segments per row."""
        return [len(row) for row in self._rows]

    def row_shapes(self) -> list[list[list[int]]]:
        """Return, per row, the shapes of its segments."""
        return [[list(segment.shape) for segment in row] for row in self._rows]

    def as_tensor(self, device: torch.device | str | None = None) -> torch.Tensor | None:
        """Return all segments as one tensor, on ``device`` if one is given; None where there is no segment."""
        if device is not None:
            self.to(device)
        segments = list(self.iter_logical_segments())
        if not segments:
            return None
        if self.pad_to_max_shape:
            segments = _padded(segments, self.dim_to_pack)
        return segments[0] if len(segments) == 1 else torch.cat(segments, dim=self.dim_to_pack)

    # ── other rows ──────────────────────────────────────────────────────────────────────────────────────────────────

    def slice(self, indices: Sequence[int] | torch.Tensor) -> PackedTensor:
        """Return the rows at ``indices``, in that order; a row may be taken more than once, and shares its segments."""
        chosen = indices.tolist() if isinstance(indices, torch.Tensor) else indices
        return self._like(self._rows[index] for index in chosen)

    @classmethod
    def empty_like(cls, other: PackedTensor) -> PackedTensor:
        """Return as many rows as ``other`` has, all without segments."""
        return cls.empty_rows_like(other, len(other))

    @classmethod
    def empty_rows_like(cls, other: PackedTensor, num_rows: int) -> PackedTensor:
        """Return ``num_rows`` rows without segments, packed as ``other`` is."""
        if num_rows < 0:
            raise ValueError(f"num_rows: expected at least 0, got {num_rows}")
        return other._like([] for _ in range(num_rows))

    @classmethod
    def concat(cls, from_packed_tensors: Sequence[PackedTensor]) -> PackedTensor:
        """Return the rows of several, which must be packed in the same way."""
        first = _common(from_packed_tensors)
        return first._like(row for packed in from_packed_tensors for row in packed._rows)

    @classmethod
    def flattened_concat(cls, from_packed_tensors: Sequence[PackedTensor]) -> PackedTensor:
        """Return one row per argument, which holds all that the argument packs."""
        first = _common(from_packed_tensors)
        packed = (one.as_tensor() for one in from_packed_tensors)
        return first._like([] if row is None else [row] for row in packed)

    # ── the same rows ───────────────────────────────────────────────────────────────────────────────────────────────

    def to(self, device: torch.device | str) -> PackedTensor:
        """Move all segments, in place."""
        self._rows = [[segment.to(device) for segment in row] for row in self._rows]
        return self

    def to_dtype(self, dtype: torch.dtype) -> PackedTensor:
        """Return the rows with floating-point segments converted; sizes and counts stay as they are."""
        return self._like(
            [segment.to(dtype) if segment.is_floating_point() else segment for segment in row] for row in self._rows
        )

    # ── on the wire ─────────────────────────────────────────────────────────────────────────────────────────────────

    def to_wire(self) -> tuple[torch.Tensor | None, list[list[list[int]]]]:
        """Return a jagged nested tensor ``[rows, j]`` and the segments' shapes; (None, []) without segments.

        The segments have one dtype. Only rows that are packed along their first dimension have a wire form.
        """
        if self.dim_to_pack != 0:
            raise NotImplementedError(f"dim_to_pack {self.dim_to_pack} has no wire form, only 0 has")
        segments = list(self.iter_logical_segments())
        if not segments:
            return None, []
        lengths = [sum(segment.numel() for segment in row) for row in self._rows]
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=segments[0].device)
        torch.cumsum(torch.tensor(lengths, device=segments[0].device), 0, out=offsets[1:])
        flat = [segment.reshape(-1) for segment in segments]
        return nested_from(joined(flat), offsets), self.row_shapes()

    @classmethod
    def from_wire(
        cls, nested: torch.Tensor, shapes: Sequence[Sequence[Sequence[int]]], *, pad_to_max_shape: bool = False
    ) -> PackedTensor | None:
        """Return the rows that ``to_wire`` wrote; None where there are none. The segments are views."""
        flat = list(nested.unbind())
        if not flat:
            return None
        if len(shapes) != len(flat):
            raise ValueError(f"shapes: got {len(shapes)}, expected {len(flat)}, one per row")
        rows = []
        for values, row in zip(flat, shapes, strict=True):
            sizes = [torch.Size(shape).numel() for shape in row]
            parts = torch.split(values, sizes) if row else ()
            rows.append([part.reshape(tuple(shape)) for part, shape in zip(parts, row, strict=True)])
        return cls([None], 0, pad_to_max_shape=pad_to_max_shape)._like(rows)


def _common(packed: Sequence[PackedTensor]) -> PackedTensor:
    """Return the first of several that are packed in the same way."""
    forms = sorted({(one.dim_to_pack, one.pad_to_max_shape) for one in packed})
    if len(forms) != 1:
        raise ValueError(f"(dim_to_pack, pad_to_max_shape): got {forms}, expected the same of at least one tensor")
    return packed[0]


def _padded(segments: Sequence[torch.Tensor], dim_to_pack: int) -> list[torch.Tensor]:
    """Return the segments with every dimension but the packed one as large as the largest."""
    ranks = {segment.dim() for segment in segments}
    if len(ranks) != 1:
        raise ValueError(f"pad_to_max_shape: got segments of {sorted(ranks)} dimensions, expected equally many in all")
    rank = ranks.pop()
    largest = [max(sizes) for sizes in zip(*(segment.shape for segment in segments), strict=True)]
    padded = []
    for segment in segments:
        missing = [large - size for large, size in zip(largest, segment.shape, strict=True)]
        missing[dim_to_pack % rank] = 0
        amounts = list(chain.from_iterable((0, amount) for amount in reversed(missing)))
        padded.append(torch.nn.functional.pad(segment, amounts))
    return padded


def packed_row(tensor: torch.Tensor) -> Any:
    """Return one row of one segment, packed along its first dimension: NeMo RL's own class where that is installed."""
    return _packed_class()(tensor, dim_to_pack=0)


@cache
def _packed_class() -> Any:
    try:
        from nemo_rl.data.multimodal_utils import PackedTensor as Theirs
    except ImportError:
        return PackedTensor
    return Theirs
