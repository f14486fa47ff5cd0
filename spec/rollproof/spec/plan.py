"""The route plan: which staged fragments make up a row's routes, and how far each of them reaches (section 6).

Metadata only. In deferred mode the plan is published as plain JSON in the row's tag, and a policy worker
executes it later; so decoding trusts nothing: exactly these fields, exactly these types, no defaults.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from attrs import fields

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.records import CAPABILITY, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code
from rollproof.spec.values import (
    entry,
    expect,
    expect_digest,
    expect_length,
    fault,
    first_repeated,
    is_identifier,
    is_length,
    naming,
    refusing,
    show,
)

ROUTE_PLAN_SCHEMA_VERSION: Final = 2
BOUNDARY_PLAN_SCHEMA_VERSION: Final = 3
"""Schema 2 with boundary sidecars (section 10). A plan has it if, and only if, one of its spans has a sidecar."""


class SpanMode(StrEnum):
    """The contribution of a staged fragment to its call's tokens."""

    FULL = "full"
    """Every token of the call."""
    TAIL = "tail"
    """The generated tokens, from the fragment's last rows; the carry stays sentinel."""
    SENTINEL = "sentinel"
    """Nothing: the model's own router decides."""


def classify_span(carry_len: int, generation_len: int, staged_route_len: int) -> SpanMode:
    """Classify what ``staged_route_len`` routes give to a call of ``carry_len`` and ``generation_len`` tokens.

    Only the lengths count: a plan is made, and checked, before any route is read. ``ValueError`` for a non-length.
    """
    for name, value in (("carry", carry_len), ("generation", generation_len), ("staged routes", staged_route_len)):
        expect_length(name, value)
    if staged_route_len > 0 and staged_route_len == carry_len + generation_len:
        return SpanMode.FULL
    if 0 < generation_len <= staged_route_len:
        return SpanMode.TAIL
    return SpanMode.SENTINEL


class FragmentUse(NamedTuple):
    """How a call's tokens get their routes: first sentinel tokens, then rows of the fragment."""

    unrouted: int
    """Leading tokens that stay sentinel."""
    first: int
    """The first row of the fragment that is used."""
    rows: int
    """How many rows are used. With ``unrouted`` they add up to the call's tokens."""


def fragment_use(carry_len: int, generation_len: int, staged_route_len: int) -> FragmentUse:
    """Return which of a call's tokens stay sentinel, and which rows of its fragment the others take."""
    match classify_span(carry_len, generation_len, staged_route_len):
        case SpanMode.FULL:
            return FragmentUse(0, 0, staged_route_len)
        case SpanMode.TAIL:
            return FragmentUse(carry_len, staged_route_len - generation_len, generation_len)
        case _:
            return FragmentUse(carry_len + generation_len, 0, 0)


def span_mode(span: RouteSpan) -> SpanMode:
    """Return the mode of a plan's span."""
    return classify_span(span.carry_len, span.generation_len, span.staged_route_len)


def has_routes(plan: RouteAssemblyPlan) -> bool:
    """Return whether any span of the plan contributes routes."""
    return any(span_mode(span) is not SpanMode.SENTINEL for span in plan.spans)


def placeholder_plan(config: ReassemblerConfig, cleanup_keys: Sequence[str]) -> RouteAssemblyPlan:
    """Return the plan of a placeholder row: no spans, one token, and the keys that its rollout owns."""
    return RouteAssemblyPlan(config.staging_partition, (), tuple(cleanup_keys), 1)


# ── validity ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_plan(plan: RouteAssemblyPlan) -> None:
    """Raise ``Rejected(INVALID_ROUTE_PLAN)`` unless every field has its type and range, and all agree."""
    with refusing(Code.INVALID_ROUTE_PLAN):
        check_fields(plan)


def check_fields(plan: RouteAssemblyPlan) -> None:
    """Check the rules of a valid plan; ``ValueError`` names the violated one."""
    check_schema_version(plan.schema_version)
    expect(is_identifier(plan.staging_partition), "staging_partition", plan.staging_partition, "a non-empty string")
    expect_length("expected_token_length", plan.expected_token_length)
    for field in ("cleanup_staging_keys", "spans"):
        expect(type(getattr(plan, field)) is tuple, field, getattr(plan, field), "a tuple")
    for key in plan.cleanup_staging_keys:
        expect(is_identifier(key), "cleanup_staging_keys", key, "non-empty strings")
    for index, span in enumerate(plan.spans):
        with naming(entry("span", index, [span.staging_key])):
            check_span(span)
    cleanup, keys = plan.cleanup_staging_keys, [span.staging_key for span in plan.spans]
    for field, listed in (("cleanup_staging_keys", cleanup), ("spans", keys)):
        again = first_repeated(listed)
        if again is not None:
            raise ValueError(fault(field, listed[again], "distinct keys"))
    owned = set(cleanup)
    for key in keys:
        expect(key in owned, "spans", key, "keys among cleanup_staging_keys")
    if plan.spans:
        total = sum(span.carry_len + span.generation_len for span in plan.spans)
        expected = plan.expected_token_length
        expect(total == expected, "expected_token_length", expected, f"{show(total)}, the tokens of all spans")
    check_boundaries(plan)


def check_schema_version(version: object) -> None:
    """Check for schema 2, or schema 3, which adds boundary sidecars."""
    supported = type(version) is int and version in (ROUTE_PLAN_SCHEMA_VERSION, BOUNDARY_PLAN_SCHEMA_VERSION)
    expect(supported, "schema_version", version, f"{ROUTE_PLAN_SCHEMA_VERSION} or {BOUNDARY_PLAN_SCHEMA_VERSION}")


def check_boundaries(plan: RouteAssemblyPlan) -> None:
    """Check what schema 3 adds, span by span, once everything that schema 2 says holds (section 10)."""
    position, previous = 0, None
    for index, span in enumerate(plan.spans):
        with naming(entry("span", index, [span.staging_key])):
            check_boundary(span, position, previous)
        position, previous = position + span.carry_len + span.generation_len, span
    schema = plan_schema(plan.spans)
    expect(plan.schema_version == schema, "schema_version", plan.schema_version, f"{schema}, by the plan's sidecars")


def check_boundary(span: RouteSpan, position: int, previous: RouteSpan | None) -> None:
    """Check the boundary of one span, which begins at ``position`` of the row, after the span ``previous``.

    A sidecar holds the route of the token before the span: it needs one, and routes of its own to come with. It takes
    the place of that token's route only where both calls sampled something: the token is the last one of a generation,
    and the call that computed its route went on from it.
    """
    index, repair = span.boundary_token_index, span.repair_previous_token
    expect(index is None or is_length(index), "boundary_token_index", index, "a position or null")
    expect(type(repair) is bool, "repair_previous_token", repair, "a bool")
    if index is not None:
        expect(position > 0, "boundary_token_index", index, "null in the first span, before which there is no token")
        expect(index == position - 1, "boundary_token_index", index, f"{show(position - 1)}, the token before the span")
        expect(span.staged_route_len > 0, "boundary_token_index", index, "null in a span without staged routes")
    if repair:
        expect(index is not None, "repair_previous_token", repair, "false without a boundary_token_index")
        sampled = previous is not None and previous.generation_len > 0
        expect(sampled, "repair_previous_token", repair, "false after a span that generated nothing")
        expect(span.generation_len > 0, "repair_previous_token", repair, "false in a span that generated nothing")


def plan_schema(spans: Sequence[RouteSpan]) -> int:
    """Return the schema version of a plan of these spans: one plan has one encoding."""
    with_sidecar = any(span.boundary_token_index is not None for span in spans)
    return BOUNDARY_PLAN_SCHEMA_VERSION if with_sidecar else ROUTE_PLAN_SCHEMA_VERSION


def check_span(span: RouteSpan) -> None:
    """Check the rules of one span; ``ValueError`` names the violated one."""
    expect(is_identifier(span.staging_key), "staging_key", span.staging_key, "a non-empty string")
    for field in ("carry_len", "generation_len", "staged_route_len"):
        expect_length(field, getattr(span, field))
    version = span.extras_digest_version
    supported = type(version) is int and version == EXTRAS_DIGEST_VERSION
    expect(supported, "extras_digest_version", version, str(EXTRAS_DIGEST_VERSION))
    expect_digest("extras_digest", span.extras_digest)


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────

PLAN_FIELDS: Final = ("schema_version", "staging_partition", "spans", "cleanup_staging_keys", "expected_token_length")


def encode_plan(plan: RouteAssemblyPlan) -> dict[str, object]:
    """Return the JSON object of a valid plan; ``Rejected(INVALID_ROUTE_PLAN)`` for another."""
    check_plan(plan)
    names = span_fields(plan.schema_version)
    value = {name: getattr(plan, name) for name in PLAN_FIELDS}
    value["spans"] = [{name: getattr(span, name) for name in names} for span in plan.spans]
    value["cleanup_staging_keys"] = list(plan.cleanup_staging_keys)
    return value


def span_fields(schema_version: int) -> tuple[str, ...]:
    """Return the fields that every span of a plan has: in schema 3 those of sidecars too."""
    every = schema_version == BOUNDARY_PLAN_SCHEMA_VERSION
    return tuple(field.name for field in fields(RouteSpan) if every or field.metadata != CAPABILITY)


def encoded_plan_size(plan: RouteAssemblyPlan) -> int:
    """Return the bytes of the plan as compact JSON in ASCII."""
    return len(json.dumps(encode_plan(plan), separators=(",", ":"), ensure_ascii=True))


def decode_plan(value: Any) -> RouteAssemblyPlan:
    """Return the plan of a JSON value: ``decode_plan(encode_plan(p)) == p`` and the other way round.

    Raises ``Rejected(INVALID_ROUTE_PLAN)`` for every value that is not a valid plan, and nothing else.
    """
    with refusing(Code.INVALID_ROUTE_PLAN):
        if type(value) is dict and "schema_version" in value:
            check_schema_version(value["schema_version"])
        given = exact_fields(value, PLAN_FIELDS, "plan")
        for name in ("spans", "cleanup_staging_keys"):
            expect(type(given[name]) is list, name, given[name], "a list")
        names = span_fields(given["schema_version"])
        spans = tuple(read_span(span, index, names) for index, span in enumerate(given["spans"]))
        plan = RouteAssemblyPlan(
            **{**given, "spans": spans, "cleanup_staging_keys": tuple(given["cleanup_staging_keys"])}
        )
        check_fields(plan)
    return plan


def read_span(value: Any, index: int, names: Sequence[str]) -> RouteSpan:
    """Read one span of a plan, with exactly these fields; its values are not checked here."""
    keys = [value.get("staging_key")] if type(value) is dict else []
    return RouteSpan(**exact_fields(value, names, entry("span", index, keys)))


def exact_fields(value: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """Return a JSON object with exactly these fields."""
    expect(type(value) is dict, what, value, "an object")
    for name in names:
        expect(name in value, f"{what}: {name}", None, "a value; the field is missing")
    for name in value:
        expect(type(name) is str and name in names, f"{what}: field", name, f"one of {', '.join(names)}")
    return dict(value)
