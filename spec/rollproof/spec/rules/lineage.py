"""Invariants of verifying and linearizing (section 4)."""

from __future__ import annotations

from typing import Final

from rollproof.spec.invariant import Invariant, describe, invariant, same_value
from rollproof.spec.records import LinearizedRow
from rollproof.spec.requests import Accepted, Answer, Area, Linearize, LinearizeGrowth, Refused

MAX_GROWTH: Final = 1.5
"""Work may grow at most this many times as fast as the number of calls: quadratic work grows ``many / few`` times."""


def accepted_row(actual: Answer) -> LinearizedRow | None:
    """The row, where there is one."""
    return actual.value if isinstance(actual, Accepted) and isinstance(actual.value, LinearizedRow) else None


def chain_ids(request: Linearize) -> list[str]:
    """The calls from the root to the terminal, read off the manifest's parent links."""
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
    "A row is the deltas of its terminal chain back to back: no token of a dead branch, none twice, none lost.",
    (Linearize,),
)
def chain_tokens(request: Linearize, _: Answer, actual: Answer) -> str | None:
    """Checked on the request's own calls, without the spec's walk."""
    row = accepted_row(actual)
    if row is None:
        return None
    calls = {call.model_call_id: call for call in request.calls}
    chain = chain_ids(request)
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
def spans_tile(_: Linearize, __: Answer, actual: Answer) -> str | None:
    """Every position belongs to exactly one call, one weight version, and either carry or generation."""
    row = accepted_row(actual)
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
def first_violation(_: Linearize, expected: Answer, actual: Answer) -> str | None:
    """The order is part of the contract: two verifiers must report the same reason."""
    if isinstance(expected, Refused) and not (isinstance(actual, Refused) and actual.code == expected.code):
        return f"it {describe(actual)}, expected {expected.reason}"
    return None


@invariant("LINEAGE-4", Area.LINEAGE, "4", "A verified rollout gives exactly the contract's row.", (Linearize,))
def rows_agree(_: Linearize, expected: Answer, actual: Answer) -> str | None:
    """All fields, bit for bit."""
    return same_value(expected, actual)


@invariant("LINEAGE-5", Area.LINEAGE, "4", "The work is linear in the number of calls.", (LinearizeGrowth,))
def linear_work(request: LinearizeGrowth, _: Answer, actual: Answer) -> str | None:
    """Decision D5. The work is counted in executed lines, so the verdict does not depend on the machine."""
    if not isinstance(actual, Accepted):
        return f"it {describe(actual)}"
    few, many = actual.value
    allowed = MAX_GROWTH * request.many / request.few
    if many > few * allowed:
        return (
            f"{few} steps for {request.few} calls, {many} or more for {request.many}: "
            f"x{many / few:.1f} for x{request.many / request.few:.0f} calls"
        )
    return None


INVARIANTS: Final[tuple[Invariant, ...]] = (chain_tokens, spans_tile, first_violation, rows_agree, linear_work)
