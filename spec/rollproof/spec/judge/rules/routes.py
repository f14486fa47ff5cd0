"""Invariants of router replay (section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rollproof.spec.constants import AS_STAGED, ROUTE_PLAN_TAG, ROUTE_SENTINEL, ROUTED_EXPERTS
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
    Answer,
    Area,
    ClassifySpan,
    Crashed,
    DecodePlan,
    DecodeRoutes,
    EncodePlan,
    EncodeRoutes,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
    GroupReplay,
    Refused,
    ReplayGroup,
    Request,
)
from rollproof.spec.judge.rules.group import StepCase, each_step, groups_complaint
from rollproof.spec.judge.rules.rollout import finalized, rollout_complaint
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plan import decode_plan
from rollproof.spec.records import RouteAssemblyPlan
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor

CODEC: Final = (DecodeRoutes, EncodeRoutes, ClassifySpan, DecodePlan, EncodePlan, ExecutePlan)


def route_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of routes."""
    return invariant(id, Area.ROUTES, "6", sentence, requests)


def token_routes(routes: Tensor) -> list[tuple[int | float | bool, ...]]:
    """Return, per token, its expert ids over all layers."""
    width = routes.count // routes.shape[0] if routes.shape[0] else 0
    ids = routes.values()
    return [ids[start : start + width] for start in range(0, len(ids), width)] if width else []


def layer_vectors(routes: Tensor) -> Iterator[tuple[int | float | bool, ...]]:
    """Yield, per token and layer, its expert ids."""
    width, ids = routes.shape[-1], routes.values()
    return (ids[start : start + width] for start in range(0, len(ids), width))


def is_sentinel(routes: Tensor) -> bool:
    """Return whether no token of the row has a route."""
    return set(routes.values()) <= {ROUTE_SENTINEL}


def published_routes(answer: Answer) -> Iterator[Tensor]:
    """Yield every route tensor that an answer publishes or replays."""
    value = answer.value if isinstance(answer, Accepted) else None
    if isinstance(value, GroupReplay):
        yield from value.direct
        yield from (row.routes for row in value.deferred)
    elif isinstance(value, tuple):
        for outcome in value:
            for row in outcome.rows or () if isinstance(outcome, GroupOutcome) else ():
                if ROUTED_EXPERTS in row.columns:
                    yield row.columns[ROUTED_EXPERTS]
    elif isinstance(value, Tensor):
        yield value
    elif (rollout := finalized(answer)) is not None and rollout.routed_experts is not None:
        yield rollout.routed_experts


@route_rule("ROUTE-1", "An envelope or list of routes is read as exactly the ids that it holds.", DecodeRoutes)
def routes_decode(case: Case[Request]) -> str | None:
    """No id changes its value, whatever dtype it travels in."""
    return same_value(case)


@route_rule("ROUTE-2", "One value has one encoding: what the encoder would not write is refused.", DecodeRoutes)
def one_encoding(case: Case[DecodeRoutes]) -> str | None:
    """Decision D9: the extras digest covers the text, so a second spelling is a second digest."""
    if not isinstance(case.contract, Refused):
        return None
    if isinstance(case.answer, Accepted):
        return f"decoded {case.request.payload!r:.80}, expected {case.contract.reason}"
    return None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}"


@route_rule("ROUTE-3", "Encoding is the inverse of decoding, in both directions.", EncodeRoutes)
def encode_inverts(case: Case[EncodeRoutes]) -> str | None:
    """Bit for bit, and the text is the one that decodes back."""
    if isinstance(case.contract, Accepted):
        return same_value(case)
    return None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected a refusal"


@route_rule("ROUTE-4", "A span is full, tail or sentinel from its lengths alone.", ClassifySpan)
def classification(case: Case[ClassifySpan]) -> str | None:
    """The rows that are used are inside the fragment, and their tokens inside the span."""
    if isinstance(case.answer, Accepted):
        used = {
            "full": case.request.carry_len + case.request.generation_len,
            "tail": case.request.generation_len,
            "sentinel": 0,
        }.get(case.answer.value, -1)
        if not 0 <= used <= min(case.request.staged_route_len, case.request.carry_len + case.request.generation_len):
            return f"{case.answer.value} uses {used} of {case.request.staged_route_len} staged routes"
    if isinstance(case.contract, Refused):
        return (
            None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected {case.contract.reason}"
        )
    return same_value(case)


@route_rule("ROUTE-5", "A plan is decoded strictly: a valid one to its contents, anything else is refused.", DecodePlan)
def plans_decode(case: Case[Request]) -> str | None:
    """Exactly these fields, types and ranges, no defaults."""
    if isinstance(case.contract, Refused):
        return (
            None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected {case.contract.reason}"
        )
    return same_value(case)


@route_rule("ROUTE-6", "Decoding an encoded plan gives the plan, and an invalid plan is not encoded.", EncodePlan)
def plans_encode(case: Case[EncodePlan]) -> str | None:
    """decode(encode(p)) = p."""
    if isinstance(case.contract, Refused):
        return (
            None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected {case.contract.reason}"
        )
    if isinstance(case.answer, Accepted):
        try:
            return difference(case.request.plan, decode_plan(case.answer.value), "plan")
        except Rejected as rejected:
            return f"encoded as what is refused: {rejected.reason}"
    return f"it {describe(case.answer)}"


@route_rule("ROUTE-7", "A token's route is the one staged for that token by its own call, or sentinel.", ExecutePlan)
def own_routes(case: Case[ExecutePlan]) -> str | None:
    """Checked on the request span by span: no route of another token, no id changed, carry of a tail is sentinel.

    What sidecars and the choice for boundary tokens change is checked by BOUNDARY-1.
    """
    asks_repair = any(span.boundary_token_index is not None for span in case.request.plan.spans)
    if not isinstance(case.answer, Accepted) or asks_repair or case.request.route_boundary != AS_STAGED:
        return None
    rows = token_routes(case.answer.value)
    nothing = (ROUTE_SENTINEL,) * (case.request.dims[0] * case.request.dims[1])
    start = 0
    for span in case.request.plan.spans:
        end = start + span.carry_len + span.generation_len
        staged = case.request.fragments.get(span.staging_key)
        fragment = token_routes(staged.routes) if staged is not None else []
        if span.staged_route_len and span.staged_route_len == span.carry_len + span.generation_len:
            wanted = fragment
        elif 0 < span.generation_len <= span.staged_route_len:
            wanted = [nothing] * span.carry_len + fragment[len(fragment) - span.generation_len :]
        else:
            wanted = [nothing] * (end - start)
        if rows[start:end] != wanted:
            return f"tokens [{start}, {end}) have routes {rows[start:end]}, expected {wanted}"
        start = end
    return (
        None
        if rows[start:] == [nothing] * (case.request.canonical_len - start)
        else "tokens beyond the spans have routes"
    )


@route_rule(
    "ROUTE-8",
    "Published routes are int16, and a token-layer vector is all sentinel or has none.",
    ExecutePlan,
    FinalizeRollout,
    FinalizeGroups,
    ReplayGroup,
)
def well_formed(case: Case[Request]) -> str | None:
    """Decisions D7 and D8: replay either trusts a vector or uses the model's own router."""
    for routes in published_routes(case.answer):
        if routes.dtype != "int16" or len(routes.shape) != 3:
            return f"{routes.dtype}{list(routes.shape)}, expected int16 of three dimensions"
        for vector in layer_vectors(routes):
            if min(vector) < ROUTE_SENTINEL or (ROUTE_SENTINEL in vector and set(vector) != {ROUTE_SENTINEL}):
                return f"vector {vector}"
    return None


@route_rule("ROUTE-9", "A failed assembly names the first violated rule of section 6.", ExecutePlan)
def first_failure(case: Case[Request]) -> str | None:
    """An assembly that is sound does not fail."""
    return same_value_or_code(case)


@route_rule("ROUTE-10", "Whatever a payload, plan or fragment holds, the answer is a value or a refusal.", *CODEC)
def routes_never_crash(case: Case[Request]) -> str | None:
    """They come from untrusted extras."""
    return f"it {describe(case.answer)}" if isinstance(case.answer, Crashed) else None


@route_rule(
    "ROUTE-11",
    "Rows without staged routes are all sentinel: never expert 0, never stale.",
    FinalizeGroups,
)
@each_step
def nothing_captured(case: StepCase) -> str | None:
    """Padding is checked too: padded rows are cut only where the rest is sentinel."""
    for rollout, row in zip(case.contract.rollouts, case.answer.rows or (), strict=False):
        routes = row.columns.get(ROUTED_EXPERTS)
        if routes is None:
            continue
        if routes.shape[0] != row.columns["input_ids"].count:
            return f"{routes.shape[0]} routes for {row.columns['input_ids'].count} tokens"
        if rollout.routed_experts is None and not is_sentinel(routes):
            return f"routes {routes.values()} where none was captured"
    return None


@route_rule("ROUTE-12", "Deferred execution gives the routes of direct execution, bit for bit.", ReplayGroup)
def deferred_is_direct(case: Case[ReplayGroup]) -> str | None:
    """A row that cannot be assembled is a placeholder in direct mode and all sentinel in deferred mode."""
    if not isinstance(case.contract, Accepted):
        return f"the contract {describe(case.contract)}"
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    for index, (direct, row) in enumerate(zip(case.answer.value.direct, case.answer.value.deferred, strict=True)):
        if row.failure is not None:
            if not is_sentinel(row.routes) or not is_sentinel(direct):
                return f"row {index} failed with {row.failure} and has routes"
        elif complaint := difference(direct, row.routes, f"row {index}"):
            return complaint
    return None


@route_rule("ROUTE-13", "The policy counts why it could not replay a row, under the contract's reason.", ReplayGroup)
def counted_failures(case: Case[ReplayGroup]) -> str | None:
    """Unreported deferred failures look like a model that trains without replay."""
    if not isinstance(case.contract, Accepted) or not isinstance(case.answer, Accepted):
        return None
    wanted, found = ([row.failure for row in answer.value.deferred] for answer in (case.contract, case.answer))
    return None if wanted == found else f"failures {found}, expected {wanted}"


@route_rule("ROUTE-14", "One bad fragment costs its own row, and never the group.", FinalizeGroups)
def one_row(case: Case[FinalizeGroups]) -> str | None:
    """Nor does a rollout whose (L, K) differs from what was learned (decision D10)."""
    return same_valid_rows(case) if isinstance(case.answer, Accepted) else f"it {describe(case.answer)}"


@each_step
def same_valid_rows(case: StepCase) -> str | None:
    """Check that the group ends as it should, with as many valid rows."""
    if case.contract.failure is not case.answer.failure:
        return f"outcome {case.answer.failure or 'a group'}, expected {case.contract.failure or 'a group'}"
    if case.contract.group is None or case.answer.group is None:
        return None
    counts = (case.answer.group.valid_row_count, case.contract.group.valid_row_count)
    return f"{counts[0]} valid rows, expected {counts[1]}" if counts[0] != counts[1] else None


@route_rule("ROUTE-15", "Only an accepted rollout teaches (L, K).", FinalizeGroups)
@each_step
def learned_dims(case: StepCase) -> str | None:
    """Decision D10: what was learned is seen in the shape of every later row, and in whether there are any."""
    if case.contract.rows is None and case.answer.rows is not None:
        taught = [row.columns[ROUTED_EXPERTS].shape[1:] for row in case.answer.rows if ROUTED_EXPERTS in row.columns]
        return f"published routes of (L, K) {taught[0]}, which no accepted rollout had" if taught else None
    for index, (left, right) in enumerate(zip(case.contract.rows or (), case.answer.rows or (), strict=False)):
        shapes = [row.columns[ROUTED_EXPERTS].shape[1:] for row in (left, right) if ROUTED_EXPERTS in row.columns]
        if len(set(shapes)) > 1:
            return f"row {index} has (L, K) {shapes[1]}, expected {shapes[0]}"
    return None


@route_rule(
    "ROUTE-16",
    "A published plan lists spans root first, and cleans up exactly its rollout's own keys.",
    FinalizeGroups,
)
@each_step
def plan_is_own(case: StepCase) -> str | None:
    """Dead branches too: their staging has no other owner. Foreign keys never (decision D14)."""
    for rollout_id, left, right in zip(
        case.step.request.rollout_ids, case.contract.rows or (), case.answer.rows or (), strict=False
    ):
        if ROUTE_PLAN_TAG not in left.tags:
            continue
        plan, own = published_plan(right.tags.get(ROUTE_PLAN_TAG)), published_plan(left.tags[ROUTE_PLAN_TAG])
        if plan is None or own is None:
            return f"{rollout_id} has no valid plan"
        if [span.staging_key for span in plan.spans] != [span.staging_key for span in own.spans]:
            return f"{rollout_id} has spans {[span.staging_key for span in plan.spans]}"
        if set(plan.cleanup_staging_keys) != set(own.cleanup_staging_keys):
            return f"{rollout_id} cleans up {plan.cleanup_staging_keys}, owns {own.cleanup_staging_keys}"
    return None


def published_plan(value: object) -> RouteAssemblyPlan | None:
    """Return a row's plan, or None where it has no valid one."""
    try:
        return decode_plan(value)
    except Rejected:
        return None


@route_rule("ROUTE-17", "A rollout with routes is accepted, rejected and assembled as section 6 says.", FinalizeRollout)
def routed_rollouts_agree(case: Case[FinalizeRollout]) -> str | None:
    """In every field, with the reads that section 5 allows, and the reason of a failed assembly."""
    return rollout_complaint(case)


@route_rule(
    "ROUTE-18", "A group with routes has the contract's effects, rows and result in every field.", FinalizeGroups
)
def routed_groups_agree(case: Case[FinalizeGroups]) -> str | None:
    """Section 8 holds in every mode: its weights, its cleanup and what it does when an operation fails."""
    return groups_complaint(case)
