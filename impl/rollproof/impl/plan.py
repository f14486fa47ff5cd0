"""Route plans (section 6): what a span contributes, what makes a plan valid, and its JSON.

A plan is metadata. Whoever makes or decodes one gets either a valid plan or ``Rejected(INVALID_ROUTE_PLAN)``; execution
relies on that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from rollproof.impl.checks import is_hash, is_length, is_text, show
from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected

SCHEMA: Final = 2

_LENGTHS: Final = ("carry_len", "generation_len", "staged_route_len")
_SPAN: Final = ("staging_key", *_LENGTHS, "extras_digest_version", "extras_digest")
_PLAN: Final = ("schema_version", "staging_partition", "spans", "cleanup_staging_keys", "expected_token_length")


@frozen
class Use:
    """What one span takes from its fragment: ``rows`` of them from ``first`` on, after ``unrouted`` sentinel tokens."""

    unrouted: int
    first: int
    rows: int


def classify(carry_len: int, generation_len: int, staged_route_len: int) -> str:
    """``full``, ``tail`` or ``sentinel``; ``ValueError`` for a negative or inexact length."""
    lengths = (carry_len, generation_len, staged_route_len)
    if not all(map(is_length, lengths)):
        raise ValueError(f"expected three lengths, got {', '.join(map(show, lengths))}")
    if 0 < staged_route_len == carry_len + generation_len:
        return "full"
    return "tail" if 0 < generation_len <= staged_route_len else "sentinel"


def use_of(span: RouteSpan) -> Use:
    """What a valid span takes from its fragment."""
    carry, generation, staged = span.carry_len, span.generation_len, span.staged_route_len
    match classify(carry, generation, staged):
        case "full":
            return Use(0, 0, staged)
        case "tail":
            return Use(carry, staged - generation, generation)
        case _:
            return Use(carry + generation, 0, 0)


def has_routes(plan: RouteAssemblyPlan) -> bool:
    """Whether a valid plan uses any fragment."""
    return any(use_of(span).rows for span in plan.spans)


def placeholder_plan(staging_partition: str, owned_keys: Sequence[str]) -> RouteAssemblyPlan:
    """The plan of a placeholder row: one token, no spans."""
    return RouteAssemblyPlan(staging_partition, (), tuple(owned_keys), 1, SCHEMA)


def validate(plan: RouteAssemblyPlan) -> RouteAssemblyPlan:
    """The plan itself, if it is valid; else ``Rejected(INVALID_ROUTE_PLAN)``."""
    fault = _plan_fault(plan)
    if fault is not None:
        raise Rejected(Code.INVALID_ROUTE_PLAN, fault)
    return plan


def _plan_fault(plan: RouteAssemblyPlan) -> str | None:
    if not _is_exactly(plan.schema_version, SCHEMA):
        return f"schema version {show(plan.schema_version)} is not {SCHEMA}"
    if type(plan.spans) is not tuple or type(plan.cleanup_staging_keys) is not tuple:
        return "spans and cleanup keys are tuples"
    if not _is_name(plan.staging_partition):
        return f"staging_partition: {show(plan.staging_partition)}"
    if not is_length(plan.expected_token_length):
        return f"expected_token_length: {show(plan.expected_token_length)}"
    for key in plan.cleanup_staging_keys:
        if not _is_name(key):
            return f"cleanup key {show(key)}"
    owned = set(plan.cleanup_staging_keys)
    if len(owned) < len(plan.cleanup_staging_keys):
        return "a cleanup key repeats"
    total, used = 0, set()
    for span in plan.spans:
        fault = _span_fault(span)
        if fault is None and span.staging_key in used:
            fault = "the key repeats"
        if fault is None and span.staging_key not in owned:
            fault = "the key is not among the cleanup keys"
        if fault is not None:
            return f"span {show(span.staging_key)}: {fault}"
        used.add(span.staging_key)
        total += span.carry_len + span.generation_len
    if plan.spans and total != plan.expected_token_length:
        return f"spans of {total} tokens for a row of {plan.expected_token_length}"
    return None


def _span_fault(span: RouteSpan) -> str | None:
    if not _is_name(span.staging_key):
        return "no key"
    for name in _LENGTHS:
        if not is_length(getattr(span, name)):
            return f"{name} is {show(getattr(span, name))}"
    if not _is_exactly(span.extras_digest_version, EXTRAS_DIGEST_VERSION):
        return f"extras digest version {show(span.extras_digest_version)}"
    return None if is_hash(span.extras_digest) else "no extras digest"


def _is_name(value: object) -> bool:
    return is_text(value) and value != ""


def _is_exactly(value: object, version: int) -> bool:
    return type(value) is int and value == version


def encode_plan(plan: RouteAssemblyPlan) -> dict[str, Any]:
    """The JSON object of a valid plan."""
    validate(plan)
    encoded = {name: getattr(plan, name) for name in _PLAN}
    encoded["spans"] = [{name: getattr(span, name) for name in _SPAN} for span in plan.spans]
    encoded["cleanup_staging_keys"] = list(plan.cleanup_staging_keys)
    return encoded


def encoded_plan_size(encoded: dict[str, Any]) -> int:
    """Bytes of an encoded plan as compact ASCII JSON."""
    return len(json.dumps(encoded, separators=(",", ":")))


def decode_plan(value: Any) -> RouteAssemblyPlan:
    """The valid plan of a JSON value, else ``Rejected(INVALID_ROUTE_PLAN)`` and nothing else."""
    if type(value) is dict and not _is_exactly(value.get("schema_version"), SCHEMA):
        version = show(value.get("schema_version"))
        raise Rejected(Code.INVALID_ROUTE_PLAN, f"schema version {version} is not {SCHEMA}")
    _expect_fields(value, _PLAN, "plan")
    for name in ("spans", "cleanup_staging_keys"):
        if type(value[name]) is not list:
            raise Rejected(Code.INVALID_ROUTE_PLAN, f"{name}: expected a list")
    for span in value["spans"]:
        _expect_fields(span, _SPAN, "span")
    spans = tuple(RouteSpan(**span) for span in value["spans"])
    keys = tuple(value["cleanup_staging_keys"])
    return validate(
        RouteAssemblyPlan(
            value["staging_partition"], spans, keys, value["expected_token_length"], value["schema_version"]
        )
    )


def _expect_fields(value: Any, names: Sequence[str], what: str) -> None:
    if type(value) is not dict or not set(map(type, value)) <= {str} or set(value) != set(names):
        raise Rejected(Code.INVALID_ROUTE_PLAN, f"{what}: expected an object with exactly {', '.join(names)}")
