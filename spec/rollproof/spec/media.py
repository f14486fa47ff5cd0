"""Media of a rollout and of a group (section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollproof.spec.outcomes import Dims, RolloutOutcome
from rollproof.spec.plane import Effect, Staging
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor


def rollout_media(
    config: ReassemblerConfig,
    row: LinearizedRow,
    chain: Sequence[StagedRow],
    staging: Staging,
    effects: list[Effect],
) -> Mapping[str, Tensor] | None:
    raise NotImplementedError


def fit_into_group(
    outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome], dims: Dims | None
) -> RolloutOutcome:
    return outcome


def group_fields(rollouts: Sequence[FinalizedRollout]) -> dict[str, list[Tensor]]:
    return {}


def row_shape_tags(fields: Mapping[str, Sequence[Tensor]], index: int) -> dict[str, Any]:
    return {}
