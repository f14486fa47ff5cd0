"""The review's proposed media hash under test: written anew from its description, unchanged.

It hashes, in the order of their names, ``name|dtype|shape|`` and then the raw bytes of every tensor, after
``detach().cpu().contiguous()``; a missing mapping counts as an empty one. Only what it says about equality is checked:
its digest has another form than the contract's, which is not a fault. It is on trial, so it declares no deviation:
whatever it does otherwise is a finding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from rollproof.properties.adapters.protocol import Adapter
from rollproof.properties.adapters.tensors import named_tensors
from rollproof.spec.judge.requests import Area
from rollproof.spec.judge.views import Entry


def sketched_digest(tensors: Mapping[Any, Any] | None) -> str:
    """Compute the proposal: SHA-256 over names, dtypes, shapes and bytes, without lengths between them."""
    state = hashlib.sha256()
    for name in sorted(tensors or {}):
        plain: torch.Tensor = (tensors or {})[name].detach().cpu().contiguous()
        state.update(f"{name}|{plain.dtype}|{tuple(plain.shape)}|".encode())
        state.update(plain.view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


class Sketch(Adapter):
    """Area ``retained``, digests only."""

    name: ClassVar[str] = "sketch"
    areas: ClassVar[frozenset[Area]] = frozenset({Area.RETAINED})

    def same_media(self, left: tuple[Entry, ...] | None, right: tuple[Entry, ...] | None) -> bool:
        """Return whether the proposal takes both for the same."""
        return sketched_digest(named_tensors(left)) == sketched_digest(named_tensors(right))
