"""The catalogue of invariants: what docs, gate, audit and mutant table all read."""

from __future__ import annotations

from typing import Final

from rollproof.spec.judge.invariant import Invariant, declared
from rollproof.spec.judge.requests import Area
from rollproof.spec.judge.rules import (
    advantage,
    align,
    boundary,
    cuts,
    group,
    lineage,
    media,
    media_rows,
    merge,
    records,
    retained,
    rollout,
    routes,
    sampler,
)

CHAPTERS: Final = (
    records,
    lineage,
    rollout,
    group,
    routes,
    media,
    retained,
    merge,
    align,
    advantage,
    media_rows,
    boundary,
    sampler,
    cuts,
)

CATALOGUE: Final[tuple[Invariant, ...]] = tuple(item for module in CHAPTERS for item in declared(module))
"""Every invariant. Within an area the narrow ones come first, and "agrees in every field" last, except in the portable
areas, where none compares with the contract's own answer."""

BY_ID: Final = {item.id: item for item in CATALOGUE}


def of_area(area: Area) -> tuple[Invariant, ...]:
    """Return the invariants of one area."""
    return tuple(item for item in CATALOGUE if item.area is area)
