"""Integer rules of router replay (section 6), of the spec and of the implementation.

Each function states as its postconditions what must hold for every input in its precondition.
"""

from __future__ import annotations

from rollproof.impl import plan as impl_plan
from rollproof.spec.envelope import base64_length
from rollproof.spec.plan import SpanMode, classify_span, sentinel_and_used


def used_rows_lie_inside(carry_len: int, generation_len: int, staged_route_len: int) -> tuple[int, int, int]:
    """What a fragment contributes never reaches past the fragment, and fills exactly the span.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: 0 <= _[0] and 0 <= _[1] and 0 <= _[2]
    post: _[1] + _[2] <= staged_route_len
    post: _[0] + _[2] == carry_len + generation_len
    """
    return sentinel_and_used(carry_len, generation_len, staged_route_len)


def full_covers_all(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """A full span has a route for each of its tokens; a tail has at least one for each generated token.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    mode = classify_span(carry_len, generation_len, staged_route_len)
    if mode is SpanMode.FULL:
        return staged_route_len == carry_len + generation_len
    return mode is SpanMode.SENTINEL or staged_route_len >= generation_len > 0


def tail_leaves_carry_sentinel(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """The leading sentinel tokens of a tail are its carry, and of a sentinel span all of it.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    leading, first, used = sentinel_and_used(carry_len, generation_len, staged_route_len)
    mode = classify_span(carry_len, generation_len, staged_route_len)
    if mode is SpanMode.TAIL:
        return leading == carry_len and first + used == staged_route_len
    return (leading == 0) if mode is SpanMode.FULL else (used == 0)


def tail_never_occurs_in_a_rollout(carry_len: int, generation_len: int, with_routes: bool) -> bool:
    """In a rollout the staged length is 0 or the call's own, so that a span is full or sentinel.

    pre: 0 <= carry_len < 2**62
    pre: 0 < generation_len < 2**62
    post: _
    """
    staged_route_len = carry_len + generation_len if with_routes else 0
    mode = classify_span(carry_len, generation_len, staged_route_len)
    return mode is (SpanMode.FULL if with_routes else SpanMode.SENTINEL)


def implementations_agree(carry_len: int, generation_len: int, staged_route_len: int) -> bool:
    """The implementation's classification is the spec's.

    pre: 0 <= carry_len < 2**63
    pre: 0 <= generation_len < 2**63
    pre: 0 <= staged_route_len < 2**63
    post: _
    """
    found = impl_plan.classify(carry_len, generation_len, staged_route_len)
    return found == classify_span(carry_len, generation_len, staged_route_len).value


def base64_fits(byte_count: int) -> int:
    """Base64 is as long as its bytes need, and no two byte counts that differ by three share a length.

    pre: 0 <= byte_count < 2**63
    post: _ % 4 == 0
    post: _ * 3 >= byte_count * 4
    post: _ * 3 < byte_count * 4 + 12
    """
    return base64_length(byte_count)
