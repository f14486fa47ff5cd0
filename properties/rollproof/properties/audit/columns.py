"""Batched tensors as a recorder writes them: a few bytes of description, and the data as it is in memory.

A column of a batch is written whole, never row by row: recording must cost little beside finalizing. It has one of
three forms:

{"dtype": "int64", "shape": [], "data": …}                    dense: N rows of one shape
    {"dtype": "int64", "shape": [], "lengths": [4, 3], "data": …}  jagged: row i has shape [lengths[i], *shape]
    {"rows": [{"dtype": …, "shape": […], "data": …}, …]}           rows that fit into neither

``data`` is base64, or ``{"tensor": name}`` in the group's shard.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from attrs import define, field
from numpy.typing import NDArray

from rollproof.impl import base64
from rollproof.impl.columns import column_rows
from rollproof.spec.tensor import ITEM_SIZES

INLINE_BYTES: Final = 16 * 1024
"""Larger tensors go into the group's shard by default: base64 and JSON cost several times what a plain write does."""

NAMES: Final = {getattr(torch, name): name for name in ITEM_SIZES}
"""The contract's names of torch's dtypes."""


@define
class Store:
    """Where the data of one group's tensors goes. ``large`` ends up in the shard."""

    inline_bytes: int = INLINE_BYTES
    large: dict[str, NDArray[Any]] = field(factory=dict)

    def keep(self, values: torch.Tensor) -> str | dict[str, str]:
        """Return what represents the data of a tensor in the line."""
        array = plain_array(values)
        if array.nbytes <= self.inline_bytes:
            return base64.encode(array.tobytes()).decode("ascii")
        name = f"t{len(self.large)}"
        # Shards know one of the two complex dtypes; the line says what the bytes are.
        self.large[name] = array.reshape(-1).view(np.uint8).copy() if array.dtype.kind == "c" else array.copy()
        return {"tensor": name}


def plain_array(values: torch.Tensor) -> NDArray[Any]:
    """Return the elements in row-major order, on the CPU; bytes where numpy has no such dtype."""
    if values.device.type != "cpu" or values.requires_grad or values.is_conj() or values.is_neg():
        values = values.detach().cpu().resolve_conj().resolve_neg()
    try:
        return np.ascontiguousarray(values.numpy())
    except TypeError:
        return values.contiguous().reshape(-1).view(torch.uint8).numpy()


def describe_batch(fields: Any, store: Store) -> dict[str, Any]:
    """Return a TensorDict of batch size ``[N]`` as JSON."""
    columns = {}
    for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over its batch
        columns[name] = describe_column(fields.get(name), store)
    return {"count": int(fields.batch_size[0]), "columns": columns}


def describe_column(column: Any, store: Store) -> dict[str, Any]:
    """Return one batched column as JSON; a column that does not hold tensors is named by its type."""
    jagged = jagged_parts(column)
    if jagged is not None:
        values, offsets = jagged[0], jagged[1].tolist()
        lengths = [end - start for start, end in pairwise(offsets)]
        return describe_rows(values[offsets[0] : offsets[-1]], {"lengths": lengths}, store)
    if isinstance(column, torch.Tensor) and not column.is_nested and column.dim() > 0 and has_bytes(column):
        return describe_rows(column, {}, store)
    try:
        rows = column_rows(column)
    except ValueError:
        return {"other": type(column).__name__}
    if not all(map(has_bytes, rows)):
        return {"other": type(column).__name__}
    return {"rows": [describe_tensor(row, store) for row in rows]}


def has_bytes(value: torch.Tensor) -> bool:
    """Return whether a tensor has a value in the contract's sense."""
    return value.layout is torch.strided and value.dtype in NAMES and not value.is_meta


def describe_tensor(value: torch.Tensor, store: Store) -> dict[str, Any]:
    """Return one tensor of a dtype that the contract names as JSON."""
    return {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data": store.keep(value)}


def describe_rows(values: torch.Tensor, lengths: dict[str, list[int]], store: Store) -> dict[str, Any]:
    """Return values whose first dimension is that of the batch, or of all rows back to back, as JSON."""
    return {"dtype": NAMES[values.dtype], "shape": list(values.shape[1:]), **lengths, "data": store.keep(values)}


def jagged_parts(column: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return values and offsets of a jagged tensor without holes, whose rows differ in their first dimension; or None.

    They are read from its attributes, where this release of torch has them: any other operation on a nested tensor runs
    in Python, and costs more than writing the column.
    """
    values, offsets = getattr(column, "_values", None), getattr(column, "_offsets", None)
    if type(values) is not torch.Tensor or type(offsets) is not torch.Tensor or values.dtype not in NAMES:
        return None
    plain = getattr(column, "_lengths", offsets) is None and getattr(column, "_ragged_idx", None) == 1
    return (values, offsets) if plain else None
