"""Requests of the area boundary: plans with sidecars, assemblies, rollouts and groups, and an engine's rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.boundary_plans import BOUNDARY_PLAN_BREAKS, boundary_plans, broken_boundary_plans
from rollproof.properties.strategies.rollouts.route_boundary import (
    EXAMPLE,
    REPAIR_BREAKS,
    SIDECAR_BREAKS,
    boundary_choices,
    broken_repaired_assemblies,
    repaired_assemblies,
    repaired_rollouts,
    repairs_and_broken,
    sentinel_repairs,
    sidecar_of,
)
from rollproof.properties.strategies.rollouts.routed import RoutedRollout
from rollproof.properties.strategies.rollouts.routes import Assembly, model_shapes, route_tensors
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.between import between_routed
from rollproof.spec.constants import AS_STAGED, BOUNDARY_REQUIRED, ROUTE_BOUNDARY_CHOICES
from rollproof.spec.judge.requests import (
    AlignEngineRows,
    Area,
    DecodePlan,
    EncodePlan,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    ReplayGroup,
)
from rollproof.spec.judge.staging import Staging
from rollproof.spec.plan import encode_plan
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor

DIRECT: Final = ReassemblerConfig(router_replay_enabled=True, route_boundary=AS_STAGED)
DEFERRED: Final = evolve(DIRECT, defer_routed_experts_to_policy=True)


@st.composite
def execute(draw: st.DrawFn, assemblies: st.SearchStrategy[Assembly]) -> ExecutePlan:
    """Draw an assembly as a request, with any choice for what nobody repairs."""
    whole = draw(assemblies)
    return ExecutePlan(
        whole.plan,
        whole.fragments,
        whole.dims,
        whole.canonical_len,
        whole.num_experts,
        whole.allow_repeated_experts,
        draw(boundary_choices()),
    )


@st.composite
def rollout_requests(draw: st.DrawFn, base: ReassemblerConfig) -> FinalizeRollout:
    """Draw a rollout with sidecars, under any choice, in a partition where some of its rows have none."""
    whole = draw(repaired_rollouts())
    config = evolve(
        base, routed_dims=draw(st.sampled_from([None, whole.dims])), route_boundary=draw(boundary_choices())
    )
    return request(config, whole)


@st.composite
def broken_requests(draw: st.DrawFn, reason: str) -> FinalizeRollout:
    """Draw a rollout that is rejected with ``reason``."""
    _, whole = draw(repairs_and_broken(reason))
    choice = BOUNDARY_REQUIRED if reason == Code.MISSING_ROUTE_BOUNDARY.code else draw(boundary_choices())
    return request(evolve(DIRECT, routed_dims=whole.dims, num_experts=whole.num_experts, route_boundary=choice), whole)


def request(config: ReassemblerConfig, whole: RoutedRollout) -> FinalizeRollout:
    """Return the request to finalize a rollout alone."""
    return FinalizeRollout(config, whole.rollout_id, whole.receipt, 1.0, Staging(whole.rows))


@st.composite
def repaired_group(draw: st.DrawFn, model: tuple[int, int]) -> tuple[GroupRequest, dict[str, Any]]:
    """Draw a group of rollouts with sidecars, some of which are damaged, or lost between two valid ones."""
    count = draw(st.integers(1, 3))
    rollouts = []
    for index in range(count):
        kind = draw(st.sampled_from(["valid", "valid", *REPAIR_BREAKS]))
        rollout_id = f"g_g{index}"
        whole = draw(repaired_rollouts(rollout_id=rollout_id, dims=model, max_calls=3))
        broken = [call for call in whole.chain if sidecar_of(call) is not None]
        if kind != "valid" and broken:
            whole = REPAIR_BREAKS[kind](draw, whole, draw(st.sampled_from(broken)))
        rollouts.append(whole)
    ids = tuple(one.rollout_id for one in rollouts)
    group = GroupRequest("g", ids, tuple(one.receipt for one in rollouts), (1.0,) * count, (False,) * count)
    return group, {key: row for one in rollouts for key, row in one.rows.items()}


@st.composite
def group_requests(draw: st.DrawFn, base: ReassemblerConfig) -> FinalizeGroups:
    """Draw a group with sidecars."""
    model = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    group, rows = draw(repaired_group(model))
    config = evolve(base, routed_dims=draw(st.sampled_from([None, model])), route_boundary=draw(boundary_choices()))
    return FinalizeGroups(config, (GroupStep(group),), Staging(rows))


@st.composite
def replays(draw: st.DrawFn) -> ReplayGroup:
    """Draw a group with sidecars that the policy replays."""
    model = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    group, rows = draw(repaired_group(model))
    return ReplayGroup(evolve(DIRECT, route_boundary=draw(boundary_choices())), group, Staging(rows), model)


@st.composite
def beside_broken(draw: st.DrawFn, reason: str) -> FinalizeGroups:
    """Draw a rollout that direct router replay rejects with ``reason``, between two that are like it."""
    whole, broken = draw(repairs_and_broken(reason))
    choice = BOUNDARY_REQUIRED if reason == Code.MISSING_ROUTE_BOUNDARY.code else draw(boundary_choices())
    config = evolve(DIRECT, routed_dims=whole.dims, num_experts=whole.num_experts, route_boundary=choice)
    return between_routed(config, whole, broken)


@st.composite
def replayed_beside_broken(draw: st.DrawFn, reason: str) -> ReplayGroup:
    """Draw the same group as the policy replays it: the broken row fails there, and neither of the others."""
    group = draw(beside_broken(reason))
    dims = group.config.routed_dims
    assert dims is not None
    return ReplayGroup(group.config, group.steps[0].request, group.staging, dims)


@st.composite
def engine_rows(draw: st.DrawFn) -> AlignEngineRows:
    """Draw an engine's rows: from the first token or from behind a cached prefix, with and without a surplus row."""
    dims, tokens = draw(model_shapes(2, 3)), draw(st.integers(1, 6))
    start = draw(st.just(0) | st.integers(0, tokens - 1))
    count = tokens - 1 - start + draw(st.integers(0, 1))
    dtype = draw(st.sampled_from(["int16", "int32", "int64"]))
    num_experts = draw(st.sampled_from([None, dims[1] + 1]))
    rows = draw(route_tensors(count, dims, dtype=dtype, num_experts=dims[1] + 1)) if count else None
    return AlignEngineRows(rows or Tensor(dtype, (0, *dims), b""), start, tokens, num_experts)


@st.composite
def misaligned(draw: st.DrawFn, code: str) -> AlignEngineRows:
    """Draw an engine's rows that are refused with a code: rows of other tokens, or ids of no expert."""
    good = draw(engine_rows().filter(lambda one: one.rows.shape[0] > 0))
    if code == Code.FRAGMENT_VALUE_RANGE.code:
        ids = list(good.rows.values())
        limit = 2**15 if good.num_experts is None else good.num_experts
        bad = draw(st.sampled_from([-2, *([limit] if limit < 2**15 or good.rows.dtype != "int16" else [])]))
        ids[draw(st.integers(0, len(ids) - 1))] = bad
        return evolve(good, rows=Tensor.of(good.rows.dtype, ids, good.rows.shape))
    end = good.start + good.rows.shape[0]
    wrong: list[dict[str, Any]] = [
        {"tokens": end + 2},
        {"tokens": end + 5},
        {"tokens": 0},
        {"tokens": -1},
        {"start": -1},
        {"start": good.start + 3},
        {"start": True},
        {"rows": Tensor(good.rows.dtype, (good.rows.count,), good.rows.data)},
        {"rows": Tensor.of("float32", [0.0] * good.rows.count, good.rows.shape)},
    ]
    if end > 1:
        wrong.append({"tokens": end - 1})
    return evolve(good, **draw(st.sampled_from(wrong)))


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area boundary."""
    if area is not Area.BOUNDARY:
        return

    stream = StreamsOf(area)

    yield stream("plans with sidecars", st.builds(EncodePlan, boundary_plans()))
    yield stream("plans with sidecars as JSON", boundary_plans().map(encode_plan).map(DecodePlan))
    for kind in BOUNDARY_PLAN_BREAKS:
        invalid = (Code.INVALID_ROUTE_PLAN.code,)
        yield stream(f"broken boundary: {kind}", st.builds(DecodePlan, broken_boundary_plans(kind)), 0.2, invalid)
    yield stream("assemblies with sidecars", execute(repaired_assemblies()), 2.0)
    yield stream("assemblies with sentinel sidecars", execute(sentinel_repairs()), 0.4)
    for one in SIDECAR_BREAKS:
        broken = execute(broken_repaired_assemblies(one))
        yield stream(f"break:sidecar:{one.code}", broken, codes=(one.code,))
    for name, base in (("direct", DIRECT), ("deferred", DEFERRED)):
        yield stream(f"{name} rollouts with sidecars", rollout_requests(base), 2.0)
        yield stream(f"{name} groups with sidecars", group_requests(base))
    for reason in REPAIR_BREAKS:
        name = reason.rstrip(":")
        yield stream(f"break:boundary:{reason}", broken_requests(reason), codes=(name,))
    yield stream("replayed groups with sidecars", replays())
    for reason in REPAIR_BREAKS:
        yield stream(f"direct:beside:{reason}", beside_broken(reason), 0.4)
        if reason.startswith(Code.ROUTE_ASSEMBLY.code):
            yield stream(f"replayed:beside:{reason}", replayed_beside_broken(reason), 0.4)
    yield stream("engine rows", engine_rows())
    for code in (Code.MISALIGNED_ENGINE_ROUTES, Code.FRAGMENT_VALUE_RANGE):
        yield stream(f"break:engine rows:{code.code}", misaligned(code.code), codes=(code.code,))
    choices = (evolve(DIRECT, route_boundary=choice) for choice in ROUTE_BOUNDARY_CHOICES)
    yield listed("worked example with a sidecar", area, (request(config, EXAMPLE) for config in choices))
