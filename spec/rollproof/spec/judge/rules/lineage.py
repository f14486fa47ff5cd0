"""Invariants of verifying and linearizing (section 4)."""

from __future__ import annotations

from typing import Final

from rollproof.spec.judge.invariant import Case, describe, invariant, same_value
from rollproof.spec.judge.requests import Accepted, Answer, Area, Linearize, LinearizeGrowth, Refused
from rollproof.spec.records import LinearizedRow

MAX_GROWTH: Final = 1.5
"""Work may grow at most this many times as fast as the number of calls: quadratic work grows ``many / few`` times."""


def accepted_row(actual: Answer) -> LinearizedRow | None:
    """Return the row, where there is one."""
    return actual.value if isinstance(actual, Accepted) and isinstance(actual.value, LinearizedRow) else None


def chain_ids(request: Linearize) -> list[str]:
    """Return the calls from the root to the terminal, by the manifest's parent links."""
    parents = {record.model_call_id: record.parent_call_id for record in request.receipt.manifest}
    chain: list[str] = []
    current = request.receipt.terminal_model_call_id
    while current is not None and current in parents and current not in chain:
        chain.append(current)
        current = parents[current]
    return chain[::-1]


@invariant(
    "LINEAGE-1",
    Area.LINEAGE,
    "4",
    "A row consists of the deltas of its terminal chain: no token of a dead branch, none twice, none lost.",
    (Linearize,),
)
def chain_tokens(case: Case[Linearize]) -> str | None:
    """Checked on the request's own calls, without the spec's walk."""
    row = accepted_row(case.answer)
    if row is None:
        return None
    calls = {call.model_call_id: call for call in case.request.calls}
    chain = chain_ids(case.request)
    if list(row.model_call_ids) != chain:
        return f"the row names calls {list(row.model_call_ids)}, the chain is {chain}"
    deltas = tuple(token for call_id in chain for token in calls[call_id].token_ids_delta)
    return None if row.token_ids == deltas else f"token_ids: expected {deltas}, got {row.token_ids}"


@invariant(
    "LINEAGE-2",
    Area.LINEAGE,
    "4",
    "The three token columns are equally long, and link spans and weight-version spans tile them.",
    (Linearize,),
)
def spans_tile(case: Case[Linearize]) -> str | None:
    """Every position belongs to exactly one call, one weight version, and either carry or generation."""
    row = accepted_row(case.answer)
    if row is None:
        return None
    total = len(row.token_ids)
    if len(row.token_mask) != total or len(row.logprobs) != total:
        return f"columns of {total}, {len(row.token_mask)} and {len(row.logprobs)} values"
    start = 0
    for link, version in zip(row.link_spans, row.weight_version_spans, strict=True):
        end = start + link.carry_len + link.generation_len
        if (version.start, version.end) != (start, end) or version.model_call_id != link.model_call_id:
            return f"{version} does not cover [{start}, {end}) of {link.model_call_id}"
        mask = row.token_mask[start:end]
        if mask != (0.0,) * link.carry_len + (1.0,) * link.generation_len:
            return f"{link} against mask {mask}"
        start = end
    return None if start == total else f"spans cover {start} of {total} tokens"


@invariant(
    "LINEAGE-3", Area.LINEAGE, "4", "The first violated rule, in the contract's order, is the answer.", (Linearize,)
)
def first_violation(case: Case[Linearize]) -> str | None:
    """The order is part of the contract: two verifiers must report the same reason."""
    if isinstance(case.contract, Refused) and not (
        isinstance(case.answer, Refused) and case.answer.code == case.contract.code
    ):
        return f"it {describe(case.answer)}, expected {case.contract.reason}"
    return None


@invariant("LINEAGE-4", Area.LINEAGE, "4", "Verifying a rollout gives exactly the contract's row.", (Linearize,))
def rows_agree(case: Case[Linearize]) -> str | None:
    """All fields, bit for bit."""
    return same_value(case)


@invariant("LINEAGE-5", Area.LINEAGE, "4", "The work is linear in the number of calls.", (LinearizeGrowth,))
def linear_work(case: Case[LinearizeGrowth]) -> str | None:
    """Decision D5. The work is counted in executed lines, so the verdict does not depend on the machine."""
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    few, many = case.answer.value
    allowed = MAX_GROWTH * case.request.many / case.request.few
    if many > few * allowed:
        return (
            f"{few} steps for {case.request.few} calls, {many} or more for {case.request.many}: "
            f"x{many / few:.1f} for x{case.request.many / case.request.few:.0f} calls"
        )
    return None
