"""The route plan: which staged fragments make up a row's routes, and how far each of them reaches (section 6).

Metadata only. In deferred mode the plan is what is published, as plain JSON in the row's tag, and a policy worker
executes it later; so decoding trusts nothing: exactly these fields, exactly these types, no defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.values import expect, is_digest, is_identifier, is_length, show

ROUTE_PLAN_SCHEMA_VERSION: Final = 2


class SpanMode(StrEnum):
    """What a staged fragment contributes to its call's tokens."""

    FULL = "full"
    """Every token of the call."""
    TAIL = "tail"
    """The generated tokens, from the fragment's last rows; the carry stays sentinel."""
    SENTINEL = "sentinel"
    """Nothing: the model's own router decides."""


def classify_span(carry_len: int, generation_len: int, staged_route_len: int) -> SpanMode:
    """What a fragment of ``staged_route_len`` tokens contributes to a call of that many carry and generated ones.

    From the lengths alone: a plan is made, and checked, before any route is read. ``ValueError`` for a non-length.
    """
    for name, value in (("carry", carry_len), ("generation", generation_len), ("staged routes", staged_route_len)):
        expect(is_length(value), name, value, "an integer in [0, 2**63)")
    if staged_route_len > 0 and staged_route_len == carry_len + generation_len:
        return SpanMode.FULL
    if 0 < generation_len <= staged_route_len:
        return SpanMode.TAIL
    return SpanMode.SENTINEL


def sentinel_and_used(carry_len: int, generation_len: int, staged_route_len: int) -> tuple[int, int, int]:
    """A call's tokens as (leading sentinel tokens, first fragment row used, rows used).

    The first and the last of them add up to the call's tokens, and the rows lie inside the fragment.
    """
    match classify_span(carry_len, generation_len, staged_route_len):
        case SpanMode.FULL:
            return 0, 0, staged_route_len
        case SpanMode.TAIL:
            return carry_len, staged_route_len - generation_len, generation_len
        case _:
            return carry_len + generation_len, 0, 0


def span_mode(span: RouteSpan) -> SpanMode:
    """The mode of a plan's span."""
    return classify_span(span.carry_len, span.generation_len, span.staged_route_len)


def has_routes(plan: RouteAssemblyPlan) -> bool:
    """Whether any span of the plan contributes routes."""
    return any(span_mode(span) is not SpanMode.SENTINEL for span in plan.spans)


def placeholder_plan(config: ReassemblerConfig, cleanup_keys: Sequence[str]) -> RouteAssemblyPlan:
    """The plan of a placeholder row: no spans, one token, and the keys that its rollout owns."""
    return RouteAssemblyPlan(config.staging_partition, (), tuple(cleanup_keys), 1)


# ── validity ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_plan(plan: RouteAssemblyPlan) -> None:
    """Raise ``Rejected(INVALID_ROUTE_PLAN)`` unless every field has its type and range, and all agree."""
    try:
        check_fields(plan)
    except ValueError as error:
        raise Rejected(Code.INVALID_ROUTE_PLAN, str(error)) from None


def check_fields(plan: RouteAssemblyPlan) -> None:
    """The rules of a valid plan; ``ValueError`` names the violated one."""
    check_schema_version(plan.schema_version)
    expect(is_identifier(plan.staging_partition), "staging_partition", plan.staging_partition, "a non-empty text")
    expect(is_length(plan.expected_token_length), "expected_token_length", plan.expected_token_length, "a length")
    for field in ("cleanup_staging_keys", "spans"):
        expect(type(getattr(plan, field)) is tuple, field, getattr(plan, field), "a tuple")
    for key in plan.cleanup_staging_keys:
        expect(is_identifier(key), "cleanup_staging_keys", key, "non-empty texts")
    for span in plan.spans:
        check_span(span)
    cleanup, keys = plan.cleanup_staging_keys, [span.staging_key for span in plan.spans]
    expect(len(set(cleanup)) == len(cleanup), "cleanup_staging_keys", cleanup, "distinct keys")
    expect(len(set(keys)) == len(keys), "spans", keys, "distinct keys")
    expect(set(keys) <= set(cleanup), "spans", keys, "keys among the cleanup keys")
    if plan.spans:
        total = sum(span.carry_len + span.generation_len for span in plan.spans)
        expected = plan.expected_token_length
        expect(total == expected, "expected_token_length", expected, "the tokens of all spans")


def check_schema_version(version: object) -> None:
    """Schema 3 adds route boundary sidecars, which are outside version 1 of the contract."""
    supported = type(version) is int and version == ROUTE_PLAN_SCHEMA_VERSION
    expect(supported, "schema_version", version, str(ROUTE_PLAN_SCHEMA_VERSION))


def check_span(span: RouteSpan) -> None:
    """The rules of one span; ``ValueError`` names the violated one."""
    expect(is_identifier(span.staging_key), "staging_key", span.staging_key, "a non-empty text")
    for field in ("carry_len", "generation_len", "staged_route_len"):
        expect(is_length(getattr(span, field)), field, getattr(span, field), "an integer in [0, 2**63)")
    version = span.extras_digest_version
    supported = type(version) is int and version == EXTRAS_DIGEST_VERSION
    expect(supported, "extras_digest_version", version, str(EXTRAS_DIGEST_VERSION))
    expect(is_digest(span.extras_digest), "extras_digest", span.extras_digest, "64 lowercase hex characters")


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SPAN_FIELDS: Final = (
    "staging_key",
    "carry_len",
    "generation_len",
    "staged_route_len",
    "extras_digest_version",
    "extras_digest",
)
PLAN_FIELDS: Final = (
    "schema_version",
    "staging_partition",
    "spans",
    "cleanup_staging_keys",
    "expected_token_length",
)


def encode_plan(plan: RouteAssemblyPlan) -> dict[str, object]:
    """The JSON object of a valid plan; ``Rejected(INVALID_ROUTE_PLAN)`` for another."""
    check_plan(plan)
    return {
        "schema_version": plan.schema_version,
        "staging_partition": plan.staging_partition,
        "spans": [{field: getattr(span, field) for field in SPAN_FIELDS} for span in plan.spans],
        "cleanup_staging_keys": list(plan.cleanup_staging_keys),
        "expected_token_length": plan.expected_token_length,
    }


def encoded_plan_size(plan: RouteAssemblyPlan) -> int:
    """Bytes of the plan as compact JSON in ASCII."""
    return len(json.dumps(encode_plan(plan), separators=(",", ":"), ensure_ascii=True))


def decode_plan(value: Any) -> RouteAssemblyPlan:
    """The plan of a JSON value: ``decode_plan(encode_plan(p)) == p`` and the other way round.

    Raises ``Rejected(INVALID_ROUTE_PLAN)`` for every value that is no valid plan, and nothing else.
    """
    try:
        if type(value) is dict and "schema_version" in value:
            check_schema_version(value["schema_version"])
        fields = exact_fields(value, PLAN_FIELDS, "plan")
        plan = RouteAssemblyPlan(
            schema_version=fields["schema_version"],
            staging_partition=fields["staging_partition"],
            spans=items(fields["spans"], "spans", decode_span),
            cleanup_staging_keys=items(fields["cleanup_staging_keys"], "cleanup_staging_keys", lambda key: key),
            expected_token_length=fields["expected_token_length"],
        )
        check_fields(plan)
    except ValueError as error:
        raise Rejected(Code.INVALID_ROUTE_PLAN, str(error)) from None
    return plan


def decode_span(value: Any) -> RouteSpan:
    """One span; ``ValueError`` names the violated rule."""
    span = RouteSpan(**exact_fields(value, SPAN_FIELDS, "span"))
    check_span(span)
    return span


def exact_fields(value: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """A JSON object with exactly these fields."""
    if type(value) is not dict:
        raise ValueError(f"{what}: expected an object, got {show(value)}")
    missing = [name for name in names if name not in value]
    expect(not missing, what, ", ".join(missing), "no missing field")
    unknown = [name for name in value if name not in names]
    expect(not unknown, what, ", ".join(map(show, unknown)), "no other field")
    return value


def items(value: Any, what: str, decode: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The decoded items of a JSON list."""
    if type(value) is not list:
        raise ValueError(f"{what}: expected a list, got {show(value)}")
    return tuple(decode(item) for item in value)
