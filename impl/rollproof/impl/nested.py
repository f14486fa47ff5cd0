"""Jagged nested tensors, made without torch's detour.

The public function makes a view, by way of torch's dispatcher and four of its Python layers: that takes as long as
reading a column. What it arrives at is a call of the class itself, which is not public. Without that class, or with one
that has other parameters, the public function is used.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

_Direct: Any = None
with suppress(Exception):
    from torch.nested._internal.nested_tensor import NestedTensor

    NestedTensor(torch.zeros(1), offsets=torch.tensor([0, 1]))
    _Direct = NestedTensor


def nested_from(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return a jagged nested tensor in the memory of ``values``: row ``i`` is values[offsets[i]:offsets[i + 1]].

    Gradients do not flow through it.
    """
    if _Direct is None:
        return torch.nested.nested_tensor_from_jagged(values, offsets)
    made: torch.Tensor = _Direct(values, offsets=offsets)
    return made
