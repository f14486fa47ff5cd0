"""Route plans (section 6): what a span contributes, what makes a plan valid, and its JSON.

A plan is metadata. Making or decoding one gives either a valid plan or ``Rejected(INVALID_ROUTE_PLAN)``; execution
relies on that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from attrs import frozen

from rollproof.impl.checks import entry, fault, first_repeated, is_hash, is_length, is_text
from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.rejections import Code, Rejected

SCHEMA: Final = 2
BOUNDARY_SCHEMA: Final = 3
"""Of plans with sidecars (section 10)."""

_SCHEMAS: Final = f"{SCHEMA} or {BOUNDARY_SCHEMA}"
_LENGTH: Final = "an integer in [0, 2**63)"
_LENGTHS: Final = ("carry_len", "generation_len", "staged_route_len")
_SPAN: Final = ("staging_key", *_LENGTHS, "extras_digest_version", "extras_digest")
_BOUNDARY_SPAN: Final = (*_SPAN, "boundary_token_index", "repair_previous_token")
_PLAN: Final = ("schema_version", "staging_partition", "spans", "cleanup_staging_keys", "expected_token_length")


@dataclass(frozen=True)
class RouteSpan:
    """One call's part of a route plan, with NeMo RL's field names in its order."""

    staging_key: str
    carry_len: int
    generation_len: int
    staged_route_len: int
    extras_digest_version: int
    extras_digest: str
    boundary_token_index: int | None = None
    repair_previous_token: bool = False


@dataclass(frozen=True)
class RouteAssemblyPlan:
    """Which staged fragments make up a row's routes, with NeMo RL's field names in its order."""

    schema_version: int
    staging_partition: str
    spans: tuple[RouteSpan, ...]
    """Root first."""
    cleanup_staging_keys: tuple[str, ...]
    """The keys that the row's rollout owns, dead branches included."""
    expected_token_length: int


@frozen
class Use:
    """The part of its fragment that one span takes: ``rows`` from ``first`` on, after ``unrouted`` sentinel tokens."""

    unrouted: int
    first: int
    rows: int


def classify(carry_len: int, generation_len: int, staged_route_len: int) -> str:
    """Return ``full``, ``tail`` or ``sentinel``; ``ValueError`` for a negative or inexact length."""
    lengths = (carry_len, generation_len, staged_route_len)
    if not all(map(is_length, lengths)):
        name, value = next(each for each in zip(_LENGTHS, lengths, strict=True) if not is_length(each[1]))
        raise ValueError(fault(name, value, "an integer in [0, 2**63)"))
    if 0 < staged_route_len == carry_len + generation_len:
        return "full"
    return "tail" if 0 < generation_len <= staged_route_len else "sentinel"


def use_of(span: RouteSpan) -> Use:
    """Return what a valid span takes from its fragment."""
    carry, generation, staged = span.carry_len, span.generation_len, span.staged_route_len
    match classify(carry, generation, staged):
        case "full":
            return Use(0, 0, staged)
        case "tail":
            return Use(carry, staged - generation, generation)
        case _:
            return Use(carry + generation, 0, 0)


def has_routes(plan: RouteAssemblyPlan) -> bool:
    """Return whether a valid plan uses any fragment."""
    return any(use_of(span).rows for span in plan.spans)


def placeholder_plan(staging_partition: str, owned_keys: Sequence[str]) -> RouteAssemblyPlan:
    """Return the plan of a placeholder row: one token, no spans."""
    return RouteAssemblyPlan(SCHEMA, staging_partition, (), tuple(owned_keys), 1)


def validate(plan: RouteAssemblyPlan) -> RouteAssemblyPlan:
    """Return the plan itself, if it is valid; else ``Rejected(INVALID_ROUTE_PLAN)``."""
    found = _plan_fault(plan)
    if found is not None:
        raise Rejected(Code.INVALID_ROUTE_PLAN, found)
    return plan


def _plan_fault(plan: RouteAssemblyPlan) -> str | None:
    """Return the first rule that the plan breaks, in the spec's order."""
    if not _is_schema(plan.schema_version):
        return fault("schema_version", plan.schema_version, _SCHEMAS)
    if not _is_name(plan.staging_partition):
        return fault("staging_partition", plan.staging_partition, "a non-empty string")
    if not is_length(plan.expected_token_length):
        return fault("expected_token_length", plan.expected_token_length, _LENGTH)
    for name in ("cleanup_staging_keys", "spans"):
        if type(getattr(plan, name)) is not tuple:
            return fault(name, getattr(plan, name), "a tuple")
    for key in plan.cleanup_staging_keys:
        if not _is_name(key):
            return fault("cleanup_staging_keys", key, "non-empty strings")
    for index, span in enumerate(plan.spans):
        found = _span_fault(span)
        if found is not None:
            return f"{entry('span', index, [span.staging_key])}: {found}"
    keys, owned = [span.staging_key for span in plan.spans], set(plan.cleanup_staging_keys)
    for name, listed in (("cleanup_staging_keys", plan.cleanup_staging_keys), ("spans", keys)):
        again = first_repeated(listed)
        if again is not None:
            return fault(name, listed[again], "distinct keys")
    for key in keys:
        if key not in owned:
            return fault("spans", key, "keys among cleanup_staging_keys")
    total = sum(span.carry_len + span.generation_len for span in plan.spans)
    if plan.spans and total != plan.expected_token_length:
        return fault("expected_token_length", plan.expected_token_length, f"{total}, the tokens of all spans")
    return _boundaries_fault(plan)


def _boundaries_fault(plan: RouteAssemblyPlan) -> str | None:
    """Return the first rule of section 10 that the plan breaks, span by span."""
    position, previous = 0, None
    for index, span in enumerate(plan.spans):
        found = _boundary_fault(span, position, previous)
        if found is not None:
            return f"{entry('span', index, [span.staging_key])}: {found}"
        position, previous = position + span.carry_len + span.generation_len, span
    schema = schema_of(plan.spans)
    return None if plan.schema_version == schema else fault("schema_version", plan.schema_version, str(schema))


def _boundary_fault(span: RouteSpan, position: int, previous: RouteSpan | None) -> str | None:
    """Return what is wrong with the boundary of a span that begins at ``position``, after the span ``previous``."""
    index, repair = span.boundary_token_index, span.repair_previous_token
    if index is not None and not is_length(index):
        return fault("boundary_token_index", index, "a position or null")
    if type(repair) is not bool:
        return fault("repair_previous_token", repair, "a bool")
    if index is not None and (not position or index != position - 1 or not span.staged_route_len):
        expected = f"{position - 1}, the token before the span" if position and span.staged_route_len else "null"
        return fault("boundary_token_index", index, expected)
    sampled = previous is not None and previous.generation_len > 0 and span.generation_len > 0
    if repair and (index is None or not sampled):
        return fault("repair_previous_token", repair, "false without an index, or between calls of which one is mute")
    return None


def schema_of(spans: Sequence[RouteSpan]) -> int:
    """Return the schema version of a plan of these spans."""
    return SCHEMA if all(span.boundary_token_index is None for span in spans) else BOUNDARY_SCHEMA


def _span_fault(span: RouteSpan) -> str | None:
    if not _is_name(span.staging_key):
        return fault("staging_key", span.staging_key, "a non-empty string")
    for name in _LENGTHS:
        if not is_length(getattr(span, name)):
            return fault(name, getattr(span, name), _LENGTH)
    if not _is_exactly(span.extras_digest_version, EXTRAS_DIGEST_VERSION):
        return fault("extras_digest_version", span.extras_digest_version, str(EXTRAS_DIGEST_VERSION))
    if not is_hash(span.extras_digest):
        return fault("extras_digest", span.extras_digest, "64 lowercase hex characters")
    return None


def _is_name(value: object) -> bool:
    return is_text(value) and value != ""


def _is_schema(value: object) -> bool:
    return type(value) is int and value in (SCHEMA, BOUNDARY_SCHEMA)


def _span_fields(schema: int) -> tuple[str, ...]:
    return _BOUNDARY_SPAN if schema == BOUNDARY_SCHEMA else _SPAN


def _is_exactly(value: object, version: int) -> bool:
    return type(value) is int and value == version


def encode_plan(plan: RouteAssemblyPlan) -> dict[str, Any]:
    """Return the JSON object of a valid plan."""
    validate(plan)
    encoded = {name: getattr(plan, name) for name in _PLAN}
    names = _span_fields(plan.schema_version)
    encoded["spans"] = [{name: getattr(span, name) for name in names} for span in plan.spans]
    encoded["cleanup_staging_keys"] = list(plan.cleanup_staging_keys)
    return encoded


def encoded_plan_size(encoded: dict[str, Any]) -> int:
    """Return the bytes of an encoded plan as compact ASCII JSON."""
    return len(json.dumps(encoded, separators=(",", ":")))


def decode_plan(value: Any) -> RouteAssemblyPlan:
    """Return the valid plan of a JSON value, else ``Rejected(INVALID_ROUTE_PLAN)`` and nothing else."""
    if type(value) is dict and "schema_version" in value and not _is_schema(value["schema_version"]):
        raise Rejected(Code.INVALID_ROUTE_PLAN, fault("schema_version", value["schema_version"], _SCHEMAS))
    _expect_fields(value, _PLAN, "plan")
    _expect_list(value, "spans")
    names = _span_fields(value["schema_version"])
    for index, span in enumerate(value["spans"]):
        _expect_fields(span, names, entry("span", index, [span.get("staging_key")] if type(span) is dict else []))
    _expect_list(value, "cleanup_staging_keys")
    spans = tuple(RouteSpan(**span) for span in value["spans"])
    keys = tuple(value["cleanup_staging_keys"])
    return validate(
        RouteAssemblyPlan(
            value["schema_version"], value["staging_partition"], spans, keys, value["expected_token_length"]
        )
    )


def _expect_fields(value: Any, names: Sequence[str], what: str) -> None:
    if type(value) is not dict:
        raise Rejected(Code.INVALID_ROUTE_PLAN, fault(what, value, "an object"))
    for name in names:
        if name not in value:
            raise Rejected(Code.INVALID_ROUTE_PLAN, fault(f"{what}: {name}", None, "a value; the field is missing"))
    for name in value:
        if type(name) is not str or name not in names:
            raise Rejected(Code.INVALID_ROUTE_PLAN, fault(f"{what}: field", name, f"one of {', '.join(names)}"))


def _expect_list(value: dict[str, Any], name: str) -> None:
    if type(value[name]) is not list:
        raise Rejected(Code.INVALID_ROUTE_PLAN, fault(name, value[name], "a list"))
