"""Router replay (section 6): span classification, and the length arithmetic of envelopes."""

from __future__ import annotations

from rollproof.properties.symbolic.rule import rule
from rollproof.spec.envelope import base64_length
from rollproof.spec.plan import SpanMode, classify_span, sentinel_and_used

LENGTHS = "lengths below 2**63"


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 4))
def used_rows_lie_inside_the_fragment(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """What a span takes of its fragment never reaches past the fragment's ends.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    leading, first, used = sentinel_and_used(carry_len, generation_len, staged_route_len)
    return min(leading, first, used) >= 0 and first + used <= staged_route_len


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 4))
def a_span_is_filled_exactly(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """Leading sentinels and fragment rows add up to the call's tokens.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    leading, _, used = sentinel_and_used(carry_len, generation_len, staged_route_len)
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
    leading, first, used = sentinel_and_used(carry_len, generation_len, staged_route_len)
    return (leading, used) == (carry_len, generation_len) and first + used == staged_route_len


@rule("6", ("ROUTE-4", "ROUTE-7"), LENGTHS, (3, 2, 1))
def a_short_fragment_contributes_nothing(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """With fewer staged routes than generated tokens the whole span is sentinel: nothing is spread or repeated.

    pre: 0 <= carry_len < 2**63
    pre: 0 < generation_len < 2**63
    pre: 0 <= staged_route_len < generation_len
    post: _
    """
    return sentinel_and_used(carry_len, generation_len, staged_route_len) == (carry_len + generation_len, 0, 0)


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
    """Base64 is whole groups of four characters, as many as its bytes need and no more.

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
