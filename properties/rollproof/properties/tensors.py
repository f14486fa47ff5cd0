"""Between torch tensors and the spec's tensors: the only place where the gate looks into a torch tensor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from rollproof.spec.tensor import Tensor

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
"""tensordict asks torch a question that torch has renamed; its warning would stand in the middle of every report."""


def to_torch(value: Tensor) -> torch.Tensor:
    """A torch tensor with the same dtype, shape and bytes."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    if value.count == 0:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)


def from_torch(value: torch.Tensor) -> Tensor:
    """The dtype name, shape and bytes of a strided torch tensor on any device."""
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return Tensor(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)


def batch_rows(column: torch.Tensor) -> list[torch.Tensor]:
    """The rows of a batched column, jagged or dense, without its batch dimension."""
    return list(column.unbind())


def row_fields(row: dict[str, Tensor]) -> TensorDict:
    """One staged row as the TensorDict of batch size 1 that a worker puts."""
    return TensorDict({name: to_torch(value) for name, value in row.items()}, batch_size=[1])


def named_columns(fields: Any) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Per column of a TensorDict: its name and its rows."""
    for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over its batch
        yield name, batch_rows(fields.get(name))
