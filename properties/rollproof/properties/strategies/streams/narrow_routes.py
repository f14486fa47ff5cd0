"""Streams of one feature each, as in ``narrow``, of the areas routes and boundary."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.boundary_plans import plans_indexed_by_no_number
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.route_boundary import boundary_choices
from rollproof.properties.strategies.rollouts.routed import (
    RoutedCall,
    number,
    routed_rollouts,
    stage,
)
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.rollouts.routes import fragments, model_shapes, route_payload, route_tensors
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.between import DEFERRED, DIRECT, in_one_group
from rollproof.properties.strategies.streams.narrow import NARROW
from rollproof.properties.strategies.streams.route_boundary import DIRECT as REPAIRED
from rollproof.spec.constants import (
    EXTRAS_DIGEST_VERSION,
    FINISH_LENGTH,
    FINISH_REASON,
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_FIELDS,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTED_EXPERTS,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import encode_routes
from rollproof.spec.extras import RouteFragment, extras_around
from rollproof.spec.judge.requests import (
    AlignEngineRows,
    Area,
    ClassifySpan,
    DecodePlan,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
)
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.routes import staged_routes
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import Tensor

# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WIDE_IDS: Final = (127, 128, 255, 256, 257, 511, 512, 32766)
"""Ids on both sides of what a byte holds, with a sign and without one, and the largest."""
TOO_WIDE: Final = (32768, 65535, 65536, 65537)
"""Ids that no expert has, which narrower integers turn into others, or into the sentinel."""


def full_spans() -> Iterator[ClassifySpan]:
    """Yield spans with carry and generation that have a route for each token, one fewer, or one more."""
    for carry, generation, more in product((1, 2, 5), (1, 3), (0, -1, 1)):
        yield ClassifySpan(carry, generation, carry + generation + more)


def wide_ids() -> Iterator[ExecutePlan]:
    """Yield plans of one call of two tokens, the first, last or every id of which is a wide one."""
    for index, expert in enumerate((*WIDE_IDS, *TOO_WIDE)):
        other = 7 + index
        for ids in ([expert, other, other, expert], [other, other + 1, other, expert]):
            encoded = index % 2 or expert in TOO_WIDE
            encoding = ROUTE_ENCODING_ENVELOPE if encoded else ROUTE_ENCODING_LIST
            routes = Tensor.of("int32" if encoded else "int16", ids, (2, 1, 2))
            fragment = RouteFragment(routes, encoding, metadata_json(None))
            commitment = extras_digest(extras_around(fragment))
            spans = (RouteSpan("r/c0", 1, 1, 2, EXTRAS_DIGEST_VERSION, commitment),)
            plan = RouteAssemblyPlan("staging", spans, ("r/c0",), 2)
            yield ExecutePlan(plan, {"r/c0": fragment}, (1, 2), 2, None)


def boundary_spellings() -> Iterator[FinalizeRollout]:
    """Yield rollouts one of whose calls announces a boundary under one of its names, alone, with any value."""
    extras = {ROUTED_EXPERTS: encode_routes(Tensor.of("int16", [5, 6, 7, 8], (2, 1, 2)))}
    script = (RoutedCall("c0", None, 1, 1, extras), RoutedCall("c1", "c0", 1, 1, extras))
    whole = stage("r", script, "c1")
    encoding, column = staged_routes(extras, 2)
    assert column is not None
    columns = {ROUTED_EXPERTS: column, "routed_experts_encoding": number(encoding), "routed_len": number(2)}
    for call_id, name, value in product(("c0", "c1"), ROUTE_BOUNDARY_FIELDS, (1, None)):
        announced = whole.restaged(call_id, {**extras, name: value}, columns)
        yield FinalizeRollout(evolve(DIRECT, routed_dims=(1, 2)), "r", announced.receipt, 1.0, Staging(announced.rows))


@st.composite
def taught_by_rejected(draw: st.DrawFn) -> FinalizeGroups:
    """Draw a group in which routes were assembled for a rollout without a usable reward, and nobody else has any."""
    dims = draw(model_shapes(2, 2))
    carry, generation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
    plain = stage("b", [RoutedCall("c0", None, carry, generation)], "c0")
    requests = [FinalizeRollout(DIRECT, "b", plain.receipt, 1.0, Staging(plain.rows))]
    for name in "ac"[: draw(st.integers(1, 2))]:
        whole = draw(routed_rollouts(rollout_id=name, dims=dims, min_routed=1, max_calls=2))
        reward = draw(st.sampled_from([math.nan, None, float("inf")]))
        rejected = FinalizeRollout(DIRECT, name, whole.receipt, reward, Staging(whole.rows))
        requests.insert(draw(st.integers(0, len(requests))), rejected)
    return in_one_group(DIRECT, requests)


# ── boundary ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def behind_a_prefix(draw: st.DrawFn) -> AlignEngineRows:
    """Draw an engine's rows from behind a cached prefix, with and without a surplus row; the first row is a route."""
    dims = draw(model_shapes(2, 3))
    start, used = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dtype = draw(st.sampled_from(["int16", "int32", "int64"]))
    rows = draw(route_tensors(used + draw(st.integers(0, 1)), dims, dtype=dtype, num_experts=dims[1] + 1))
    width = dims[0] * dims[1]
    ids = [*(list(range(dims[1])) * dims[0]), *rows.values()[width:]]
    num_experts = draw(st.sampled_from([None, dims[1] + 1]))
    return AlignEngineRows(Tensor.of(dtype, ids, rows.shape), start, start + used + 1, num_experts)


def sidecar(first: int, dims: Dims) -> Tensor:
    """Return the route of one token, of experts from ``first`` on."""
    return Tensor.of("int16", [first + slot for slot in range(dims[1])] * dims[0], (1, *dims))


@st.composite
def retried_repairs(draw: st.DrawFn) -> FinalizeRollout:
    """Draw a rollout whose calls were tried again: a call of the chain and its retry hand on different sidecars."""
    dims = draw(model_shapes(2, 2))
    script: list[RoutedCall] = []
    parent, end = None, 0
    for index in range(draw(st.integers(2, 3))):
        tries = [f"c{index}"] if parent is None else draw(st.permutations([f"c{index}", f"d{index}"]))
        lengths = {}
        for at, call_id in enumerate(tries):
            carry, generation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
            lengths[call_id] = carry + generation
            extras: dict[str, Any] = {ROUTED_EXPERTS: route_payload(draw(fragments(carry + generation, dims)))}
            if parent is not None:
                extras |= {
                    ROUTE_BOUNDARY: encode_routes(sidecar(10 * at + draw(st.integers(0, 5)), dims)),
                    ROUTE_BOUNDARY_INDEX: end - 1,
                }
            script.append(RoutedCall(call_id, parent, carry, generation, extras))
        parent, end = f"c{index}", end + lengths[f"c{index}"]
    assert parent is not None
    whole = stage("g_g0", script, parent)
    choice = draw(boundary_choices())
    config = evolve(REPAIRED, routed_dims=draw(st.sampled_from([None, dims])), route_boundary=choice)
    return FinalizeRollout(config, "g_g0", whole.receipt, 1.0, Staging(whole.rows))


@st.composite
def cut_off_with_routes(draw: st.DrawFn) -> FinalizeGroups:
    """Draw a group in either route mode whose calls all have routes, and whose chain stopped for its length."""
    dims = draw(model_shapes(2, 2))
    shape = draw(histories(rollout_id="r", max_calls=3))
    last = shape.chain()[-1]
    stopped = evolve(last, extras={**(last.extras or {}), FINISH_REASON: FINISH_LENGTH})
    history = draw(with_routes(shape.with_call(stopped), dims, share=1.0))
    config = evolve(draw(st.sampled_from((DIRECT, DEFERRED))), routed_dims=dims)
    return in_one_group(config, [history.renamed(name).finalize(config) for name in "ab"[: draw(st.integers(1, 2))]])


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the areas routes and boundary."""
    stream = StreamsOf(area)
    if area is Area.ROUTES:
        yield listed("spans with all their routes", area, full_spans())
        yield listed("wide ids", area, wide_ids())
        yield listed("spellings of a boundary", area, boundary_spellings())
        yield stream("taught by rejected", taught_by_rejected(), NARROW)
        yield stream("cut off with routes", cut_off_with_routes(), NARROW)
    elif area is Area.BOUNDARY:
        yield stream("broken boundary: no number", plans_indexed_by_no_number().map(DecodePlan), NARROW)
        yield stream("engine rows behind a prefix", behind_a_prefix(), NARROW)
        yield stream("sidecars of retried calls", retried_repairs(), NARROW)
