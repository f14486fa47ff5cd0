"""Rollouts whose calls carry routes: staged rows and a receipt that agree, and ways to make one of them wrong.

``route_length``, ``encoding`` and the route column are not covered by any digest, so a break can simply overwrite them;
where a break changes what a digest covers, the call is staged anew with it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.routes import (
    INT8_EXPERTS,
    broken_metadata,
    fragments,
    model_shapes,
    other_extras,
    route_payload,
)
from rollproof.properties.strategies.rollouts.staged_calls import raw_record, staged_call
from rollproof.spec.constants import (
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_FIELDS,
    ROUTE_ENCODING_ATTACHMENT,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
)
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code
from rollproof.spec.route_boundary import staged_boundary
from rollproof.spec.routes import staged_routes
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import owned_key


@frozen
class RoutedCall:
    """One model call of a scripted rollout. ``extras`` are as the engine handed them over, routes included."""

    call_id: str
    parent: str | None
    carry: int
    generation: int
    extras: Mapping[str, Any] | None = None


@frozen
class RoutedRollout:
    """A rollout in staging, with its receipt and the script that it was made from."""

    rollout_id: str
    script: tuple[RoutedCall, ...]
    terminal: str
    receipt: dict[str, Any]
    rows: Mapping[str, Row]
    dims: Dims | None = None
    """(L, K) of its routes, where they have one."""
    num_experts: int | None = None

    @property
    def chain(self) -> tuple[RoutedCall, ...]:
        """The calls from the root to the terminal one."""
        calls, chain = {call.call_id: call for call in self.script}, [self.terminal]
        while (parent := calls[chain[0]].parent) is not None:
            chain.insert(0, parent)
        return tuple(calls[call_id] for call_id in chain)

    def changed(self, call_id: str, columns: Mapping[str, Tensor], *without: str) -> RoutedRollout:
        """Return the rollout with some staged columns of one call overwritten or dropped, and nothing else adapted."""
        key = owned_key(self.rollout_id, call_id)
        row = {name: value for name, value in {**self.rows[key], **columns}.items() if name not in without}
        return evolve(self, rows={**self.rows, key: row})

    def restaged(self, call_id: str, extras: Mapping[str, Any] | None, columns: Mapping[str, Tensor]) -> RoutedRollout:
        """Return the rollout as if a call had been staged with other extras, and these columns."""
        script = tuple(evolve(call, extras=extras) if call.call_id == call_id else call for call in self.script)
        made = stage(self.rollout_id, script, self.terminal, columns={call_id: columns})
        return evolve(made, dims=self.dims, num_experts=self.num_experts)


def stage(
    rollout_id: str,
    script: Sequence[RoutedCall],
    terminal: str,
    *,
    columns: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> RoutedRollout:
    """Stage a script; ``columns`` gives, per call, columns to stage in place of those that its extras call for."""
    calls: dict[str, StagedCall] = {}
    tokens: dict[str | None, list[int]] = {None: []}
    rows: dict[str, Row] = {}
    manifest = []
    for index, scripted in enumerate(script):
        parent = None if scripted.parent is None else calls[scripted.parent]
        ids = [1000 * index + position for position in range(scripted.carry + scripted.generation)]
        before = tokens[scripted.parent]
        tokens[scripted.call_id] = before + ids
        call = calls[scripted.call_id] = staged_call(
            ids,
            scripted.carry,
            rollout_id=rollout_id,
            call_id=scripted.call_id,
            parent=parent,
            before=before,
            log_probs=(_LOG_PROB,) * scripted.generation,
            weight_version=index,
            extras=None if scripted.extras is None else dict(scripted.extras),
        )
        key = owned_key(rollout_id, scripted.call_id)
        replaced = (columns or {}).get(scripted.call_id)
        if replaced is None:
            encoding, routes = staged_routes(scripted.extras, call.delta_len)
            boundary = staged_boundary(scripted.extras, call.prev_len)
            rows[key] = encode_row(
                call, scripted.extras, routed_experts_encoding=encoding, routes=routes, boundary=boundary
            )
        else:
            rows[key] = {**encode_row(call, scripted.extras, boundary=replaced.get(ROUTE_BOUNDARY)), **replaced}
        manifest.append(raw_record(call, f"response-{scripted.call_id}"))
    receipt = {
        "rollout_id": rollout_id,
        "manifest": manifest,
        "terminal_model_call_id": terminal,
        "terminal_selection": "declared",
    }
    return RoutedRollout(rollout_id, tuple(script), terminal, receipt, rows)


_LOG_PROB: Final = struct.unpack("<f", struct.pack("<f", -0.1))[0]


# ── valid rollouts ──────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def routed_rollouts(
    draw: st.DrawFn,
    *,
    rollout_id: str = "g_g0",
    dims: Dims | None = None,
    min_routed: int = 0,
    max_calls: int = 4,
) -> RoutedRollout:
    """Draw a valid rollout: a chain of calls with and without routes, and perhaps calls beside it.

    At least ``min_routed`` calls of the chain have routes, the terminal one first.
    """
    shape = dims or draw(model_shapes())
    num_experts = draw(st.sampled_from([shape[1] + 1, INT8_EXPERTS, 512]))
    count = draw(st.integers(1, max_calls))
    parents = [None, *(draw(st.sampled_from([None, *range(index)])) for index in range(1, count))]
    terminal = draw(st.integers(0, count - 1))
    chain = [terminal]
    while (parent := parents[chain[-1]]) is not None:
        chain.append(parent)
    must_route = set(chain[:min_routed])
    script = []
    for index, parent in enumerate(parents):
        carry, generation = draw(st.integers(0, 3)), draw(st.integers(1, 3))
        extras = draw(other_extras())
        if index in must_route or draw(st.booleans()):
            fragment = draw(fragments(carry + generation, shape, num_experts=num_experts))
            extras = {**(extras or {}), ROUTED_EXPERTS: route_payload(fragment)}
        script.append(RoutedCall(f"c{index}", None if parent is None else f"c{parent}", carry, generation, extras))
    made = stage(rollout_id, script, f"c{terminal}")
    routed = any(ROUTED_EXPERTS in (call.extras or {}) for call in made.chain)
    return evolve(made, dims=shape if routed else None, num_experts=num_experts)


# ── broken rollouts ─────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def broken_routed_rollouts(draw: st.DrawFn, reason: str) -> RoutedRollout:
    """Draw a rollout with a routed call that is rejected with ``reason``, one of ``ROLLOUT_BREAKS``."""
    dims = draw(st.tuples(st.integers(1, 2), st.integers(2, 3)))
    whole = draw(routed_rollouts(dims=dims, min_routed=1, max_calls=3))
    call = draw(st.sampled_from([call for call in whole.chain if ROUTED_EXPERTS in (call.extras or {})]))
    return ROLLOUT_BREAKS[reason](draw, whole, call)


Break = Callable[[st.DrawFn, RoutedRollout, RoutedCall], RoutedRollout]


def number(value: int) -> Tensor:
    """Return a staged scalar."""
    return Tensor.of("int64", [value])


def _column(whole: RoutedRollout, call: RoutedCall) -> Tensor:
    return whole.rows[owned_key(whole.rollout_id, call.call_id)][ROUTED_EXPERTS]


def _encoding(whole: RoutedRollout, call: RoutedCall) -> int:
    row = whole.rows[owned_key(whole.rollout_id, call.call_id)]
    return int(row["routed_experts_encoding"].values()[0])


def _other_length(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    delta = call.carry + call.generation
    length = draw(st.sampled_from([delta + 1, 2 * delta, 2**63 - 1, *([delta - 1] if delta > 1 else [])]))
    return whole.changed(call.call_id, {"routed_len": number(length)})


def _boundary(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    one = st.sampled_from(ROUTE_BOUNDARY_FIELDS).map(lambda name: {name})
    names = draw(one | st.sets(st.sampled_from(ROUTE_BOUNDARY_FIELDS), min_size=1))
    extras = {**(call.extras or {}), **{name: draw(st.sampled_from([0, 3, None, "?"])) for name in sorted(names)}}
    delta = call.carry + call.generation
    encoding, column = staged_routes(extras, delta)
    assert column is not None
    columns = {
        ROUTED_EXPERTS: column,
        "routed_experts_encoding": number(encoding),
        "routed_len": number(delta),
    }
    return whole.restaged(call.call_id, extras, columns)


def _attachment(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """Stage the routes as a native attachment, of any length."""
    delta = call.carry + call.generation
    length = draw(st.sampled_from([delta, 1, 2**63 - 1]))
    columns = {"routed_experts_encoding": number(ROUTE_ENCODING_ATTACHMENT), "routed_len": number(length)}
    return whole.changed(call.call_id, columns, *draw(st.sampled_from([(), (ROUTED_EXPERTS,)])))


def _forged_absence(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """Draw real routes, staged and committed to, that the row's own columns deny."""
    absent = {"routed_len": number(0), "routed_experts_encoding": number(ROUTE_ENCODING_NONE)}
    if draw(st.booleans()):
        return whole.changed(call.call_id, absent)
    # With a copy of the routes in the metadata, the denial even agrees with the commitment.
    copied = json.dumps(call.extras, ensure_ascii=False).encode()
    return whole.changed(call.call_id, {**absent, "extras_metadata_json": Tensor("uint8", (1, len(copied)), copied)})


def _other_fragment(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    column, encoding = _column(whole, call), _encoding(whole, call)
    ids = list(column.values())
    ids[draw(st.integers(0, len(ids) - 1))] += 1
    wider = {"int8": "int16", "int16": "int32", "int32": "int64"}[column.dtype]
    key = owned_key(whole.rollout_id, call.call_id)
    metadata = draw(st.sampled_from(broken_metadata(whole.rows[key]["extras_metadata_json"].data)).filter(bool))
    swapped = ROUTE_ENCODING_ENVELOPE + ROUTE_ENCODING_LIST - encoding
    changes: list[dict[str, Tensor]] = [
        {"routed_experts_encoding": number(swapped)},
        {ROUTED_EXPERTS: Tensor.of(wider, column.values(), column.shape)},
        {"extras_metadata_json": Tensor("uint8", (1, len(metadata)), metadata)},
    ]
    if max(ids) < 127:
        changes.append({ROUTED_EXPERTS: Tensor.of(column.dtype, ids, column.shape)})
    return whole.changed(call.call_id, draw(st.sampled_from(changes)))


def _no_column(_: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    return whole.changed(call.call_id, {}, ROUTED_EXPERTS)


def _lists_of(whole: RoutedRollout, call: RoutedCall, ids: Sequence[int], shape: tuple[int, ...]) -> RoutedRollout:
    """Stage the call anew with these ids as nested lists, whatever they are."""
    lists: Any = list(ids)
    for size in reversed(shape[1:]):
        lists = [lists[start : start + size] for start in range(0, len(lists), size)]
    columns = {
        ROUTED_EXPERTS: Tensor.of("int16", ids, (1, *shape)),
        "routed_experts_encoding": number(ROUTE_ENCODING_LIST),
        "routed_len": number(call.carry + call.generation),
    }
    return whole.restaged(call.call_id, {**(call.extras or {}), ROUTED_EXPERTS: lists}, columns)


def _flat(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    column = _column(whole, call)
    _, tokens, layers, experts = column.shape
    ids = [int(expert) for expert in column.values()]
    return _lists_of(
        whole, call, ids, draw(st.sampled_from([(tokens, layers * experts), (tokens * layers * experts,)]))
    )


def _one_token_off(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """Return one route more, or one fewer, than there are tokens, as the engine may."""
    column = _column(whole, call)
    _, tokens, layers, experts = column.shape
    ids = [int(expert) for expert in column.values()]
    step = layers * experts
    shorter = tokens > 1 and draw(st.booleans())
    return _lists_of(
        whole,
        call,
        ids[:-step] if shorter else ids + ids[-step:],
        (tokens - 1 if shorter else tokens + 1, layers, experts),
    )


def _other_model(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
    """Give one call's routes another (L, K) than the caller knows of the model."""
    changed = _lists_of(
        whole, call, list(range(6)) * (call.carry + call.generation), (call.carry + call.generation, 1, 6)
    )
    return evolve(changed, dims=whole.dims)


def _with_vector(change: Callable[[st.DrawFn, RoutedRollout, list[int]], list[int]]) -> Break:
    """Return a break that changes one token-layer vector of the call."""

    def broken(draw: st.DrawFn, whole: RoutedRollout, call: RoutedCall) -> RoutedRollout:
        column = _column(whole, call)
        width = column.shape[3]
        ids = [int(expert) for expert in column.values()]
        start = draw(st.integers(0, len(ids) // width - 1)) * width
        ids[start : start + width] = change(draw, whole, list(range(width)))
        return _lists_of(whole, call, ids, column.shape[1:])

    return broken


def _no_expert(draw: st.DrawFn, whole: RoutedRollout, vector: list[int]) -> list[int]:
    return [draw(st.sampled_from([-2, -(2**15), whole.num_experts or 2**15 - 1])), *vector[1:]]


ROLLOUT_BREAKS: Final[dict[str, Break]] = {
    Code.UNSUPPORTED_ROUTE_ENCODING.code: _attachment,
    Code.ROUTED_LEN_MISMATCH.code: _other_length,
    Code.UNSUPPORTED_ROUTE_BOUNDARY.code: _boundary,
    "route_assembly:missing_fragment": _no_column,
    "route_assembly:fragment_integrity": _other_fragment,
    "route_assembly:fragment_integrity:": _forged_absence,
    "route_assembly:fragment_rank": _flat,
    "route_assembly:fragment_length": _one_token_off,
    "route_assembly:fragment_model_shape": _other_model,
    "route_assembly:fragment_value_range": _with_vector(_no_expert),
    "route_assembly:fragment_partial_sentinel": _with_vector(lambda _, __, vector: [-1, *vector[1:]]),
    "route_assembly:fragment_duplicate_expert": _with_vector(lambda _, __, vector: [0] * len(vector)),
}
"""Per normative reason, what breaks a routed call of a chain so that exactly that reason is the answer.

The reason with a colon at its end is the same one, reached by denying the routes instead of altering them.
"""
