"""The JSON of plans with boundary sidecars: valid ones, and ones with one thing wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.route_boundary import repaired_assemblies
from rollproof.spec.plan import BOUNDARY_PLAN_SCHEMA_VERSION, encode_plan
from rollproof.spec.records import RouteAssemblyPlan

INDEX: Final = "boundary_token_index"
REPAIR: Final = "repair_previous_token"


def boundary_plans() -> st.SearchStrategy[RouteAssemblyPlan]:
    """Draw valid plans, with sidecars on some spans or on none."""
    return repaired_assemblies().map(lambda whole: whole.plan)


@st.composite
def broken_boundary_plans(draw: st.DrawFn, kind: str) -> Any:
    """Draw a plan's JSON with the fault that ``BOUNDARY_PLAN_BREAKS`` says under ``kind``."""
    value, span = _plan_and_span(draw)
    return BOUNDARY_PLAN_BREAKS[kind](draw, value, span)


@st.composite
def plans_indexed_by_no_number(draw: st.DrawFn) -> Any:
    """Draw a plan's JSON with an index that cannot be compared with a number."""
    value, span = _plan_and_span(draw)
    index = span[INDEX]
    span[INDEX] = draw(st.sampled_from([str(index), "", [], [index], {}, {"index": index}]))
    return value


def _plan_and_span(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a plan's JSON and one of its spans that have an index."""
    plan = draw(
        repaired_assemblies(min_repaired=1).filter(lambda one: one.plan.schema_version == BOUNDARY_PLAN_SCHEMA_VERSION)
    ).plan
    value: dict[str, Any] = json.loads(json.dumps(encode_plan(plan)))
    return value, draw(st.sampled_from([span for span in value["spans"] if span[INDEX] is not None]))


Break = Callable[[st.DrawFn, dict[str, Any], dict[str, Any]], Any]


def _missing(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    del draw(st.sampled_from(value["spans"]))[draw(st.sampled_from([INDEX, REPAIR]))]
    return value


def _older_schema(_: st.DrawFn, value: dict[str, Any], __: dict[str, Any]) -> Any:
    value["schema_version"] = 2
    return value


def _needless_schema(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    for each in value["spans"]:
        each[INDEX], each[REPAIR] = None, False
    if draw(st.booleans()):
        value["spans"] = []
    return value


def _off_by_some(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    span[INDEX] += draw(st.sampled_from([1, -1, 2, 100]))
    return value


def _other_type(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    name = draw(st.sampled_from([INDEX, INDEX, REPAIR]))
    wrong = [None, 1, 0, "true", 1.0, []] if name == REPAIR else [str(span[INDEX]), float(span[INDEX]), True, []]
    span[name] = draw(st.sampled_from(wrong))
    return value


def _in_first_span(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    value["spans"][0] |= {INDEX: draw(st.sampled_from([0, 1])), REPAIR: False, "staged_route_len": 1}
    return value


def _without_routes(_: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    span["staged_route_len"] = 0
    return value


def _repair_without_index(draw: st.DrawFn, value: dict[str, Any], _: dict[str, Any]) -> Any:
    value["spans"].append(
        dict(value["spans"][-1], staging_key="r/dead", carry_len=0, generation_len=1)
        | {INDEX: None, REPAIR: True, "staged_route_len": 1}
    )
    value["expected_token_length"] += 1
    return value


def _repair_of_no_generation(draw: st.DrawFn, value: dict[str, Any], span: dict[str, Any]) -> Any:
    """Make one of the two calls around the boundary one that generated nothing."""
    before = value["spans"][value["spans"].index(span) - 1]
    emptied = draw(st.sampled_from([before, span]))
    emptied["carry_len"] += emptied["generation_len"]
    emptied["generation_len"] = 0
    span[REPAIR] = True
    return value


BOUNDARY_PLAN_BREAKS: Final[dict[str, Break]] = {
    "missing field": _missing,
    "older schema": _older_schema,
    "needless schema": _needless_schema,
    "index off": _off_by_some,
    "other type": _other_type,
    "index in the first span": _in_first_span,
    "index without routes": _without_routes,
    "repair without index": _repair_without_index,
    "repair without generation": _repair_of_no_generation,
}
"""The faults that the boundaries in a plan's JSON can have."""
