"""Router replay (section 6): span classification, and the length arithmetic of envelopes."""

from __future__ import annotations

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.symbolic.build import accepted
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.envelope import base64_length
from rollproof.spec.plan import SpanMode, check_fields, classify_span, fragment_use, has_routes
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan

LENGTHS = "lengths below 2**63"


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 4))
def used_rows_lie_inside_the_fragment(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """A span never takes rows from beyond its fragment's ends.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    leading, first, used = fragment_use(carry_len, generation_len, staged_route_len)
    return min(leading, first, used) >= 0 and first + used <= staged_route_len


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 4))
def a_span_is_filled_exactly(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """Leading sentinels and fragment rows add up to the call's tokens.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    leading, _, used = fragment_use(carry_len, generation_len, staged_route_len)
    return leading + used == carry_len + generation_len


@rule("6", "ROUTE-4", LENGTHS, (3, 2, 5))
def full_covers_every_token(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """A span is full iff its fragment has a route for each of its tokens, and there is one.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    is_full = classify_span(carry_len, generation_len, staged_route_len) is SpanMode.FULL
    return is_full == (staged_route_len == carry_len + generation_len > 0)


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 4))
def a_tail_leaves_its_carry_sentinel(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """A tail fills the generated tokens from the fragment's last rows, and leaves exactly the carry sentinel.

    pre: 0 <= carry_len < 2**63
    pre: 0 < generation_len < 2**63
    pre: generation_len <= staged_route_len < 2**63
    pre: staged_route_len != carry_len + generation_len
    post: _
    """
    leading, first, used = fragment_use(carry_len, generation_len, staged_route_len)
    return (leading, used) == (carry_len, generation_len) and first + used == staged_route_len


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 1))
def a_short_fragment_contributes_nothing(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """With fewer staged routes than generated tokens the whole span is sentinel: nothing is spread or repeated.

    pre: 0 <= carry_len < 2**63
    pre: 0 < generation_len < 2**63
    pre: 0 <= staged_route_len < generation_len
    post: _
    """
    return fragment_use(carry_len, generation_len, staged_route_len) == (carry_len + generation_len, 0, 0)


@rule("6", "ROUTE-17", "lengths below 2**62", (3, 2, True))
def a_tail_never_occurs_in_a_rollout(carry_len: int, generation_len: int, with_routes: bool) -> bool:
    """In a rollout the staged length is 0 or the call's own, so that a span is full or sentinel.

    pre: 0 <= carry_len < 2**62
    pre: 0 < generation_len < 2**62
    post: _
    """
    staged_route_len = carry_len + generation_len if with_routes else 0
    mode = classify_span(carry_len, generation_len, staged_route_len)
    return mode is (SpanMode.FULL if with_routes else SpanMode.SENTINEL)


@rule("6", "ROUTE-2", "byte counts below 2**63", (7,))
def base64_has_room_for_its_bytes(byte_count: int) -> bool:
    """Base64 consists of whole groups of four characters, exactly as many as its bytes need.

    pre: 0 <= byte_count < 2**63
    post: _
    """
    length = base64_length(byte_count)
    return length % 4 == 0 and byte_count * 4 <= length * 3 < byte_count * 4 + 12


@rule("6", "ROUTE-2", "byte counts below 2**63", (7, 10))
def base64_tells_sizes_apart(byte_count: int, other: int) -> bool:
    """Three bytes more are always longer in base64: an envelope of another shape has another length.

    pre: 0 <= byte_count
    pre: byte_count + 3 <= other < 2**63
    post: _
    """
    return base64_length(byte_count) < base64_length(other)


def plan_of(*spans: tuple[int, int, int], expected: int) -> RouteAssemblyPlan:
    """Return a plan of spans, each given as (carry, generation, staged) lengths."""
    keys = tuple(f"r/{name}" for name in "abc"[: len(spans)])
    return RouteAssemblyPlan(
        staging_partition="staging",
        spans=tuple(RouteSpan(key, *lengths, 1, NO_DIGEST) for key, lengths in zip(keys, spans, strict=True)),
        cleanup_staging_keys=keys,
        expected_token_length=expected,
    )


@rule("6", "ROUTE-5", "2 spans, lengths and row length below 2**62", (3, 2, 0, 1, 6))
def a_plan_adds_up_to_its_row(carry: int, generation: int, next_carry: int, next_generation: int, row: int) -> bool:
    """A plan is valid iff its spans contribute exactly the row's tokens.

    pre: 0 <= carry < 2**62
    pre: 0 <= generation < 2**62
    pre: 0 <= next_carry < 2**62
    pre: 0 <= next_generation < 2**62
    pre: 0 <= row < 2**62
    post: _
    """
    plan = plan_of((carry, generation, 0), (next_carry, next_generation, 0), expected=row)
    return accepted(check_fields, plan) == (carry + generation + next_carry + next_generation == row)


@rule("6", "ROUTE-5", "lengths of one span and of the row from -2**63 to 2**63", (3, 2, 5, 5))
def a_plan_holds_lengths(carry: int, generation: int, staged: int, row: int) -> bool:
    """A plan with a number that is not a length is refused, whatever the field.

    pre: -2**63 <= carry <= 2**63
    pre: -2**63 <= generation <= 2**63
    pre: -2**63 <= staged <= 2**63
    pre: row == carry + generation
    post: _
    """
    lengths = all(0 <= value < 2**63 for value in (carry, generation, staged, row))
    return accepted(check_fields, plan_of((carry, generation, staged), expected=row)) == lengths


@rule("6", "ROUTE-18", "2 spans, lengths below 2**62", (3, 2, 0, 0, 1, 1))
def routes_are_those_of_any_span(
    carry: int, generation: int, staged: int, next_carry: int, next_generation: int, next_staged: int
) -> bool:
    """A plan has routes iff some span takes a row of its fragment.

    pre: 0 <= carry < 2**62 and 0 <= generation < 2**62 and 0 <= staged < 2**62
    pre: 0 <= next_carry < 2**62 and 0 <= next_generation < 2**62 and 0 <= next_staged < 2**62
    post: _
    """
    spans = (carry, generation, staged), (next_carry, next_generation, next_staged)
    used = [fragment_use(*span)[2] for span in spans]
    return has_routes(plan_of(*spans, expected=0)) == (max(used) > 0)
