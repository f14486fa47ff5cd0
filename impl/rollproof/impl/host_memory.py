"""Large tensors in the host's memory, on huge pages where the system has them.

The system clears a page when it is first written. Copying 38 MB into fresh pages of 4 kB took 21 ms, into huge ones
4.5: numpy asks for these from 4 MB on, torch does not. Copies are made on the caller's thread: torch would spread each
over all of its own and wait for them, however busy the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

LARGE: Final = 2**22
"""The bytes from which numpy asks for huge pages."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of any values."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(dtype).view(tuple(shape))


def concatenated(parts: Sequence[torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
    """Return tensors one after the other along their first dimension, all of one dtype: in ``out`` where it is given.

    On another device than the host's it is torch's work.
    """
    first = parts[0]
    here = all(part.device.type == "cpu" for part in parts)
    if not here or sum(part.nbytes for part in parts) < LARGE:
        return torch.cat(list(parts)) if out is None else torch.cat(list(parts), out=out)
    if out is None:
        out = empty((sum(map(len, parts)), *first.shape[1:]), first.dtype)
    np.concatenate([_bytes(part) for part in parts], out=_bytes(out))
    return out


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy, on the same device."""
    return concatenated([tensor]) if tensor.dim() and tensor.nbytes >= LARGE else tensor.clone()


def _bytes(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.detach().contiguous().view(torch.uint8).numpy().reshape(-1)
