"""Columns of a batch as numpy arrays: what a data plane answers, without its layouts and devices (section 9).

A column of a batched read may be a dense tensor, a jagged or strided nested tensor, or a stack of tensors that fit
into neither. Behind this module there are only two forms: one scalar per row, or the rows back to back with offsets.
Every function raises ``ValueError``, naming the column, for anything else that a staged row can hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from tensordict import TensorDictBase

Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays of one length, by field name; digests are ``[C, 32]``."""


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
    """Columns ``[C]`` interleaved: per row, its element of each as u64."""
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


def read_ragged(answer: TensorDictBase, name: str, dtype: torch.dtype) -> Ragged:
    """A column of one vector per row: ``[C, n]`` dense, or nested with one ragged dimension."""
    leaf: Any = _leaf(answer, name)
    jagged = _jagged_parts(leaf)
    if jagged is not None:
        _expect(jagged[0].dtype is dtype and jagged[0].dim() == 1, name, jagged[0], dtype)
        values, offsets = _array(jagged[0]), _array(jagged[1]).astype(np.int64, copy=False)
        return Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0] if offsets[0] else offsets)
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested:
        _expect(leaf.dtype is dtype and leaf.dim() == 2, name, leaf, dtype)
        count, width = leaf.shape
        return Ragged(_array(leaf).reshape(-1), np.arange(count + 1, dtype=np.int64) * width)
    rows = _rows(leaf, name)
    for row in rows:
        _expect(row.dtype is dtype and row.dim() == 1, name, row, dtype)
    return ragged([_array(row) for row in rows], _array(torch.empty(0, dtype=dtype)))


def read_scalars(answer: TensorDictBase, name: str, dtype: torch.dtype) -> NDArray[Any]:
    """A column of one value per row: ``[C]``, ``[C, 1]``, or rows of one value each. The answer is ``[C]``."""
    leaf = _leaf(answer, name)
    if isinstance(leaf, torch.Tensor) and _jagged_parts(leaf) is None and not leaf.is_nested:
        _expect(leaf.dtype is dtype and (leaf.dim() == 1 or leaf.shape[1:] == (1,)), name, leaf, dtype)
        return _array(leaf).reshape(-1)
    if isinstance(leaf, torch.Tensor):
        column = read_ragged(answer, name, dtype)
        if np.count_nonzero(column.lengths != 1):
            raise ValueError(f"{name}: expected one value per row")
        return column.values
    rows = _rows(leaf, name)
    for row in rows:
        _expect(row.dtype is dtype and row.dim() <= 1 and row.numel() == 1, name, row, dtype)
    return np.array([row.item() for row in rows], dtype=_array(torch.empty(0, dtype=dtype)).dtype)


def read_bytes(answer: TensorDictBase, name: str) -> list[bytes]:
    """A uint8 column as one bytes object per row; no row may be empty."""
    column = read_ragged(answer, name, torch.uint8)
    if np.count_nonzero(column.lengths) < len(column.lengths):
        raise ValueError(f"{name}: an empty row")
    raw, bounds = column.values.tobytes(), column.offsets.tolist()
    return [raw[start:end] for start, end in pairwise(bounds)]


def read_texts(answer: TensorDictBase, name: str) -> list[str]:
    """A uint8 column of UTF-8 as one text per row."""
    try:
        return [row.decode() for row in read_bytes(answer, name)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 ({error.reason})") from None


def read_digests(answer: TensorDictBase, name: str, size: int) -> Bytes:
    """A uint8 column of ``size`` bytes per row, ``[C, size]``."""
    column = read_ragged(answer, name, torch.uint8)
    if np.count_nonzero(column.lengths != size):
        raise ValueError(f"{name}: expected {size} bytes per row")
    return column.values.reshape(-1, size)


def ragged(rows: list[NDArray[Any]], empty: NDArray[Any]) -> Ragged:
    """Rows put back to back; ``empty`` gives the dtype where there are none."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return Ragged(np.concatenate([empty, *rows]), offsets)


def objects(values: Iterable[Any]) -> NDArray[Any]:
    """Python values as an object array, one element each, whatever they are."""
    items = list(values)
    return np.fromiter(items, dtype=object, count=len(items))


def column_rows(leaf: Any) -> list[torch.Tensor]:
    """The rows of a batched column, whatever its layout; ``ValueError`` if it does not hold tensors."""
    return _rows(leaf, "column")


def _leaf(answer: TensorDictBase, name: str) -> Any:
    leaf = answer.get(name, None)
    if leaf is None:
        raise ValueError(f"{name}: the column is missing")
    return leaf


def _jagged_parts(leaf: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Values and offsets of a jagged nested tensor without holes; None for anything else.

    Any question to the nested tensor itself, even for its dtype, is answered in Python and costs more than a column.
    """
    nested: Any = leaf if isinstance(leaf, torch.Tensor) and hasattr(leaf, "offsets") else None
    if nested is None or nested.lengths() is not None:
        return None
    values = getattr(nested, "_values", None)
    return (nested.values() if values is None else values), nested.offsets()


def _rows(leaf: Any, name: str) -> list[torch.Tensor]:
    rows = leaf.unbind() if isinstance(leaf, torch.Tensor) else leaf.tolist() if hasattr(leaf, "tolist") else leaf
    if not isinstance(rows, list | tuple) or not all(isinstance(row, torch.Tensor) for row in rows):
        raise ValueError(f"{name}: not a tensor")
    return list(rows)


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The elements of a strided tensor on any device, in the host's memory; a view where possible."""
    return np.ascontiguousarray(tensor.numpy(force=True))


def _expect(holds: bool, name: str, found: torch.Tensor, dtype: torch.dtype) -> None:
    if not holds:
        raise ValueError(f"{name}: got {found.dtype} with {found.dim()} dimensions, expected {dtype}")
