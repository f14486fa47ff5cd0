"""Deliberately wrong implementations, each with the invariant that must catch it.

A mutant is the spec with one or two functions replaced while it answers. The gate must fail every one of them and
name its invariant: that is how we know that the invariant can fail.
"""

from __future__ import annotations

from rollproof.properties.mutants.catalogue import MUTANTS
from rollproof.properties.mutants.mutant import Mutant, MutantImplementation

__all__ = ["MUTANTS", "Mutant", "MutantImplementation", "load_mutant"]


def load_mutant(name: str) -> MutantImplementation:
    """Return the mutant called ``name``; ``LookupError`` names those that exist."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return MutantImplementation(mutant)
    raise LookupError(f"no mutant {name!r}; there are {', '.join(sorted(mutant.name for mutant in MUTANTS))}")
