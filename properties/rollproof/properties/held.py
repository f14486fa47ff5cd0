"""Torch tensors that lie in memory as an ``Entry`` says: the same value, held in many ways, and what has none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from rollproof.properties.tensors import to_torch
from rollproof.spec.views import Entry, Held


def named_tensors(entries: tuple[Entry, ...] | None) -> dict[Any, Any] | None:
    """What an implementation is handed for some entries: objects by name."""
    return None if entries is None else {entry.name: hold(entry) for entry in entries}


def hold(entry: Entry) -> Any:
    """One entry's object. A tensor that cannot be held as asked is held contiguously."""
    return HOLDERS[entry.held](to_torch(entry.tensor))


def offset(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, from the second element of a longer storage on."""
    other = torch.zeros(tensor.element_size(), dtype=torch.uint8)
    return torch.cat([other, raw(tensor), other]).view(tensor.dtype)[1:-1].reshape(tensor.shape)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8)


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Column by column in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """With another element after every element."""
    if not tensor.dim():
        return tensor
    return torch.stack([tensor, tensor], dim=-1).flatten(-2)[..., ::2]


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    """The first slice in place of all of them, where they are equal."""
    if not tensor.dim() or not tensor.numel():
        return tensor
    first = tensor[:1].clone()
    alike = all(torch.equal(raw(first), raw(tensor[index : index + 1])) for index in range(len(tensor)))
    return first.expand(tensor.shape) if alike else tensor


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """Stored conjugated, and marked so."""
    return torch.conj_physical(tensor).conj() if tensor.is_complex() else tensor


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Stored negated, and marked so."""
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return tensor
    return torch._neg_view(-tensor)


def quantized(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The tensor's bytes as steps of a scale."""

    def hold_quantized(tensor: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch._make_per_tensor_quantized_tensor(raw(tensor).clone(), scale, 0)

    return hold_quantized


def sparse(_: torch.Tensor) -> torch.Tensor:
    """Two of three elements left out."""
    return torch.tensor([0.0, 1.0, 0.0]).to_sparse()


def nested(_: torch.Tensor) -> torch.Tensor:
    """Two rows of different lengths."""
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
