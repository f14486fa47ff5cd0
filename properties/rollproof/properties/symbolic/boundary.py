"""Route boundaries (section 10): which sidecars a plan may have, which tokens they repair, and an engine's rows."""

from __future__ import annotations

from attrs import evolve

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.routes import plan_of
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.plan import check_boundary, check_fields, plan_schema
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.route_boundary import align_engine_rows, unrepaired_positions
from rollproof.spec.tensor import Tensor


def span(generation: int, staged: int, index: int | None = None, repair: bool = False) -> RouteSpan:
    """Return a span that carries one token."""
    return RouteSpan("r/s", 1, generation, staged, 1, NO_DIGEST, index, repair)


@rule("10", "BOUNDARY-4", "positions and lengths below 2**62, indices from -2**63 to 2**63", (2, 3, 5))
def an_index_is_the_token_before_its_span(index: int, position: int, staged: int) -> bool:
    """A sidecar is accepted iff it is of the token before its span, whose call has routes of its own.

    pre: -2**63 <= index <= 2**63
    pre: 0 <= position < 2**62
    pre: 0 <= staged < 2**62
    post: _
    """
    found = accepted(check_boundary, span(1, staged, index), position, span(1, 0))
    return found == (index == position - 1 >= 0 and staged > 0)


@rule("10", "BOUNDARY-4", "lengths below 2**62", (2, 3, True))
def a_repair_is_between_two_generations(before: int, generation: int, announced: bool) -> bool:
    """A span may repair iff it has a sidecar, and both it and the span before it generated something.

    pre: 0 <= before < 2**62
    pre: 0 <= generation < 2**62
    post: _
    """
    later = span(generation, 1, 3 if announced else None, repair=True)
    return accepted(check_boundary, later, 4, span(before, 1)) == (announced and before > 0 and generation > 0)


@rule("10", "BOUNDARY-4", "lengths below 2**62", (2, 3))
def a_first_span_has_no_sidecar(staged: int, index: int) -> bool:
    """The first span of a plan has no sidecar: before it there is no token.

    pre: 0 <= staged < 2**62
    pre: -2**63 <= index <= 2**63
    post: _
    """
    return not accepted(check_boundary, span(1, staged, index), 0, None)


def plan_with(first: RouteSpan, second: RouteSpan, schema: int | None = None) -> RouteAssemblyPlan:
    """Return a plan of two spans, in the schema that they ask for unless another is given."""
    total = sum(one.carry_len + one.generation_len for one in (first, second))
    spans = tuple(
        evolve(one, staging_key=named.staging_key)
        for one, named in zip((first, second), plan_of((0, 0, 0), (0, 0, 0), expected=0).spans, strict=True)
    )
    schema = plan_schema(spans) if schema is None else schema
    return evolve(plan_of((0, 0, 0), (0, 0, 0), expected=total), spans=spans, schema_version=schema)


@rule("10", ("BOUNDARY-4", "BOUNDARY-5"), "2 spans with or without a sidecar, schemas from -2**63 to 2**63", (3, True))
def a_plan_has_one_schema(schema: int, announced: bool) -> bool:
    """A plan is valid in schema 3 iff one of its spans has a sidecar, in schema 2 iff none has, and in no other.

    pre: -2**63 <= schema <= 2**63
    post: _
    """
    plan = plan_with(span(1, 2), span(1, 2, 1 if announced else None, repair=announced), schema)
    return accepted(check_fields, plan) == (schema == (3 if announced else 2))


@rule("10", ("BOUNDARY-1", "BOUNDARY-4"), "2 spans, lengths below 2**62, indices from -2**63 to 2**63", (2, 3, 2, True))
def a_valid_plan_repairs_the_end_of_a_generation(first: int, second: int, index: int, repair: bool) -> bool:
    """Where a plan is valid, the token that it repairs is the last of the span before: no tool token, none further on.

    pre: 0 <= first < 2**62
    pre: 0 <= second < 2**62
    pre: -2**63 <= index <= 2**63
    post: _
    """
    plan = plan_with(span(first, 1), span(second, 1, index, repair))
    return not accepted(check_fields, plan) or (index == first and (not repair or first > 0))


@rule(
    "10", ("BOUNDARY-2", "BOUNDARY-11"), "2 spans, lengths below 2**62, each with routes or without", (2, 3, 3, 4, True)
)
def what_nobody_repairs_is_the_end_of_a_generation(
    first: int, second: int, staged: int, later: int, repair: bool
) -> bool:
    """A token is unrepaired iff it is the last that a routed span generated, and no routed span repairs it.

    pre: 0 <= first < 2**62
    pre: 0 <= second < 2**62
    pre: 0 <= staged < 2**62
    pre: 0 <= later < 2**62
    post: _
    """
    plan = plan_with(span(first, staged), span(second, later, first, repair))
    routed = [0 < one <= rows for one, rows in ((first, staged), (second, later))]
    # A span of no tokens but its carry is routed where its fragment has one row for it, and has generated nothing.
    repaired = repair and (routed[1] or (second == 0 and later == 1))
    expected = [first] if routed[0] and not repaired else []
    return unrepaired_positions(plan) == (*expected, *([first + 1 + second] if routed[1] else []))


@rule("10", "BOUNDARY-7", "up to 3 rows of calls of up to 4 tokens, starts from -1 to 4", (3, 1, 4))
def rows_end_at_the_last_token(count: int, start: int, tokens: int) -> bool:
    """An engine's rows are taken iff they begin at a token and end at the last one, or at the last but one.

    pre: 0 <= count <= 3
    pre: -1 <= start <= 4
    pre: 0 <= tokens <= 4
    post: _
    """
    rows = pick([Tensor.of("int16", [0] * size, (size, 1, 1)) for size in range(4)], count)
    taken = tokens > 0 and start >= 0 and start + count in (tokens - 1, tokens)
    begin, length = pick(range(-1, 5), start + 1), pick(range(5), tokens)
    return accepted(align_engine_rows, rows, begin, length) == taken
