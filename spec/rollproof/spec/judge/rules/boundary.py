"""Invariants of route boundary repair (section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rollproof.spec.constants import ROUTE_BOUNDARY, ROUTE_SENTINEL, UNREPAIRED_SENTINEL
from rollproof.spec.judge.invariant import (
    Case,
    Invariant,
    Rule,
    describe,
    difference,
    invariant,
    same_value,
    same_value_or_code,
)
from rollproof.spec.judge.requests import (
    Accepted,
    AlignEngineRows,
    Area,
    Crashed,
    DecodePlan,
    EncodePlan,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
    Refused,
    ReplayGroup,
    Request,
)
from rollproof.spec.judge.rules.group import StepCase, each_step, groups_complaint
from rollproof.spec.judge.rules.rollout import finalized, outcome, rollout_complaint
from rollproof.spec.judge.rules.routes import is_sentinel, token_routes
from rollproof.spec.plan import encode_plan
from rollproof.spec.plane import Get
from rollproof.spec.records import RouteSpan

CALLS: Final = (ExecutePlan, DecodePlan, EncodePlan, AlignEngineRows)


def boundary_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of route boundary repair."""
    return invariant(id, Area.BOUNDARY, "10", sentence, requests)


def contributes(span: RouteSpan) -> bool:
    """Return whether a span takes any row of its fragment."""
    tokens, staged = span.carry_len + span.generation_len, span.staged_route_len
    return 0 < staged == tokens or 0 < span.generation_len <= staged


def repaired_at(spans: tuple[RouteSpan, ...]) -> dict[int, str]:
    """Return per row position that a sidecar is written to the key of the call whose sidecar it is."""
    found, start = {}, 0
    for span in spans:
        if span.repair_previous_token and contributes(span):
            found[start - 1] = span.staging_key
        start += span.carry_len + span.generation_len
    return found


def last_generated(spans: tuple[RouteSpan, ...]) -> list[int]:
    """Return the row positions of the last generated tokens of the spans that take rows of their fragment."""
    ends, end = [], 0
    for span in spans:
        end += span.carry_len + span.generation_len
        if span.generation_len and contributes(span):
            ends.append(end - 1)
    return ends


@boundary_rule(
    "BOUNDARY-1", "A repaired token has its child's sidecar as it is; no other token's route changes.", ExecutePlan
)
def sidecars_land(case: Case[ExecutePlan]) -> str | None:
    """Checked on the request: an all-sentinel sidecar is written too, and one that the plan does not apply is not."""
    if not isinstance(case.answer, Accepted) or not isinstance(case.contract, Accepted):
        return None
    spans = case.request.plan.spans
    rows, repaired = token_routes(case.answer.value), repaired_at(spans)
    for position, key in repaired.items():
        sidecar = case.request.fragments[key].boundary
        wanted = None if sidecar is None else tuple(sidecar.values())
        if wanted is not None and rows[position] != wanted:
            return f"token {position} has route {rows[position]}, expected {wanted}, the sidecar of {key}"
    own = own_rows(case.request)
    unrepaired = set(last_generated(spans)) - repaired.keys()
    for position, wanted in enumerate(own):
        if position not in repaired and position not in unrepaired and rows[position] != wanted:
            return f"token {position} has route {rows[position]}, expected its own, {wanted}"
    return None


def own_rows(request: ExecutePlan) -> list[tuple[int | float | bool, ...]]:
    """Return per token the route that its own call staged for it, or sentinels."""
    nothing = (ROUTE_SENTINEL,) * (request.dims[0] * request.dims[1])
    rows: list[tuple[int | float | bool, ...]] = []
    for span in request.plan.spans:
        tokens = span.carry_len + span.generation_len
        staged = token_routes(request.fragments[span.staging_key].routes) if contributes(span) else []
        used = staged if len(staged) == tokens else staged[len(staged) - span.generation_len :] if staged else []
        rows += [nothing] * (tokens - len(used)) + used
    return rows


@boundary_rule(
    "BOUNDARY-2",
    "A boundary token without a sidecar keeps what was staged, or is sentinel where that is the choice.",
    ExecutePlan,
)
def unrepaired_as_chosen(case: Case[ExecutePlan]) -> str | None:
    """Decision D28: the row's last token too. The placeholder 0 … K-1 is a vector that every check accepts."""
    if not isinstance(case.answer, Accepted) or not isinstance(case.contract, Accepted):
        return None
    spans, own = case.request.plan.spans, own_rows(case.request)
    rows, repaired = token_routes(case.answer.value), repaired_at(spans)
    for position in last_generated(spans):
        if position in repaired:
            continue
        wanted = own[position]
        if case.request.route_boundary == UNREPAIRED_SENTINEL:
            wanted = (ROUTE_SENTINEL,) * len(wanted)
        if rows[position] != wanted:
            return f"token {position} has route {rows[position]}, expected {wanted}"
    return None


@boundary_rule("BOUNDARY-3", "A failed assembly with sidecars names the first violated rule.", ExecutePlan)
def first_failure(case: Case[Request]) -> str | None:
    """A sidecar is part of its fragment's integrity, and its ids are checked like all others."""
    return same_value_or_code(case)


@boundary_rule(
    "BOUNDARY-4", "A plan with sidecars is decoded strictly: valid ones to their contents, others not.", DecodePlan
)
def plans_decode(case: Case[Request]) -> str | None:
    """Both fields in every span, an index only where it can be one, and schema 3 only where a span has one."""
    if isinstance(case.contract, Refused):
        refused = isinstance(case.answer, Refused)
        return None if refused else f"it {describe(case.answer)}, expected {case.contract.reason}"
    return same_value(case)


@boundary_rule("BOUNDARY-5", "A plan without sidecars is encoded as schema 2, one with any as schema 3.", EncodePlan)
def plans_encode(case: Case[EncodePlan]) -> str | None:
    """The former byte for byte as ever: it has neither of the new fields."""
    if isinstance(case.contract, Refused):
        refused = isinstance(case.answer, Refused)
        return None if refused else f"it {describe(case.answer)}, expected {case.contract.reason}"
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    return difference(encode_plan(case.request.plan), case.answer.value, "plan")


@boundary_rule(
    "BOUNDARY-6", "Whatever a plan, a sidecar or an engine's rows hold, the answer is a value or a refusal.", *CALLS
)
def never_crashes(case: Case[Request]) -> str | None:
    """Sidecars come from untrusted extras."""
    return f"it {describe(case.answer)}" if isinstance(case.answer, Crashed) else None


@boundary_rule(
    "BOUNDARY-7", "Rows of an engine belong to the tokens that they end at; all others are sentinel.", AlignEngineRows
)
def aligned_by_their_end(case: Case[AlignEngineRows]) -> str | None:
    """Decision D29, checked on the request: nothing before the start, nothing for the last token."""
    if isinstance(case.contract, Refused):
        same = isinstance(case.answer, Refused) and case.answer.code == case.contract.code
        return None if same else f"it {describe(case.answer)}, expected {case.contract.reason}"
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    request, routes = case.request, case.answer.value
    if (routes.dtype, routes.shape) != ("int16", (request.tokens, *request.rows.shape[1:])):
        return f"{routes.dtype}{list(routes.shape)} for {request.tokens} tokens"
    rows, given = token_routes(routes), token_routes(request.rows)
    nothing = (ROUTE_SENTINEL,) * (request.rows.shape[1] * request.rows.shape[2])
    for position, row in enumerate(rows):
        captured = request.start <= position < request.tokens - 1
        wanted = given[position - request.start] if captured else nothing
        if row != wanted:
            return f"token {position} has route {row}, expected {wanted}"
    return None


@boundary_rule(
    "BOUNDARY-8", "Finalizing reads the sidecars of the chain's spans at most once, and no others.", FinalizeRollout
)
def reads_own_sidecars(case: Case[FinalizeRollout]) -> str | None:
    """A retried sibling's sidecar is of another generation, and deferred finalization reads no route at all."""
    result = outcome(case.answer)
    if result is None:
        return None
    reads = [one for one in result.effects if isinstance(one, Get) and ROUTE_BOUNDARY in one.columns]
    if not case.request.config.direct_routes:
        return f"read sidecars {reads[0].keys}" if reads else None
    rollout = finalized(case.contract)
    plan = None if rollout is None else rollout.route_plan
    wanted = {span.staging_key for span in plan.spans if span.boundary_token_index is not None} if plan else None
    found = {key for one in reads for key in one.keys}
    if wanted is not None and found != wanted:
        return f"read the sidecars of {sorted(found)}, expected {sorted(wanted)}"
    return f"{len(reads)} reads of sidecars" if len(reads) > 1 else None


@boundary_rule(
    "BOUNDARY-9", "A rollout with sidecars is accepted, rejected and assembled as section 10 says.", FinalizeRollout
)
def rollouts_agree(case: Case[FinalizeRollout]) -> str | None:
    """In every field, with the reads that section 5 allows, and the reason of what fails."""
    return rollout_complaint(case)


@boundary_rule("BOUNDARY-10", "Deferred execution repairs the tokens that direct execution repairs.", ReplayGroup)
def deferred_is_direct(case: Case[ReplayGroup]) -> str | None:
    """Bit for bit; and a row that cannot be assembled is all sentinel, counted once under the contract's reason."""
    if not isinstance(case.contract, Accepted) or not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    pairs = zip(case.answer.value.direct, case.answer.value.deferred, case.contract.value.deferred, strict=True)
    for index, (direct, row, wanted) in enumerate(pairs):
        if row.failure != wanted.failure:
            return f"row {index}: failure {row.failure}, expected {wanted.failure}"
        if row.failure is not None and not (is_sentinel(row.routes) and is_sentinel(direct)):
            return f"row {index} failed with {row.failure} and has routes"
        if row.failure is None and (complaint := difference(direct, row.routes, f"row {index}")):
            return complaint
    return None


@boundary_rule(
    "BOUNDARY-11", "A group counts the boundary tokens that no sidecar repaired, in both modes.", FinalizeGroups
)
@each_step
def counted(case: StepCase) -> str | None:
    """Decision D28: whatever is chosen for them, somebody must be able to see how many there are."""
    if case.contract.group is None or case.answer.group is None:
        return None
    name = "advisory/unrepaired_boundary_tokens"
    wanted, found = case.contract.group.metrics.get(name), case.answer.group.metrics.get(name)
    return None if wanted == found else f"{name}: {found}, expected {wanted}"


@boundary_rule(
    "BOUNDARY-12", "A group with sidecars has the contract's effects, rows and result in every field.", FinalizeGroups
)
def groups_agree(case: Case[FinalizeGroups]) -> str | None:
    """Everything that no narrower invariant covers."""
    return groups_complaint(case)
