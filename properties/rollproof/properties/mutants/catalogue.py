"""All mutants, chapter by chapter."""

from __future__ import annotations

from typing import Final

from rollproof.properties.mutants import (
    group,
    known_group,
    known_media,
    known_replay,
    lineage,
    media,
    records,
    rollout,
    routes,
)
from rollproof.properties.mutants.mutant import Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    *records.MUTANTS,
    *lineage.MUTANTS,
    *rollout.MUTANTS,
    *group.MUTANTS,
    *known_group.MUTANTS,
    *routes.MUTANTS,
    *media.MUTANTS,
    *known_media.MUTANTS,
    *known_replay.MUTANTS,
)
