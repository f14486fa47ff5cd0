"""Columns of a batch as numpy arrays: what a data plane answers, without its layouts and devices (section 9).

A column of a batched read may be a dense tensor, a jagged or strided nested tensor, or a stack of tensors that fit
into neither. Behind this module there are only two forms: one scalar per row, or the rows back to back with offsets.
Every function raises ``ValueError``, naming the column, for anything else that a staged row can hold.

What the readers return is in memory of its own: a data plane may use the memory of its answer again once the next read
begins, and what was verified must be what is published. So it is a copy, unless rows are held that were kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import torch
from attrs import define, frozen
from numpy.typing import NDArray

from rollproof.impl.host_memory import copied

REPEATED_BYTES: Final = 2**20
"""How large a column may be that repeats its elements instead of holding them."""

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays of one length, by field name; digests are ``[C, 32]``."""


class Answer(Protocol):
    """What a batched read answers: a TensorDict, or ``HeldRows``."""

    @property
    def batch_size(self) -> Sequence[int]:
        """How many rows there are, as the only element."""
        ...

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column."""
        ...

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Return the columns by name."""
        ...


class MissingColumn(ValueError):
    """An answer lacks a column. It does not tell of which row: a batch has the columns that all of its rows have."""


@frozen(eq=False)
class Ragged:
    """Rows of unequal length, back to back: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: NDArray[Any]
    offsets: Ints

    @property
    def lengths(self) -> Ints:
        """Elements per row, ``[C]``."""
        return self.offsets[1:] - self.offsets[:-1]


def big_endian(*columns: Ints) -> list[bytes]:
    """Return columns ``[C]`` interleaved: per row, its element of each as u64."""
    return np.array(columns).T.astype(">i8", order="C").view(f"V{8 * len(columns)}").ravel().tolist()


@frozen(eq=False)
class EncodedTokens:
    """The token columns of a batch of calls in digest byte order; call ``i`` has elements bounds[i] to bounds[i+1]."""

    ids: memoryview
    mask: memoryview
    logprobs: memoryview
    bounds: list[int]
    counts: list[bytes]
    """Tokens per call, as u64."""

    @classmethod
    def of(
        cls,
        token_ids: NDArray[np.int64],
        token_mask: NDArray[np.float32],
        logprobs: NDArray[np.float32],
        offsets: NDArray[np.int64],
    ) -> EncodedTokens:
        """Encode whole columns: ``[T]`` each, with ``[C + 1]`` offsets."""
        return cls(
            token_ids.astype(">i8").view(np.uint8).data,
            token_mask.astype(">f4").view(np.uint8).data,
            logprobs.astype(">f4").view(np.uint8).data,
            offsets.tolist(),
            big_endian(offsets[1:] - offsets[:-1]),
        )


def read_ragged(answer: Answer, name: str, dtype: torch.dtype) -> Ragged:
    """Read a column of one vector per row: ``[C, n]`` dense, or nested with one ragged dimension."""
    leaf: Any = _leaf(answer, name)
    jagged = _jagged_parts(leaf)
    if jagged is not None:
        _expect(jagged[0].dtype is dtype and jagged[0].dim() == 1, name, jagged[0], dtype, "a vector per row")
        values, offsets = _array(jagged[0]), _bounds(*jagged, name)
        values = values[offsets[0] : offsets[-1]]
        return Ragged(values if is_kept(answer) else values.copy(), offsets - offsets[0])
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        _expect(leaf.dtype is dtype and leaf.dim() == 2, name, leaf, dtype, "a vector per row")
        count, width = leaf.shape
        return Ragged(_array(leaf).reshape(-1).copy(), np.arange(count + 1, dtype=np.int64) * width)
    rows = _rows(leaf, name)
    for row in rows:
        _expect(row.dtype is dtype and row.dim() == 1, name, row, dtype, "a vector per row")
    return ragged([_array(row) for row in rows], _array(torch.empty(0, dtype=dtype)))


def read_scalars(answer: Answer, name: str, dtype: torch.dtype) -> NDArray[Any]:
    """Read a column of one value per row as ``[C]``, from ``[C]``, ``[C, 1]``, or rows of one value each."""
    leaf = _leaf(answer, name)
    if isinstance(leaf, torch.Tensor) and _jagged_parts(leaf) is None and not leaf.is_nested:
        _expect(
            leaf.dtype is dtype and (leaf.dim() == 1 or leaf.shape[1:] == (1,)), name, leaf, dtype, "one value per row"
        )
        return _array(leaf).reshape(-1).copy()
    if isinstance(leaf, torch.Tensor | Jagged):
        column = read_ragged(answer, name, dtype)
        wrong = column.lengths != 1
        if np.count_nonzero(wrong):
            raise ValueError(f"{name}: got {column.lengths[wrong][0]} values, expected one")
        return column.values
    rows = _rows(leaf, name)
    for row in rows:
        _expect(row.dtype is dtype and row.dim() <= 1 and row.numel() == 1, name, row, dtype, "one value per row")
    return np.array([row.item() for row in rows], dtype=_array(torch.empty(0, dtype=dtype)).dtype)


def read_bytes(answer: Answer, name: str) -> list[bytes]:
    """Read a uint8 column as one bytes object per row; no row may be empty."""
    column = read_ragged(answer, name, torch.uint8)
    if np.count_nonzero(column.lengths) < len(column.lengths):
        raise ValueError(f"{name}: got 0 bytes, expected at least one")
    raw, bounds = column.values.tobytes(), column.offsets.tolist()
    return [raw[start:end] for start, end in pairwise(bounds)]


def read_texts(answer: Answer, name: str) -> list[str]:
    """Read a uint8 column of UTF-8 as one string per row."""
    try:
        return [row.decode() for row in read_bytes(answer, name)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: got {error.object!r:.80}, expected a string in UTF-8") from None


def read_digests(answer: Answer, name: str, size: int) -> Bytes:
    """Read a uint8 column of ``size`` bytes per row, ``[C, size]``."""
    column = read_ragged(answer, name, torch.uint8)
    wrong = column.lengths != size
    if np.count_nonzero(wrong):
        raise ValueError(f"{name}: got {column.lengths[wrong][0]} bytes, expected {size}")
    return column.values.reshape(-1, size)


def ragged(rows: list[NDArray[Any]], empty: NDArray[Any]) -> Ragged:
    """Join rows back to back; ``empty`` gives the dtype where there are none."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Ragged(np.concatenate([empty, *rows]), offsets)


def objects(values: Iterable[Any]) -> NDArray[Any]:
    """Return Python values as an object array, one element each, whatever they are."""
    items = list(values)
    return np.fromiter(items, dtype=object, count=len(items))


def column_rows(leaf: Any, name: str = "column") -> list[torch.Tensor]:
    """Return the rows of a batched column, whatever its layout; ``ValueError`` if it does not hold tensors."""
    return _rows(leaf, name)


@frozen(eq=False)
class Jagged:
    """A jagged column of which each row is some of the values, without the nested tensor that torch makes of it."""

    values: torch.Tensor
    offsets: torch.Tensor
    """``[C + 1]``, ascending."""


Column: TypeAlias = Jagged | torch.Tensor | list[torch.Tensor]


@define(eq=False)
class HeldRows:
    """The rows of an answer, themselves an answer, from which shorter ones can be taken without a copy."""

    columns: Mapping[str, Column]
    count: int
    kept: bool = False
    """Whether they are in memory that nobody else uses."""

    @classmethod
    def of(cls, answer: Answer, *, new: bool = False) -> HeldRows:
        """Hold the rows of an answer in its memory, which is ``new`` where the data plane will never use it again.

        Columns that do not hold a tensor per row are left out.
        """
        count, columns = answer.batch_size[0], {}
        for name, leaf in answer.items():
            with suppress(ValueError):
                columns[str(name)] = _column(leaf, str(name), count)
        return cls(columns, count, new)

    def keep(self) -> None:
        """Copy the rows, once, before the data plane uses the memory of its answer again."""
        if not self.kept:
            self.columns, self.kept = {name: _copied(column) for name, column in self.columns.items()}, True

    @property
    def batch_size(self) -> tuple[int]:
        """How many rows there are, as the only element."""
        return (self.count,)

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column."""
        return self.columns.get(name, default)

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the columns by name."""
        return self.columns.items()

    def take(self, rows: Sequence[int], names: Iterable[str]) -> HeldRows:
        """Return some rows, at least one, with some of the columns, in the same memory."""
        first, consecutive = rows[0], list(rows) == list(range(rows[0], rows[0] + len(rows)))
        columns: dict[str, Column] = {}
        for name in names:
            column = self.columns[name]
            if not consecutive or isinstance(column, list):
                every = column_rows(column, name)
                columns[name] = [every[row] for row in rows]
            elif isinstance(column, Jagged):
                columns[name] = Jagged(column.values, column.offsets[first : first + len(rows) + 1])
            else:
                columns[name] = column[first : first + len(rows)]
        return HeldRows(columns, len(rows), self.kept)


def is_kept(answer: Answer) -> bool:
    """Return whether an answer is in memory that nobody else uses, so that nothing of it need be copied."""
    return isinstance(answer, HeldRows) and answer.kept


def _column(leaf: Any, name: str, count: int) -> Column:
    """Return a column of so many rows. Raises ``ValueError`` for another count, or for what does not hold tensors."""
    jagged = _batched(leaf)
    column: Column
    if jagged is not None:
        _expect_elements(jagged[0], name)
        column = Jagged(jagged[0], torch.from_numpy(_bounds(*jagged, name)))
        length = len(column.offsets) - 1
    elif isinstance(leaf, torch.Tensor) and not leaf.is_nested and leaf.dim():
        _expect_elements(leaf, name)
        column, length = leaf, len(leaf)
    else:
        column = _rows(leaf, name)
        length = len(column)
    if length != count:
        raise ValueError(f"{name}: got {length} rows, expected {count}")
    return column


def _copied(column: Column) -> Column:
    if isinstance(column, Jagged):
        return Jagged(copied(column.values), column.offsets)
    return copied(column) if isinstance(column, torch.Tensor) else [row.clone() for row in column]


def own_rows(leaf: Any) -> list[torch.Tensor] | None:
    """Return the rows of a column in memory of their own, each on its device; None for a column without tensors."""
    try:
        return [row.clone() for row in _rows(leaf, "column")]
    except ValueError:
        return None


def _leaf(answer: Answer, name: str) -> Any:
    leaf = answer.get(name, None)
    if leaf is None:
        raise MissingColumn(f"{name}: got None, expected a column")
    if isinstance(leaf, torch.Tensor) and _jagged_parts(leaf) is None and not leaf.is_nested:
        _expect_elements(leaf, name)
    return leaf


def _expect_elements(tensor: torch.Tensor, name: str) -> None:
    """Check that a tensor's elements can be read: strided, with data, and not more than it has memory for.

    A view that repeats its elements has any size without any memory, and would be written out in full.
    """
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)
        raise ValueError(f"{name}: got a {kind} tensor, expected a plain strided one")
    if tensor.is_meta:
        raise ValueError(f"{name}: got a meta tensor, expected one with data")
    if tensor.nbytes > REPEATED_BYTES and tensor.nbytes > (held := tensor.untyped_storage().nbytes()):
        raise ValueError(f"{name}: got shape {list(tensor.shape)} of {held} bytes, expected memory for every element")


def _jagged_parts(leaf: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return values and offsets of a jagged nested tensor without holes; None for anything else.

    Any operation on the nested tensor itself, even reading its dtype, runs in Python and costs more than a column.
    """
    if isinstance(leaf, Jagged):
        return leaf.values, leaf.offsets
    nested: Any = leaf if isinstance(leaf, torch.Tensor) and hasattr(leaf, "offsets") else None
    if nested is None or nested.lengths() is not None:
        return None
    values = getattr(nested, "_values", None)
    return (nested.values() if values is None else values), nested.offsets()


def _bounds(values: torch.Tensor, offsets: torch.Tensor, name: str) -> Ints:
    """Return the offsets of a jagged column, ``[C + 1]``; ``ValueError`` if they are not ascending within it."""
    bounds = _array(offsets).astype(np.int64)
    if not len(bounds) or bounds[0] < 0 or bounds[-1] > len(values) or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(
            f"{name}: got offsets {bounds[:8].tolist()}, expected ascending ones within {len(values)} values"
        )
    return bounds


def _batched(leaf: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return values and offsets of a jagged column whose rows are consecutive values, of any shape."""
    parts = _jagged_parts(leaf)
    return parts if isinstance(leaf, Jagged) or getattr(leaf, "_ragged_idx", None) == 1 else None


def _rows(leaf: Any, name: str) -> list[torch.Tensor]:
    jagged = _batched(leaf)
    if jagged is not None:
        values, bounds = jagged[0], _bounds(*jagged, name)
        _expect_elements(values, name)
        return list(torch.split(values[bounds[0] : bounds[-1]], np.diff(bounds).tolist()))
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        _expect_elements(leaf, name)
        if not leaf.dim():
            raise ValueError(f"{name}: got a tensor without dimensions, expected a batch of rows")
        return list(leaf.unbind())
    rows = leaf.unbind() if isinstance(leaf, torch.Tensor) else leaf.tolist() if hasattr(leaf, "tolist") else leaf
    if not isinstance(rows, list | tuple) or not all(isinstance(row, torch.Tensor) for row in rows):
        raise ValueError(f"{name}: got a {type(leaf).__name__}, expected tensors")
    for row in rows:
        _expect_elements(row, name)
    return list(rows)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return the elements of a strided tensor on any device, in the host's memory; a view where possible."""
    return np.ascontiguousarray(tensor.numpy(force=True))


def _expect(holds: bool, name: str, found: torch.Tensor, dtype: torch.dtype, form: str) -> None:
    if not holds:
        raise ValueError(f"{name}: got {found.dtype} of shape {list(found.shape)}, expected {dtype}, {form}")
