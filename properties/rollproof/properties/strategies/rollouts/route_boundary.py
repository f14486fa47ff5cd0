"""Rollouts and assemblies whose calls hand on the route of their parent's last token, and what can be wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.routed import RoutedCall, RoutedRollout, number, stage
from rollproof.properties.strategies.rollouts.routes import (
    INT8_EXPERTS,
    Assembly,
    assemblies,
    fragments,
    model_shapes,
    other_extras,
    recommitted,
    route_payload,
    route_tensors,
)
from rollproof.spec.constants import (
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_CHOICES,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.envelope import encode_routes
from rollproof.spec.extras import RouteFragment
from rollproof.spec.outcomes import Dims
from rollproof.spec.plan import SpanMode, plan_schema, span_mode
from rollproof.spec.records import RouteSpan
from rollproof.spec.rejections import Code
from rollproof.spec.route_boundary import FOREIGN_FIELDS
from rollproof.spec.routes import staged_routes
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import Tensor

Break = Callable[[st.DrawFn, RoutedRollout, RoutedCall], RoutedRollout]

# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_placeholder(fragment: RouteFragment, dims: Dims) -> RouteFragment:
    """Return the fragment with 0, 1, … K-1 for its last token, as workers stage it."""
    ids = list(fragment.routes.values())
    ids[-dims[0] * dims[1] :] = list(range(dims[1])) * dims[0]
    return evolve(fragment, routes=Tensor.of(fragment.routes.dtype, ids, fragment.routes.shape))


@st.composite
def sidecars(draw: st.DrawFn, dims: Dims, num_experts: int) -> Tensor:
    """Draw the route of one token, in any dtype; also one that is all sentinel."""
    dtype = draw(st.sampled_from(["int16", "int32", *(["int8"] if num_experts <= INT8_EXPERTS else [])]))
    if draw(st.integers(0, 3)) == 3:
        return Tensor.of(dtype, [ROUTE_SENTINEL] * (dims[0] * dims[1]), (1, *dims))
    return draw(route_tensors(1, dims, dtype=dtype, num_experts=num_experts))


@st.composite
def repaired_rollouts(
    draw: st.DrawFn,
    *,
    rollout_id: str = "g_g0",
    dims: Dims | None = None,
    min_repaired: int = 0,
    max_calls: int = 4,
    share: float = 0.75,
) -> RoutedRollout:
    """Draw a valid rollout of two calls or more, some of which hand on their parent's boundary.

    Retries of a call, with a sidecar of their own, are beside the chain. The chain's last ``min_repaired`` calls each
    have a sidecar.
    """
    shape = dims or draw(model_shapes(2, 2))
    num_experts = draw(st.sampled_from([shape[1] + 2, INT8_EXPERTS, 512]))
    count = draw(st.integers(max(2, min_repaired + 1), max(max_calls, min_repaired + 1)))
    forked = [draw(st.booleans()) for _ in range(count)]
    script: list[RoutedCall] = []
    ends: dict[str | None, int] = {None: 0}
    parent: str | None = None

    def add(call_id: str, *, must: bool) -> None:
        carry, generation = draw(st.integers(0, 2)), draw(st.integers(1, 2))
        extras = draw(other_extras())
        if must or draw(st.integers(0, 99)) < 100 * share:
            fragment = draw(fragments(carry + generation, shape, num_experts=num_experts))
            fragment = with_placeholder(fragment, shape) if draw(st.booleans()) else fragment
            extras = {**(extras or {}), ROUTED_EXPERTS: route_payload(fragment)}
            if parent is not None and (must or draw(st.integers(0, 99)) < 100 * share):
                extras |= {
                    ROUTE_BOUNDARY: encode_routes(draw(sidecars(shape, num_experts))),
                    ROUTE_BOUNDARY_INDEX: ends[parent] - 1,
                }
        script.append(RoutedCall(call_id, parent, carry, generation, extras))
        ends[call_id] = ends[parent] + carry + generation

    for index in range(count):
        if forked[index]:
            add(f"d{index}", must=False)
        add(f"c{index}", must=index >= count - min_repaired)
        parent = f"c{index}"
    made = stage(rollout_id, script, f"c{count - 1}")
    routed = any(ROUTED_EXPERTS in (call.extras or {}) for call in made.chain)
    return evolve(made, dims=shape if routed else None, num_experts=num_experts)


def sidecar_of(call: RoutedCall) -> Any:
    """Return the envelope that a call hands on, or None."""
    return (call.extras or {}).get(ROUTE_BOUNDARY)


@st.composite
def repairs_and_broken(draw: st.DrawFn, reason: str) -> tuple[RoutedRollout, RoutedRollout]:
    """Draw a rollout, and the same one so that direct router replay rejects it with one of ``REPAIR_BREAKS``."""
    dims = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    whole = draw(repaired_rollouts(rollout_id="b", dims=dims, min_repaired=1, max_calls=3, share=1.0))
    call = draw(st.sampled_from([call for call in whole.chain if sidecar_of(call) is not None]))
    return whole, REPAIR_BREAKS[reason](draw, whole, call)


def restaged(
    whole: RoutedRollout, call: RoutedCall, extras: Mapping[str, Any], sidecar: Tensor | None, *, routed: bool = True
) -> RoutedRollout:
    """Stage the call anew with these extras, its routes, and this column of a sidecar, whatever it is."""
    delta = call.carry + call.generation
    encoding, column = staged_routes(call.extras, delta)
    columns: dict[str, Tensor] = {}
    if routed and column is not None:
        columns = {ROUTED_EXPERTS: column, "routed_experts_encoding": number(encoding), "routed_len": number(delta)}
    if sidecar is not None:
        columns[ROUTE_BOUNDARY] = Tensor(sidecar.dtype, (1, *sidecar.shape), sidecar.data)
    return whole.restaged(call.call_id, extras, columns)


def staged_sidecar(whole: RoutedRollout, call: RoutedCall) -> Tensor:
    """Return a call's sidecar as staged, ``[1, L, K]``."""
    column = whole.rows[f"{whole.rollout_id}/{call.call_id}"][ROUTE_BOUNDARY]
    return Tensor(column.dtype, column.shape[1:], column.data)


def _without(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    extras = {
        name: value for name, value in (call.extras or {}).items() if name not in (ROUTE_BOUNDARY, ROUTE_BOUNDARY_INDEX)
    }
    return restaged(whole, call, extras, None)


def _unsupported(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    extras = dict(call.extras or {})
    if draw(st.booleans()):
        index = extras[ROUTE_BOUNDARY_INDEX]
        extras[ROUTE_BOUNDARY_INDEX] = draw(st.sampled_from([None, "?", float(index), True, -1, [index]]))
        return restaged(whole, call, extras, staged_sidecar(whole, call))
    name = draw(st.sampled_from([name for name in FOREIGN_FIELDS if name != ROUTE_BOUNDARY]))
    if draw(st.booleans()):
        return restaged(whole, call, {**extras, name: extras[ROUTE_BOUNDARY]}, staged_sidecar(whole, call))
    return restaged(whole, call, extras, None)  # the envelope stays in the metadata


def _other_position(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    extras = dict(call.extras or {})
    index = extras[ROUTE_BOUNDARY_INDEX]
    extras[ROUTE_BOUNDARY_INDEX] = draw(st.sampled_from([index + 1, index + 7, *([index - 1, 0] if index else [])]))
    return restaged(whole, call, extras, staged_sidecar(whole, call))


def _no_place(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """A sidecar where none can be: on the root, or on a call without routes of its own."""
    sidecar = staged_sidecar(whole, call)
    if draw(st.booleans()):
        extras = {name: value for name, value in (call.extras or {}).items() if name != ROUTED_EXPERTS}
        return restaged(whole, call, extras, sidecar, routed=False)
    root = whole.chain[0]
    extras = {**(root.extras or {}), ROUTE_BOUNDARY: encode_routes(sidecar), ROUTE_BOUNDARY_INDEX: 0}
    return restaged(whole, root, extras, sidecar)


def _no_column(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    return whole.changed(call.call_id, {}, ROUTE_BOUNDARY)


def _other_sidecar(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """A sidecar that is not the one the call committed to."""
    sidecar = staged_sidecar(whole, call)
    ids = list(sidecar.values())
    ids[draw(st.integers(0, len(ids) - 1))] += 1
    wider = {"int8": "int16", "int16": "int32", "int32": "int64"}[sidecar.dtype]
    changed = [Tensor.of(wider, sidecar.values(), (1, *sidecar.shape))]
    if max(ids) < INT8_EXPERTS:
        changed.append(Tensor.of(sidecar.dtype, ids, (1, *sidecar.shape)))
    return whole.changed(call.call_id, {ROUTE_BOUNDARY: draw(st.sampled_from(changed))})


def _committed(whole: RoutedRollout, call: RoutedCall, sidecar: Tensor) -> RoutedRollout:
    extras = {**(call.extras or {}), ROUTE_BOUNDARY: encode_routes(sidecar)}
    return restaged(whole, call, extras, sidecar)


def _other_shape(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    _, layers, experts = staged_sidecar(whole, call).shape
    shape = draw(st.sampled_from([(2, layers, experts), (1, layers + 1, experts), (1, layers, experts + 1), (1, 1, 7)]))
    ids = list(range(shape[2])) * (shape[0] * shape[1])
    return _committed(whole, call, Tensor.of("int16", ids, shape))


def _with_vector(change: Callable[[RoutedRollout, list[int]], list[int]]) -> Break:
    """Return a break that changes one layer of the sidecar, and commits to it."""

    def broken(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
        sidecar = staged_sidecar(whole, call)
        width = sidecar.shape[2]
        ids = [int(expert) for expert in sidecar.values()]
        start = draw(st.integers(0, sidecar.shape[1] - 1)) * width
        ids[start : start + width] = change(whole, list(range(width)))
        return _committed(whole, call, Tensor.of("int16", ids, sidecar.shape))

    return broken


REPAIR_BREAKS: Final[dict[str, Break]] = {
    Code.MISSING_ROUTE_BOUNDARY.code: _without,
    Code.UNSUPPORTED_ROUTE_BOUNDARY.code: _unsupported,
    Code.INVALID_ROUTE_PLAN.code: _other_position,
    f"{Code.INVALID_ROUTE_PLAN.code}:": _no_place,
    "route_assembly:missing_fragment": _no_column,
    "route_assembly:fragment_integrity": _other_sidecar,
    "route_assembly:fragment_boundary": _other_shape,
    "route_assembly:fragment_value_range": _with_vector(lambda whole, ids: [whole.num_experts or 2**15 - 1, *ids[1:]]),
    "route_assembly:fragment_partial_sentinel": _with_vector(lambda _, ids: [ROUTE_SENTINEL, *ids[1:]]),
    "route_assembly:fragment_duplicate_expert": _with_vector(lambda _, ids: [0] * len(ids)),
}
"""Per normative reason, what breaks a call with a sidecar so that exactly that reason is the answer."""


# ── assemblies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def announcing(fragment: RouteFragment, sidecar: Tensor | None, index: Any) -> RouteFragment:
    """Return a fragment with a sidecar, and with its index in the metadata."""
    extras = {**(json.loads(fragment.extras_metadata_json) or {}), ROUTE_BOUNDARY_INDEX: index}
    return evolve(fragment, boundary=sidecar, extras_metadata_json=metadata_json(extras))


@st.composite
def repaired_assemblies(draw: st.DrawFn, *, min_repaired: int = 0, dims: Dims | None = None) -> Assembly:
    """Draw a valid plan with sidecars on some of its spans, applied or not, in all modes."""
    routed = (SpanMode.FULL, SpanMode.TAIL)
    modes = routed if min_repaired else tuple(SpanMode)
    whole = draw(assemblies(modes=modes, min_spans=min_repaired + 1, max_spans=3, max_tokens=2, dims=dims))
    num_experts = whole.num_experts or INT8_EXPERTS
    left, position = min_repaired, 0
    for index, span in enumerate(whole.plan.spans):
        previous = whole.plan.spans[index - 1] if index else None
        if previous is not None and position and span.staged_route_len and (left or draw(st.booleans())):
            able = bool(previous.generation_len and span.generation_len)
            sidecar = draw(sidecars(whole.dims, num_experts))
            whole = with_sidecar(whole, index, sidecar, position - 1, repair=able and draw(st.integers(0, 3)) > 0)
            left -= 1
        position += span.carry_len + span.generation_len
    return evolve(whole, plan=evolve(whole.plan, schema_version=plan_schema(whole.plan.spans)))


@st.composite
def sentinel_repairs(draw: st.DrawFn) -> Assembly:
    """Draw a valid plan with a sidecar that says that nothing was captured, and that is written all the same."""
    repaired = repaired_assemblies(min_repaired=1)
    whole = draw(repaired.filter(lambda one: any(span.repair_previous_token for span in one.plan.spans)))
    index = next(at for at, span in enumerate(whole.plan.spans) if span.repair_previous_token)
    position = whole.plan.spans[index].boundary_token_index
    assert position is not None
    sentinel = Tensor.of("int16", [ROUTE_SENTINEL] * (whole.dims[0] * whole.dims[1]), (1, *whole.dims))
    return with_sidecar(whole, index, sentinel, position, repair=True)


def with_sidecar(whole: Assembly, index: int, sidecar: Tensor, position: int, *, repair: bool) -> Assembly:
    """Return the assembly with a sidecar on one of its spans."""
    span = evolve(whole.plan.spans[index], boundary_token_index=position, repair_previous_token=repair)
    whole = with_span(whole, index, span)
    if span_mode(span) is SpanMode.SENTINEL:
        return whole
    fragment = announcing(whole.fragments[span.staging_key], sidecar, position)
    return recommitted(whole, span.staging_key, fragment)


def with_span(whole: Assembly, index: int, span: RouteSpan) -> Assembly:
    """Return the assembly with one span of its plan replaced."""
    spans: Sequence[RouteSpan] = (*whole.plan.spans[:index], span, *whole.plan.spans[index + 1 :])
    return evolve(whole, plan=evolve(whole.plan, spans=tuple(spans)))


@st.composite
def broken_repaired_assemblies(draw: st.DrawFn, code: Code) -> Assembly:
    """Draw an assembly with a sidecar that is refused with ``code``, one of ``SIDECAR_BREAKS``."""
    dims = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    whole = draw(repaired_assemblies(min_repaired=1, dims=dims).filter(lambda one: bool(_with_sidecars(one))))
    key = draw(st.sampled_from(_with_sidecars(whole)))
    return draw(SIDECAR_BREAKS[code](whole, key))


def _with_sidecars(whole: Assembly) -> list[str]:
    return [key for key, fragment in whole.fragments.items() if fragment.boundary is not None]


@st.composite
def _wrong_boundary(draw: st.DrawFn, whole: Assembly, key: str) -> Assembly:
    fragment = whole.fragments[key]
    assert fragment.boundary is not None
    index = json.loads(fragment.extras_metadata_json)[ROUTE_BOUNDARY_INDEX]
    layers, experts = whole.dims
    shape = draw(st.sampled_from([(2, layers, experts), (1, layers + 1, experts), (1, layers, experts + 1)]))
    other = Tensor.of("int16", list(range(shape[2])) * (shape[0] * shape[1]), shape)
    changed = [
        evolve(fragment, boundary=other),
        announcing(fragment, fragment.boundary, draw(st.sampled_from([index + 1, index - 1, None, "?", float(index)]))),
        _silent(fragment),
    ]
    return recommitted(whole, key, draw(st.sampled_from(changed)))


def _silent(fragment: RouteFragment) -> RouteFragment:
    """Return the fragment of a call without a sidecar."""
    extras = {
        name: value for name, value in json.loads(fragment.extras_metadata_json).items() if name != ROUTE_BOUNDARY_INDEX
    }
    return evolve(fragment, boundary=None, extras_metadata_json=metadata_json(extras))


@st.composite
def _wrong_commitment(draw: st.DrawFn, whole: Assembly, key: str) -> Assembly:
    fragment = whole.fragments[key]
    sidecar = fragment.boundary
    assert sidecar is not None
    ids = list(sidecar.values())
    ids[0] = 0 if ids[0] else 1
    inline = json.loads(fragment.extras_metadata_json) | {ROUTE_BOUNDARY: encode_routes(sidecar)}
    uncommitted = [
        evolve(fragment, boundary=Tensor.of(sidecar.dtype, ids, sidecar.shape)),
        evolve(fragment, boundary=Tensor.of("int64", sidecar.values(), sidecar.shape)),
        evolve(fragment, boundary=evolve(sidecar, shape=sidecar.shape[1:])),
        evolve(fragment, boundary=None),
        evolve(fragment, extras_metadata_json=_silent(fragment).extras_metadata_json),
    ]
    # What digests as it should, and still is not a sidecar in its own column with an index beside it.
    committed = [
        evolve(fragment, extras_metadata_json=metadata_json(inline)),
        evolve(fragment, boundary=None),
        evolve(fragment, extras_metadata_json=_silent(fragment).extras_metadata_json),
    ]
    if draw(st.booleans()):
        return evolve(whole, fragments={**whole.fragments, key: draw(st.sampled_from(uncommitted))})
    return recommitted(whole, key, draw(st.sampled_from(committed)))


def _changed_sidecar(change: Callable[[list[int], Assembly], list[int]]) -> Callable[..., st.SearchStrategy[Assembly]]:
    @st.composite
    def broken(draw: st.DrawFn, whole: Assembly, key: str) -> Assembly:
        fragment, width = whole.fragments[key], whole.dims[1]
        assert fragment.boundary is not None
        ids = [int(expert) for expert in fragment.boundary.values()]
        start = draw(st.integers(0, len(ids) // width - 1)) * width
        ids[start : start + width] = change(list(range(width)), whole)
        return recommitted(whole, key, evolve(fragment, boundary=Tensor.of("int32", ids, fragment.boundary.shape)))

    return broken


SIDECAR_BREAKS: Final[dict[Code, Callable[[Assembly, str], st.SearchStrategy[Assembly]]]] = {
    Code.FRAGMENT_INTEGRITY: _wrong_commitment,
    Code.FRAGMENT_BOUNDARY: _wrong_boundary,
    Code.FRAGMENT_VALUE_RANGE: _changed_sidecar(lambda ids, whole: [whole.num_experts or 2**15, *ids[1:]]),
    Code.FRAGMENT_PARTIAL_SENTINEL: _changed_sidecar(lambda ids, _: [ROUTE_SENTINEL, *ids[1:]]),
    Code.FRAGMENT_DUPLICATE_EXPERT: _changed_sidecar(lambda ids, _: [0] * len(ids)),
}
"""Per code of an execution, what breaks a sidecar so that exactly that code is the answer."""


def boundary_choices() -> st.SearchStrategy[str]:
    """Draw what becomes of boundary tokens that nobody repairs."""
    return st.sampled_from(ROUTE_BOUNDARY_CHOICES)


# ── the contract's example ──────────────────────────────────────────────────────────────────────────────────────────

EXAMPLE: Final = stage(
    "g_g0",
    (
        RoutedCall(
            "c1", None, 2, 1, {ROUTED_EXPERTS: encode_routes(Tensor.of("int16", [10, 11, 20, 21, 0, 1], (3, 1, 2)))}
        ),
        RoutedCall(
            "c2",
            "c1",
            1,
            1,
            {
                ROUTED_EXPERTS: "nrlre1:int16:2x1x2:KAApAAAAAQA=",
                ROUTE_BOUNDARY: "nrlre1:int16:1x1x2:HgAfAA==",
                ROUTE_BOUNDARY_INDEX: 2,
            },
        ),
    ),
    "c2",
)
"""Two calls whose last tokens have the placeholder 0, 1 for a route; the second one repairs the first."""
