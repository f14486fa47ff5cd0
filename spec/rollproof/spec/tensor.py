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

_DTYPES: Final[dict[str, tuple[int, str | None]]] = {
    "bool": (1, "?"),
    "int8": (1, "b"),
    "int16": (2, "h"),
    "int32": (4, "i"),
    "int64": (8, "q"),
    "uint8": (1, "B"),
    "uint16": (2, "H"),
    "uint32": (4, "I"),
    "uint64": (8, "Q"),
    "float16": (2, "e"),
    "bfloat16": (2, None),
    "float32": (4, "f"),
    "float64": (8, "d"),
    "float8_e4m3fn": (1, None),
    "float8_e5m2": (1, None),
    "float8_e4m3fnuz": (1, None),
    "float8_e5m2fnuz": (1, None),
    "complex64": (8, None),
    "complex128": (16, None),
}
"""Every dtype that the contract names: bytes per element, and how ``struct`` reads one.

The spec does not read the others: they are only ever compared and hashed.
"""
ITEM_SIZES: Final = {dtype: size for dtype, (size, _) in _DTYPES.items()}
READABLE: Final = frozenset(dtype for dtype, (_, code) in _DTYPES.items() if code is not None)


@frozen
class Tensor:
    """``dtype`` name, ``shape`` and row-major little-endian ``data``."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def __attrs_post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise ValueError(f"dtype: got {self.dtype!r}, expected one of {', '.join(ITEM_SIZES)}")
        if type(self.shape) is not tuple or not all(type(size) is int and size >= 0 for size in self.shape):
            raise ValueError(f"shape: got {self.shape!r}, expected a tuple of sizes from 0 on")
        size = self.count * ITEM_SIZES[self.dtype]
        if len(self.data) != size:
            expected = f"{size} for {self.dtype} of shape {list(self.shape)}"
            raise ValueError(f"data: got {len(self.data)} bytes, expected {expected}")

    @classmethod
    def of(cls, dtype: str, values: Iterable[int | float | bool], shape: Sequence[int] | None = None) -> Tensor:
        """Return a tensor of ``values`` in row-major order; one-dimensional unless ``shape`` says otherwise."""
        items = list(values)
        data = struct.pack(f"<{len(items)}{_DTYPES[dtype][1]}", *items)
        return cls(dtype, (len(items),) if shape is None else tuple(shape), data)

    @property
    def count(self) -> int:
        """Number of elements: the product of the dimensions, 1 for a zero-dimensional tensor."""
        return math.prod(self.shape)

    def values(self) -> tuple[int | float | bool, ...]:
        """Return the elements in row-major order, as Python numbers."""
        return struct.unpack(f"<{self.count}{_DTYPES[self.dtype][1]}", self.data)

    def rows(self, width: int) -> list[tuple[Any, ...]]:
        """Return the elements in row-major order, ``width`` of them at a time."""
        values = self.values()
        return [values[start : start + width] for start in range(0, len(values), width)]


def is_float32(value: object) -> bool:
    """Return whether ``value`` is a finite float that float32 holds exactly (section 1)."""
    return type(value) is float and math.isfinite(value) and to_float32(value) == value


def to_float32(value: float) -> float:
    """Return ``value`` rounded to float32; infinite where it does not fit."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def is_plus_zero(value: float) -> bool:
    """Return whether ``value`` has the bits of +0.0; -0.0 compares equal and digests differently (decision D2)."""
    return value == 0.0 and math.copysign(1.0, value) == 1.0
