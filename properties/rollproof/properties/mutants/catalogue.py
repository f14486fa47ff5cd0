"""All mutants, chapter by chapter."""

from __future__ import annotations

from typing import Final

from rollproof.properties.mutants import group, known_media, media, rollout, routes
from rollproof.properties.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *rollout.MUTANTS,
    *group.MUTANTS,
    *routes.MUTANTS,
    *media.MUTANTS,
    *known_media.MUTANTS,
)
