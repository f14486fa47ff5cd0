"""Requests of the area routes: codec, plans, assemblies, and whole rollouts and groups with router replay."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product, starmap
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    RoutedRollout,
    broken_routed_rollouts,
    routed_rollouts,
    stage,
)
from rollproof.properties.strategies.rollouts.routed_histories import routed_histories
from rollproof.properties.strategies.rollouts.routes import (
    ASSEMBLY_BREAKS,
    Assembly,
    assemblies,
    broken_assemblies,
    fragments,
    model_shapes,
    route_payload,
)
from rollproof.properties.strategies.route_wire import (
    EXAMPLE,
    PLAN_BREAKS,
    broken_payloads,
    broken_plans,
    odd_payloads,
    payloads,
    plans,
)
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.spec.constants import ROUTE_SENTINEL, ROUTED_EXPERTS
from rollproof.spec.envelope import encode_routes
from rollproof.spec.judge.requests import (
    Area,
    ClassifySpan,
    DecodePlan,
    DecodeRoutes,
    EncodePlan,
    EncodeRoutes,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    ReplayGroup,
)
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import encode_plan
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor

DIRECT: Final = ReassemblerConfig(router_replay_enabled=True)
DEFERRED: Final = evolve(DIRECT, defer_routed_experts_to_policy=True)


def execute(whole: Assembly) -> ExecutePlan:
    """Return an assembly as a request."""
    return ExecutePlan(
        whole.plan,
        whole.fragments,
        whole.dims,
        whole.canonical_len,
        whole.num_experts,
        whole.allow_repeated_experts,
    )


@st.composite
def lengths(draw: st.DrawFn) -> ClassifySpan:
    """Draw three lengths that often meet the borders between the modes."""
    carry, generation = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    near = st.sampled_from([0, 1, generation - 1, generation, generation + 1, carry + generation, carry, 9])
    staged = draw(near | st.integers(0, 2**63 - 1) | st.integers(-2, 0) | st.just(2**63))
    return ClassifySpan(carry, generation, staged)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draw route tensors, and some that no envelope holds."""
    routes = draw(fragments(draw(st.integers(1, 3)), draw(model_shapes()))).routes
    kind = draw(st.sampled_from(["valid", "valid", "dtype", "rank", "empty"]))
    if kind == "dtype":
        return Tensor.of("int64", routes.values(), routes.shape) if routes.dtype != "int64" else routes
    if kind == "rank":
        return Tensor(routes.dtype, (routes.count,), routes.data)
    return Tensor(routes.dtype, (0, *routes.shape[1:]), b"") if kind == "empty" else routes


def config_of(draw: st.DrawFn, whole: RoutedRollout, base: ReassemblerConfig = DIRECT) -> ReassemblerConfig:
    """Draw a configuration under which the rollout's own routes are valid."""
    return evolve(
        base,
        routed_dims=draw(st.sampled_from([None, whole.dims])),
        num_experts=draw(st.sampled_from([None, whole.num_experts])),
    )


@st.composite
def rollout_requests(draw: st.DrawFn, base: ReassemblerConfig, reason: str | None = None) -> FinalizeRollout:
    """Draw a rollout with router replay, valid or rejected with ``reason``."""
    whole = draw(routed_rollouts() if reason is None else broken_routed_rollouts(reason))
    config = config_of(draw, whole, base)
    if reason is not None:
        config = evolve(base, routed_dims=whole.dims, num_experts=whole.num_experts)
    return FinalizeRollout(config, whole.rollout_id, whole.receipt, 1.0, Staging(whole.rows))


def sentinel_rollouts() -> Iterator[FinalizeRollout]:
    """Yield rollouts of one and two calls whose fragments are all sentinel, partly sentinel, or left out."""
    sentinel, used = (encode_routes(Tensor.of("int16", [value] * 2, (2, 1, 1))) for value in (ROUTE_SENTINEL, 5))
    choices = [{ROUTED_EXPERTS: sentinel}, {ROUTED_EXPERTS: used}, None]
    for base in (DIRECT, DEFERRED):
        for extras in [[one] for one in choices] + [[*two] for two in product(choices, repeat=2)]:
            script = [RoutedCall(f"c{at}", f"c{at - 1}" if at else None, 1, 1, one) for at, one in enumerate(extras)]
            whole = stage("r", script, script[-1].call_id)
            yield FinalizeRollout(base, "r", whole.receipt, 1.0, Staging(whole.rows))


@st.composite
def history_requests(draw: st.DrawFn, base: ReassemblerConfig) -> FinalizeRollout:
    """Draw a valid rollout of any shape, with routes on some of its calls."""
    history, dims = draw(routed_histories())
    return history.finalize(evolve(base, routed_dims=draw(st.sampled_from([None, dims]))))


@st.composite
def routed_group(
    draw: st.DrawFn, group_id: str, shapes: st.SearchStrategy[Dims]
) -> tuple[GroupRequest, dict[str, Any]]:
    """Draw a group whose rollouts may be broken, missing, without routes, or of another model."""
    count = draw(st.integers(1, 4))
    ids = tuple(f"{group_id}_g{index}" for index in range(count))
    receipts: list[Any] = []
    rows: dict[str, Any] = {}
    for rollout_id in ids:
        kind = draw(st.sampled_from(["valid", "valid", "valid", "broken", "missing", "outage of capture"]))
        if kind == "missing":
            receipts.append(None)
            continue
        whole = draw(routed_rollouts(rollout_id=rollout_id, dims=draw(shapes), max_calls=3))
        if kind == "broken":
            call = draw(st.sampled_from(whole.script))
            whole = whole.changed(call.call_id, {}, "routed_experts", *draw(st.sampled_from([(), ("digest_bytes",)])))
        receipt = dict(whole.receipt)
        if kind == "outage of capture":
            receipt |= {"capture_poisoned": True}
        if draw(st.booleans()) and len(receipt["manifest"]) > 1:
            receipt |= {"manifest": [*receipt["manifest"][:-1], foreign(draw, receipt["manifest"][-1])]}
        receipts.append(receipt)
        rows |= whole.rows
    rewards = tuple(draw(st.sampled_from([0.0, 1.0, math.nan])) for _ in ids)
    return GroupRequest(group_id, ids, tuple(receipts), rewards, (False,) * count), rows


def foreign(draw: st.DrawFn, row: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest row that sometimes names somebody else's staging key."""
    key = draw(st.sampled_from([row["staging_key"], row["staging_key"], "other_g0/c0", f"{row['staging_key']}/x"]))
    return row | {"staging_key": key}


@st.composite
def group_requests(draw: st.DrawFn, base: ReassemblerConfig) -> FinalizeGroups:
    """Draw one to three groups after one another with one reassembler, which learns (L, K) on the way."""
    model = draw(model_shapes(2, 2))
    shapes = st.sampled_from([model, model, model, (model[0] + 1, model[1])])
    groups = [draw(routed_group(f"g{index}", shapes)) for index in range(draw(st.integers(1, 3)))]
    config = evolve(base, routed_dims=draw(st.sampled_from([None, None, model])))
    rows = {key: row for _, staged in groups for key, row in staged.items()}
    return FinalizeGroups(config, tuple(GroupStep(request) for request, _ in groups), Staging(rows))


@st.composite
def routeless_beside_rejected(draw: st.DrawFn) -> FinalizeGroups:
    """A valid rollout without routes, and one that is rejected after it staged some (decision D40)."""
    model = draw(model_shapes(2, 2))
    carry, generation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    places = draw(st.permutations(range(2)))
    made = (
        stage(f"g_g{places[0]}", [RoutedCall("c0", None, carry, generation)], "c0"),
        draw(routed_rollouts(rollout_id=f"g_g{places[1]}", dims=model, min_routed=1, max_calls=2)),
    )
    call = next(call for call in made[1].chain if ROUTED_EXPERTS in (call.extras or {}))
    rollouts = sorted((made[0], made[1].changed(call.call_id, {}, "digest_bytes")), key=lambda each: each.rollout_id)
    request = GroupRequest(
        "g", tuple(each.rollout_id for each in rollouts), tuple(each.receipt for each in rollouts), (0.0, 1.0),
        (False, False),
    )  # fmt: skip
    config = evolve(DIRECT, routed_dims=draw(st.sampled_from([None, model])))
    return FinalizeGroups(config, (GroupStep(request),), Staging({**rollouts[0].rows, **rollouts[1].rows}))


@st.composite
def partly_routed(draw: st.DrawFn, base: ReassemblerConfig) -> FinalizeGroups:
    """Draw a group of valid rollouts with a chain of two or three calls each, one of which has no routes."""
    dims = draw(model_shapes(2, 2))
    rollouts = []
    for index in range(draw(st.integers(1, 2))):
        count = draw(st.integers(2, 3))
        without = draw(st.integers(0, count - 1))
        script = []
        for at in range(count):
            carry, generation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
            routes = route_payload(draw(fragments(carry + generation, dims)))
            extras = None if at == without else {ROUTED_EXPERTS: routes}
            script.append(RoutedCall(f"c{at}", f"c{at - 1}" if at else None, carry, generation, extras))
        rollouts.append(stage(f"g_g{index}", script, f"c{count - 1}"))
    ids, receipts = tuple(one.rollout_id for one in rollouts), tuple(one.receipt for one in rollouts)
    request = GroupRequest("g", ids, receipts, (1.0,) * len(ids), (False,) * len(ids))
    rows = {key: row for one in rollouts for key, row in one.rows.items()}
    return FinalizeGroups(
        evolve(base, routed_dims=draw(st.sampled_from([None, dims]))), (GroupStep(request),), Staging(rows)
    )


@st.composite
def replays(draw: st.DrawFn) -> ReplayGroup:
    """Draw a group to be replayed by the policy."""
    model = draw(model_shapes(2, 2))
    shapes = st.sampled_from([model, model, model, (model[0] + 1, model[1])])
    request, rows = draw(routed_group("g", shapes))
    return ReplayGroup(DIRECT, request, Staging(rows), model)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area routes."""
    if area is not Area.ROUTES:
        return

    stream = StreamsOf(area)

    yield stream("envelopes", st.builds(DecodeRoutes, payloads()))
    yield stream("broken envelopes", st.builds(DecodeRoutes, broken_payloads()), 2.0)
    yield listed("each broken envelope", area, map(DecodeRoutes, odd_payloads(EXAMPLE)))
    yield stream("tensors", st.builds(EncodeRoutes, tensors()))
    yield stream("spans", lengths(), 2.0)
    yield listed("short spans", area, starmap(ClassifySpan, product(range(3), range(3), range(5))))
    yield stream("plans", st.builds(EncodePlan, plans()) | plans().map(encode_plan).map(DecodePlan))
    yield stream("broken plans", st.builds(DecodePlan, broken_plans()), 2.0)
    for kind in PLAN_BREAKS:
        yield stream(f"broken plans: {kind}", st.builds(DecodePlan, broken_plans(kind)), 0.12)
    yield stream("assemblies", assemblies().map(execute), 2.0)
    for code in ASSEMBLY_BREAKS:
        yield stream(f"break:assembly:{code.code}", broken_assemblies(code).map(execute), codes=(code.code,))
    for name, base in (("direct", DIRECT), ("deferred", DEFERRED)):
        yield stream(f"{name} rollouts", rollout_requests(base))
        yield stream(f"{name} histories", history_requests(base))
        yield stream(f"{name} groups", group_requests(base))
        yield stream(f"{name} partly routed groups", partly_routed(base), 0.2)
    yield listed("sentinel fragments", area, sentinel_rollouts())
    yield stream("routeless beside rejected", routeless_beside_rejected(), 0.4)
    for reason in ROLLOUT_BREAKS:
        yield stream(f"break:routes:{reason}", rollout_requests(DIRECT, reason), codes=(reason,))
    yield stream("replayed groups", replays(), 0.5)
