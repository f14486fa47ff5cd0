"""A tensor as the contract sees it: a dtype name, a shape, and row-major little-endian bytes (section 1).

Modelled without torch, so that every rule about values is a rule about bytes. Two tensors are the same value iff
the three fields are equal; that is stricter than numeric equality on -0.0 and wider on NaN, as the digests are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from attrs import field, frozen

ITEM_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of every dtype that the contract names."""

_STRUCT_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
"""The dtypes whose elements the spec reads; the others are only ever compared and hashed."""
READABLE: Final = frozenset(_STRUCT_CODES)


@frozen
class Tensor:
    """``dtype`` name, ``shape`` and row-major little-endian ``data``."""

    dtype: str = field()
    shape: tuple[int, ...] = field()
    data: bytes = field(repr=False)

    @dtype.validator
    def _known_dtype(self, _: object, value: str) -> None:
        if value not in ITEM_SIZES:
            raise ValueError(f"dtype: got {value!r}, expected one of {', '.join(ITEM_SIZES)}")

    @shape.validator
    def _sizes(self, _: object, value: tuple[int, ...]) -> None:
        if type(value) is not tuple or not all(type(size) is int and size >= 0 for size in value):
            raise ValueError(f"shape: got {value!r}, expected a tuple of sizes from 0 on")

    @data.validator
    def _whole(self, _: object, value: bytes) -> None:
        expected = self.count * ITEM_SIZES[self.dtype]
        if len(value) != expected:
            raise ValueError(
                f"data: got {len(value)} bytes, expected {expected} for {self.dtype} of shape {list(self.shape)}"
            )

    @classmethod
    def of(cls, dtype: str, values: Iterable[int | float | bool], shape: Sequence[int] | None = None) -> Tensor:
        """Return a tensor of ``values`` in row-major order; one-dimensional unless ``shape`` says otherwise."""
        items = list(values)
        data = struct.pack(f"<{len(items)}{_STRUCT_CODES[dtype]}", *items)
        return cls(dtype, (len(items),) if shape is None else tuple(shape), data)

    @property
    def count(self) -> int:
        """Number of elements: the product of the dimensions, 1 for a zero-dimensional tensor."""
        return math.prod(self.shape)

    def values(self) -> tuple[int | float | bool, ...]:
        """Return the elements in row-major order, as Python numbers."""
        return struct.unpack(f"<{self.count}{_STRUCT_CODES[self.dtype]}", self.data)

    def rows(self, width: int) -> list[tuple[Any, ...]]:
        """Return the elements in row-major order, ``width`` of them at a time."""
        values = self.values()
        return [values[start : start + width] for start in range(0, len(values), width)]


def is_float32(value: object) -> bool:
    """Return whether ``value`` is a finite float that float32 holds exactly (section 1)."""
    if type(value) is not float or not math.isfinite(value):
        return False
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0]) == value
    except OverflowError:
        return False


def to_float32(value: float) -> float:
    """Return ``value`` rounded to float32; infinite where it does not fit."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def is_plus_zero(value: float) -> bool:
    """Return whether ``value`` has the bits of +0.0; -0.0 compares equal and digests differently (decision D2)."""
    return value == 0.0 and math.copysign(1.0, value) == 1.0
