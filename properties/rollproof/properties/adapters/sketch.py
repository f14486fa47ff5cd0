"""The review's proposed media hash on trial: written anew from its description, as it stands there.

It hashes, in the order of their names, ``name|dtype|shape|`` and then the raw bytes of every tensor, after
``detach().cpu().contiguous()``; a missing mapping counts as an empty one. Only what it says about equality is checked:
its digest has another form than the contract's, which is no fault. Every way in which it goes wrong is declared here,
so that the gate shows each with its smallest input, and shows that it is right everywhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from rollproof.properties.held import named_tensors
from rollproof.properties.protocol import Adapter, Deviation
from rollproof.spec.requests import Accepted, Answer, Area, Crashed, Refused, Request, SameMedia
from rollproof.spec.values import is_text
from rollproof.spec.views import VALUELESS, Entry, Held

QUANTIZED = frozenset({Held.QUANTIZED, Held.QUANTIZED_COARSER})


def sketched_digest(tensors: Mapping[Any, Any] | None) -> str:
    """The proposal: SHA-256 over names, dtypes, shapes and bytes, without lengths between them."""
    state = hashlib.sha256()
    for name in sorted(tensors or {}):
        plain: torch.Tensor = (tensors or {})[name].detach().cpu().contiguous()
        state.update(f"{name}|{plain.dtype}|{tuple(plain.shape)}|".encode())
        state.update(plain.view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


# ── where it goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────


def entries(request: Request) -> Iterator[Entry]:
    """All tensors of a pair."""
    if isinstance(request, SameMedia):
        yield from request.left or ()
        yield from request.right or ()


def collides(expected: Answer, actual: Answer) -> bool:
    """Whether it takes different tensors for the same."""
    return expected == Accepted(False) and actual == Accepted(True)


def null_is_empty(request: Request, expected: Answer, actual: Answer) -> bool:
    """One side is no mapping, the other an empty one."""
    sides = (request.left, request.right) if isinstance(request, SameMedia) else ()
    return collides(expected, actual) and set(sides) == {None, ()}


def framing(request: Request, expected: Answer, actual: Answer) -> bool:
    """Both sides hold tensors: what separates them can be part of a name, or bytes can look like it."""
    return collides(expected, actual) and not null_is_empty(request, expected, actual)


def escaped(expected: Answer, actual: Answer) -> str | None:
    """The message of an error that came in place of an answer; None where none did."""
    return actual.message if isinstance(expected, Accepted) and isinstance(actual, Crashed) else None


def raises_on(held: Held) -> Any:
    """It raises where one of the tensors is held so."""
    return lambda request, expected, actual: (
        escaped(expected, actual) is not None and any(entry.held is held for entry in entries(request))
    )


def raises_on_scalars(request: Request, expected: Answer, actual: Answer) -> bool:
    """It raises on a tensor without dimensions whose elements are wider than a byte."""
    message = escaped(expected, actual) or ""
    return "dim() cannot be 0" in message and any(entry.tensor.shape == () for entry in entries(request))


def raises_on_singletons(request: Request, expected: Answer, actual: Answer) -> bool:
    """It raises on one element, or none, in a strided view: it counts as contiguous, and has no unit stride."""
    strided = (entry.held is not Held.CONTIGUOUS and entry.tensor.count <= 1 for entry in entries(request))
    return "stride(-1) must be 1" in (escaped(expected, actual) or "") and any(strided)


def takes(*held: Held) -> Any:
    """It gives a digest where one of the tensors has none."""
    return lambda request, expected, actual: (
        isinstance(expected, Refused)
        and isinstance(actual, Accepted)
        and any(entry.held in held for entry in entries(request))
    )


def takes_other_names(request: Request, expected: Answer, actual: Answer) -> bool:
    """It gives a digest to a name that is no text."""
    refused = isinstance(expected, Refused) and isinstance(actual, Accepted)
    return refused and any(not is_text(entry.name) for entry in entries(request))


def raises_unnamed(request: Request, expected: Answer, actual: Answer) -> bool:
    """It refuses what it must, with whatever error came up on the way."""
    refused = isinstance(expected, Refused) and isinstance(actual, Crashed)
    return refused and any(entry.held in VALUELESS or not is_text(entry.name) for entry in entries(request))


class Sketch(Adapter):
    """Area ``retained``, digests only."""

    name: ClassVar[str] = "sketch"
    areas: ClassVar[frozenset[Area]] = frozenset({Area.RETAINED})
    deviations: ClassVar[Sequence[Deviation]] = tuple(
        Deviation(id, Area.RETAINED, "7", sentence, applies)
        for id, sentence, applies in (
            ("null", "null and no tensors at all have one digest", null_is_empty),
            ("framing", "tensors that differ have one digest, because nothing is delimited", framing),
            ("0-dimensional", "raises on a tensor without dimensions", raises_on_scalars),
            ("conjugated", "raises on a conjugated view", raises_on(Held.CONJUGATED)),
            ("negated", "raises on a negated view", raises_on(Held.NEGATED)),
            ("singleton-view", "raises on a strided view of one element or none", raises_on_singletons),
            ("quantization", "ignores quantization parameters", takes(*QUANTIZED)),
            ("other-dtype", "hashes a dtype that the contract does not name", takes(Held.OTHER_DTYPE)),
            ("name", "takes a name that is no text for the text that it prints as", takes_other_names),
            ("unnamed", "refuses with an error of its own instead of media_capture_rejected", raises_unnamed),
        )
    )

    def same_media(self, left: tuple[Entry, ...] | None, right: tuple[Entry, ...] | None) -> bool:
        """Whether the proposal takes both for the same."""
        return sketched_digest(named_tensors(left)) == sketched_digest(named_tensors(right))
