"""Routes on the wire, as tensors (section 6): the envelope, and nested lists of ints.

``decode_routes`` checks an envelope's head and length before it reads the payload, so a hostile one costs
neither time nor memory.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final

import numpy as np
import torch

from rollproof.impl import base64
from rollproof.impl.checks import fault
from rollproof.spec.rejections import Code, Rejected

DTYPES: Final = {"int8": torch.int8, "int16": torch.int16, "int32": torch.int32}
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
MAGIC: Final = "nrlre1"

_DIMENSION: Final = "([1-9][0-9]{0,18})"
_HEAD: Final = re.compile(f"{MAGIC}:(int8|int16|int32):{_DIMENSION}x{_DIMENSION}x{_DIMENSION}:")
_INT16: Final = range(-(2**15), 2**15)


def envelope_head(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    """Return an envelope up to its payload; ``ValueError`` for a dtype or shape that has none."""
    if dtype not in NAMES:
        raise ValueError(fault("dtype", str(dtype).removeprefix("torch."), " or ".join(DTYPES)))
    if len(shape) != 3 or not all(shape):
        raise ValueError(fault("shape", shape, "three dimensions, none of them 0"))
    return f"{MAGIC}:{NAMES[dtype]}:{shape[0]}x{shape[1]}x{shape[2]}:"


def encode_routes(routes: torch.Tensor) -> str:
    """Return the envelope of an int8, int16 or int32 tensor ``[T, L, K]`` on any device.

    Raises ``Rejected(INVALID_ROUTE_ENVELOPE)`` for another tensor.
    """
    try:
        head = envelope_head(routes.dtype, tuple(routes.shape))
    except ValueError as error:
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, str(error)) from None
    return head + base64.encode(little_endian(routes)).decode("ascii")


def little_endian(routes: torch.Tensor) -> memoryview:
    """Return an integer tensor's row-major little-endian bytes in the host's memory; no copy where they are there."""
    array = np.ascontiguousarray(routes.numpy(force=True))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8).data


def decode_routes(payload: Any) -> torch.Tensor:
    """Return the tensor ``[T, L, K]`` of any JSON value: an envelope in its own dtype, nested lists as int16.

    Raises ``Rejected(INVALID_ROUTE_ENVELOPE)`` for every value that is neither, and nothing else.
    """
    try:
        return _decode_envelope(payload) if type(payload) is str else _decode_lists(payload)
    except ValueError as error:
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, str(error)) from None


def _decode_envelope(envelope: str) -> torch.Tensor:
    head = _HEAD.match(envelope)
    if head is None:
        raise ValueError(fault("envelope", envelope, f"{MAGIC}:<int8|int16|int32>:<T>x<L>x<K>:<base64>"))
    dtype, shape = DTYPES[head[1]], (int(head[2]), int(head[3]), int(head[4]))
    data = base64.decode(envelope[head.end() :], shape[0] * shape[1] * shape[2] * dtype.itemsize)
    stored = np.frombuffer(data, dtype=np.dtype(head[1]).newbyteorder("<"))
    return torch.from_numpy(stored.astype(head[1], copy=False)).reshape(shape)


def _decode_lists(value: Any) -> torch.Tensor:
    """Decode three levels of lists, flattened level by level; each level has one length and one type."""
    shape, level = [], [value]
    for name in ("tokens", "layers of a token", "experts of a layer"):
        if set(map(type, level)) != {list}:
            found = next(item for item in level if type(item) is not list)
            raise ValueError(fault(name, found, "a list (routes are an envelope or three levels of lists)"))
        sizes = set(map(len, level))
        if len(sizes) > 1 or 0 in sizes:
            raise ValueError(fault(f"number of {name}", sorted(sizes), "the same in every list, and at least one"))
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))
    if set(map(type, level)) != {int} or min(level) not in _INT16 or max(level) not in _INT16:
        found = next(item for item in level if type(item) is not int or item not in _INT16)
        raise ValueError(fault("expert id", found, "an int (not a bool or float) that int16 holds"))
    return torch.from_numpy(np.array(level, dtype=np.int16)).reshape(shape)
