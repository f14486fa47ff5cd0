"""What a right variant is, and the implementation that it makes."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.ours import Ours
from rollproof.spec.judge.requests import Area

AREAS: Final = frozenset({Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA})
"""The areas in which a reassembler and its data plane are seen."""


@frozen
class Right:
    """A right implementation: ``sentence`` says what it does otherwise, ``like`` where that is done, if anywhere."""

    name: str
    sentence: str
    reassembler: type[RolloutReassembler]
    like: str = ""


def implementation_of(variant: Right) -> Ours:
    """Return our implementation with a variant's reassembler."""

    class RightImplementation(Ours):
        name = f"right:{variant.name}"
        areas = AREAS
        reassembler = variant.reassembler

    return RightImplementation()
