"""Right implementations that do it otherwise: the gate, the audit and the pytest plugin must hold every one of them.

A rule needs wrong implementations that it kills, and right ones that it lets pass. Each variant here is our own
reassembler with one thing done in another way that the contract leaves open: how often and in which order it reads,
what it adds, how its answers are held. In the portable areas a variant is a layout or an estimator of its own. A
variant that falls has found a rule that asks for more than the contract.
"""

from __future__ import annotations

from typing import Final

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.right import answers, reads, writes
from rollproof.properties.right.estimators import ESTIMATORS
from rollproof.properties.right.media_layouts import LAYOUTS
from rollproof.properties.right.portable import PORTABLE_RIGHT, PortableImplementation, PortableRight
from rollproof.properties.right.variant import AREAS, Right, implementation_of
from rollproof.spec.judge.requests import Area

__all__ = ["EVERY_RIGHT", "PORTABLE_RIGHT", "RIGHT", "PortableRight", "Right", "areas_of", "load_right"]

RIGHT: Final[tuple[Right, ...]] = (*reads.RIGHT, *writes.RIGHT, *answers.RIGHT)
"""All variants of our reassembler, by what they do otherwise."""

EVERY_RIGHT: Final[tuple[Right | PortableRight, ...]] = (*RIGHT, *PORTABLE_RIGHT, *ESTIMATORS, *LAYOUTS)
"""All variants of any area."""


def areas_of(variant: Right | PortableRight) -> frozenset[Area]:
    """Return the areas that a variant is checked in."""
    return AREAS if isinstance(variant, Right) else frozenset({variant.area})


def load_right(name: str) -> Ours | PortableImplementation:
    """Return the variant called ``name``; ``LookupError`` names those that exist."""
    for variant in EVERY_RIGHT:
        if variant.name == name:
            return implementation_of(variant) if isinstance(variant, Right) else PortableImplementation(variant)
    names = sorted(variant.name for variant in EVERY_RIGHT)
    raise LookupError(f"no right variant {name!r}; there are {', '.join(names)}")
