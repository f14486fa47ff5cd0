"""Conversion between torch tensors and the spec's tensors: the only place where the gate reads a torch tensor."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.spec.judge.views import Entry, Held
from rollproof.spec.tensor import Tensor

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
"""tensordict calls a function that torch has renamed; its warning would appear in the middle of every report."""


def to_torch(value: Tensor) -> torch.Tensor:
    """Return a torch tensor with the same dtype, shape and bytes."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    if value.count == 0:
        return torch.empty(value.shape, dtype=dtype)
    return torch.frombuffer(bytearray(value.data), dtype=dtype).reshape(value.shape)


def from_torch(value: torch.Tensor) -> Tensor:
    """Return the dtype name, shape and bytes of a strided torch tensor on any device."""
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy().tobytes()
    return Tensor(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)


def batch_rows(column: torch.Tensor) -> list[torch.Tensor]:
    """Return the rows of a batched column, jagged or dense, without its batch dimension."""
    # Unbinding a jagged tensor takes as long as ten rows.
    return column_rows(column) if hasattr(column, "offsets") else list(column.unbind())


def row_fields(row: dict[str, Tensor]) -> TensorDict:
    """Return one staged row as the TensorDict of batch size 1 that a worker puts."""
    return TensorDict({name: to_torch(value) for name, value in row.items()}, batch_size=[1])


def single_row(row: Mapping[str, Tensor]) -> dict[str, torch.Tensor]:
    """Return one staged row of batch size 1 as its tensors, without the batch dimension."""
    return {name: to_torch(value)[0] for name, value in row.items()}


def stage_rows(plane: Any, partition: str, rows: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put staged rows one by one, as workers do."""
    for key, row in rows.items():
        plane.put_samples([key], partition, row_fields(dict(row)), [{}])


def named_columns(fields: Any) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Yield each column of a TensorDict: its name and its rows."""
    for name in fields.keys():  # noqa: SIM118 - a TensorDict iterates over its batch
        yield name, batch_rows(fields.get(name))


# ── tensors held in memory as an ``Entry`` says: the same value in many layouts, and what has no value ──────────────


def named_tensors(entries: tuple[Entry, ...] | None) -> dict[Any, Any] | None:
    """Return what an implementation gets for some entries: objects by name."""
    return None if entries is None else {entry.name: hold(entry) for entry in entries}


def hold(entry: Entry) -> Any:
    """Return one entry's object. A tensor that cannot be held in the requested way is held contiguously."""
    return HOLDERS[entry.held](to_torch(entry.tensor))


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """Hold a tensor contiguously, from the second element of a longer storage on."""
    other = torch.zeros(tensor.element_size(), dtype=torch.uint8)
    return torch.cat([other, raw(tensor), other]).view(tensor.dtype)[1:-1].reshape(tensor.shape)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Hold a tensor column by column in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Hold a tensor with another element after every element."""
    if not tensor.dim():
        return tensor
    return torch.stack([tensor, tensor], dim=-1).flatten(-2)[..., ::2]


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """Hold the first slice in place of all of them, where they are equal."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    first = tensor[:1].clone()
    alike = all(torch.equal(raw(first), raw(tensor[index : index + 1])) for index in range(len(tensor)))
    return first.expand(tensor.shape) if alike else tensor


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """Hold a tensor stored conjugated, and marked so."""
    return torch.conj_physical(tensor).conj() if tensor.is_complex() else tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Hold a tensor stored negated, and marked so."""
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return tensor
    return torch._neg_view(-tensor)


def quantized(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Hold the tensor's bytes as steps of a scale."""

    def hold_quantized(tensor: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch._make_per_tensor_quantized_tensor(raw(tensor).clone(), scale, 0)

    return hold_quantized


def sparse(_: torch.Tensor) -> torch.Tensor:
    """Leave two of three elements out."""
    return torch.tensor([0.0, 1.0, 0.0]).to_sparse()


def nested(_: torch.Tensor) -> torch.Tensor:
    """Return two rows of different lengths."""
    return torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)


HOLDERS: Final[Mapping[Held, Callable[[torch.Tensor], Any]]] = {
    Held.CONTIGUOUS: lambda tensor: tensor,
    Held.OFFSET: offset,
    Held.TRANSPOSED: transposed,
    Held.STRIDED: strided,
    Held.EXPANDED: expanded,
    Held.CONJUGATED: conjugated,
    Held.NEGATED: negated,
    Held.NULL: lambda _: None,
    Held.SPARSE: sparse,
    Held.NESTED: nested,
    Held.META: lambda tensor: tensor.to("meta"),
    Held.QUANTIZED: quantized(0.5),
    Held.QUANTIZED_COARSER: quantized(1.0),
    Held.OTHER_DTYPE: lambda tensor: raw(tensor).view(torch.float8_e8m0fnu),
    Held.LIST: lambda tensor: [0.0] * tensor.numel(),
}
