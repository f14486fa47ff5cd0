"""The catalogue of invariants: what docs, gate, audit and mutant table all read."""

from __future__ import annotations

from typing import Final

from rollproof.spec.invariant import Invariant
from rollproof.spec.requests import Area
from rollproof.spec.rules import group, lineage, media, records, retained, rollout, routes

CATALOGUE: Final[tuple[Invariant, ...]] = (
    *records.INVARIANTS,
    *lineage.INVARIANTS,
    *rollout.INVARIANTS,
    *group.INVARIANTS,
    *routes.INVARIANTS,
    *media.INVARIANTS,
    *retained.INVARIANTS,
)
"""Every invariant. Within an area the narrow ones come first, and "agrees in every field" last."""

BY_ID: Final = {item.id: item for item in CATALOGUE}


def of_area(area: Area) -> tuple[Invariant, ...]:
    """The invariants of one area."""
    return tuple(item for item in CATALOGUE if item.area is area)
