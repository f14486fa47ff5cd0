"""Routes of a mixture-of-experts model (section 6)."""

from __future__ import annotations

from collections.abc import Sequence

from rollproof.spec.outcomes import Dims
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig, RouteAssemblyPlan
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor


def rollout_plan(
    config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow], cleanup_keys: Sequence[str]
) -> RouteAssemblyPlan:
    raise NotImplementedError


def assemble_directly(
    config: ReassemblerConfig, plan: RouteAssemblyPlan, chain: Sequence[StagedRow], dims: Dims | None
) -> tuple[Tensor | None, Dims | None]:
    raise NotImplementedError


def row_routes(rollout: FinalizedRollout, length: int, dims: Dims) -> Tensor:
    raise NotImplementedError


def placeholder_plan(config: ReassemblerConfig, cleanup_keys: Sequence[str]) -> RouteAssemblyPlan:
    raise NotImplementedError


def encode_plan(plan: RouteAssemblyPlan) -> dict[str, object]:
    raise NotImplementedError


def encoded_plan_size(plan: RouteAssemblyPlan) -> int:
    raise NotImplementedError


def has_routes(plan: RouteAssemblyPlan) -> bool:
    raise NotImplementedError
