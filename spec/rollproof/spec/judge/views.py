"""Layouts of a tensor in memory, and objects that look like a tensor and have no bytes of their own.

The contract's value of a tensor is dtype, shape and row-major bytes. Frameworks hold the same value in many ways, and
none of them may change a digest; other objects of theirs have no such value, and are refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from attrs import frozen

from rollproof.spec.tensor import Tensor


class Held(StrEnum):
    """How an implementation gets a tensor."""

    CONTIGUOUS = "contiguous"
    OFFSET = "offset"
    """Contiguous, inside a larger storage."""
    TRANSPOSED = "transposed"
    """The first and the last dimension are exchanged in memory."""
    STRIDED = "strided"
    """Every second element of a larger tensor."""
    EXPANDED = "expanded"
    """One element, or one slice along the first dimension, represents all of them."""
    CONJUGATED = "conjugated"
    """A complex tensor that is stored conjugated, and marked so."""
    NEGATED = "negated"
    """A floating-point tensor that is stored negated, and marked so."""

    NULL = "null"
    """No tensor under this name."""
    SPARSE = "sparse"
    NESTED = "nested"
    META = "meta"
    """A shape without data."""
    QUANTIZED = "quantized"
    """Bytes that mean nothing without a scale."""
    QUANTIZED_COARSER = "quantized_coarser"
    """The same bytes under another scale."""
    OTHER_DTYPE = "other_dtype"
    """Of a dtype that the contract does not name."""
    LIST = "list"
    """A list of numbers."""


VALUELESS: Final = frozenset(
    {
        Held.NULL,
        Held.SPARSE,
        Held.NESTED,
        Held.META,
        Held.QUANTIZED,
        Held.QUANTIZED_COARSER,
        Held.OTHER_DTYPE,
        Held.LIST,
    }
)
"""Kinds of values that have no digest."""


@frozen
class Entry:
    """One named tensor as it is handed over. ``name`` is usually a string."""

    name: Any
    tensor: Tensor
    held: Held = Held.CONTIGUOUS


def named_values(entries: tuple[Entry, ...] | None) -> dict[Any, Any] | None:
    """Map names to tensors as the contract defines them; a tensor without a value becomes its kind."""
    if entries is None:
        return None
    return {entry.name: entry.held if entry.held in VALUELESS else entry.tensor for entry in entries}
