"""All mutants, chapter by chapter."""

from __future__ import annotations

from typing import Final

from rollproof.properties.mutants import (
    advantage,
    align,
    cuts,
    decisions,
    forgotten,
    group,
    known_group,
    known_later,
    known_media,
    known_newer,
    known_replay,
    lineage,
    media,
    media_rows,
    merge,
    once_passed,
    records,
    rollout,
    route_boundary,
    routes,
    sampler,
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
    *known_later.MUTANTS,
    *known_newer.MUTANTS,
    *decisions.MUTANTS,
    *once_passed.MUTANTS,
    *merge.MUTANTS,
    *align.MUTANTS,
    *advantage.MUTANTS,
    *media_rows.MUTANTS,
    *route_boundary.MUTANTS,
    *sampler.MUTANTS,
    *cuts.MUTANTS,
    *forgotten.MUTANTS,
)
