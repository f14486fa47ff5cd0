"""The size of an input, which its limits on time and memory depend on."""

from __future__ import annotations

from typing import Any, Final

from attrs import fields, has

from rollproof.spec.tensor import Tensor

_FIXED: Final = {type(None): 4, bool: 5, float: 8}
_SIZED: Final = (str, bytes)
BITS_PER_DIGIT: Final = 3.32


def input_size(value: Any) -> int:
    """Return about as many bytes as the value has as JSON, tensors in binary. Does not recurse, however deep it is.

    A record counts by its fields' values; a string by its characters.
    """
    total = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        kind = type(one)
        if kind in _SIZED:
            total += len(one) + 2
        elif kind in _FIXED:
            total += _FIXED[kind]
        elif kind is int:
            total += int(one.bit_length() / BITS_PER_DIGIT) + 1
        elif kind is dict:
            total += 2 + 2 * len(one)
            waiting += one.keys()
            waiting += one.values()
        elif kind is list or kind is tuple:
            total += 2 + len(one)
            waiting += one
        elif kind is Tensor:
            total += len(one.data) + 16
        elif has(kind):
            waiting += (getattr(one, field.name) for field in fields(kind))
        else:
            total += 8
    return total
