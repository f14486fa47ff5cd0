"""Verifying and linearizing a chain (section 4): carry boundary, spans, the graph of calls."""

from __future__ import annotations

from itertools import product

from attrs import evolve

from rollproof.properties.symbolic.build import accepted, call_record, pick, staged_call
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.digest import call_digest, chain_digest, prefix_digest
from rollproof.spec.lineage import (
    calls_that_reach_a_cycle,
    carry_length,
    check_graph,
    lay_out,
    terminal_chain,
)
from rollproof.spec.records import LinearizedRow, Receipt, StagedCall

MASKS = "all masks of 1 to 4 tokens"


def masked(mask: list[bool]) -> StagedCall:
    """A call whose generated tokens are the flagged ones."""
    return staged_call("a", None, [1.0 if generated else 0.0 for generated in mask])


@rule("4", ("LINEAGE-3", "LINEAGE-2"), MASKS, ([False, True],))
def carry_comes_before_generation(mask: list[bool]) -> bool:
    """A call is refused iff a carry token follows a generated one, or none is generated.

    pre: 1 <= len(mask) <= 4
    post: _
    """
    return accepted(carry_length, masked(mask)) == (any(mask) and mask == sorted(mask))


@rule("4", ("LINEAGE-2", "LINEAGE-4"), MASKS, ([False, True],))
def the_carry_is_every_token_before_generation(mask: list[bool]) -> bool:
    """The carry boundary is the number of tokens that were not generated.

    pre: 1 <= len(mask) <= 4
    pre: any(mask) and mask == sorted(mask)
    post: _
    """
    return carry_length(masked(mask)) == mask.count(False)


def chain_of(*calls: tuple[int, int]) -> list[StagedCall]:
    """A chain of calls a, b, …, each given as (carry, generation) lengths, with ids 0, 1, … and right hashes."""
    chain: list[StagedCall] = []
    for name, (carry, generation) in zip("abc", calls, strict=False):
        mask = [0.0] * carry + [1.0] * generation
        parent = chain[-1] if chain else None
        start = parent.cum_len if parent else 0
        call = staged_call(
            name,
            parent.model_call_id if parent else None,
            mask,
            prev_len=start,
            cum_len=start + len(mask),
            weight_version=len(chain),
            token_ids_delta=tuple(range(start, start + len(mask))),
            cumulative_hash=prefix_digest(range(start + len(mask))),
        )
        call = evolve(call, chain_hash=chain_digest(parent.chain_hash if parent else None, call.token_ids_delta))
        chain.append(evolve(call, digest=call_digest(call)))
    return chain


CHAINS = [chain_of(first, second) for first, second in product(product(range(3), (1, 2)), repeat=2)]
"""All chains of two calls of up to 2 carry and 2 generated tokens."""
SHORT_CALLS = "2 calls of up to 2 carry and 2 generated tokens"


def laid_out(carry: int, generation: int, next_carry: int, next_generation: int) -> LinearizedRow:
    """The row of one of the chains."""
    return lay_out("r", pick(CHAINS, ((carry * 2 + generation - 1) * 3 + next_carry) * 2 + next_generation - 1))


@rule("4", "LINEAGE-2", SHORT_CALLS, (1, 2, 0, 1))
def link_spans_tile_the_row(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """Link spans are the calls' carry and generation lengths, and add up to the row.

    pre: 0 <= carry <= 2
    pre: 1 <= generation <= 2
    pre: 0 <= next_carry <= 2
    pre: 1 <= next_generation <= 2
    post: _
    """
    row = laid_out(carry, generation, next_carry, next_generation)
    spans = [(span.carry_len, span.generation_len) for span in row.link_spans]
    return spans == [(carry, generation), (next_carry, next_generation)] and (
        sum(map(sum, spans)) == len(row.token_ids) == len(row.token_mask) == len(row.logprobs)
    )


@rule("4", ("LINEAGE-1", "LINEAGE-2"), SHORT_CALLS, (1, 2, 0, 1))
def version_spans_tile_the_row(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """Weight-version spans begin at 0, follow on each other, and end with the row; tokens keep their order.

    pre: 0 <= carry <= 2
    pre: 1 <= generation <= 2
    pre: 0 <= next_carry <= 2
    pre: 1 <= next_generation <= 2
    post: _
    """
    row = laid_out(carry, generation, next_carry, next_generation)
    first, second = row.weight_version_spans
    return (
        (first.start, first.end, second.start) == (0, carry + generation, first.end)
        and second.end == len(row.token_ids)
        and row.token_ids == tuple(range(second.end))
    )


@rule("4", "LINEAGE-4", SHORT_CALLS, (1, 2, 0, 1))
def the_prompt_is_the_roots_carry(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """The prompt of a row is the root's carry, whatever later calls carry.

    pre: 0 <= carry <= 2
    pre: 1 <= generation <= 2
    pre: 0 <= next_carry <= 2
    pre: 1 <= next_generation <= 2
    post: _
    """
    return laid_out(carry, generation, next_carry, next_generation).prompt_len == carry


@rule("4", "LINEAGE-3", "lengths below 6", (3, 3))
def a_child_starts_where_its_parent_ends(cum_len: int, prev_len: int) -> bool:
    """A child is accepted iff it starts at the number of tokens that its parent ended with.

    pre: 1 <= cum_len < 6
    pre: 1 <= prev_len < 6
    post: _
    """
    records = {"a": call_record("a", None, cum_len=cum_len), "b": call_record("b", "a", prev_len=prev_len)}
    return accepted(check_graph, records) == (cum_len == prev_len)


def parents_of(*parents: int) -> dict[str, str | None]:
    """Calls a, b, c with their parents: 0 for none, 4 for one that is not in the manifest."""
    return {call: pick((None, *"abcd"), parent) for call, parent in zip("abc", parents, strict=True)}


@rule("4", ("LINEAGE-3", "LINEAGE-5"), "all manifests of 3 calls, one parent outside included", (2, 1, 0))
def a_cycle_is_a_walk_that_never_ends(first: int, second: int, third: int) -> bool:
    """A call reaches a cycle iff its parents can be followed for more steps than there are calls.

    pre: 0 <= first <= 3
    pre: 0 <= second <= 3
    pre: 0 <= third <= 4
    post: _
    """
    parents = parents_of(first, second, third)
    cyclic = set()
    for call in parents:
        current: str | None = call
        for _ in range(len(parents)):
            current = parents.get(current) if current is not None else None
        if current in parents:
            cyclic.add(call)
    records = {call: call_record(call, parent) for call, parent in parents.items()}
    return calls_that_reach_a_cycle(records) == cyclic


@rule("4", "LINEAGE-1", "all manifests of 3 calls, each after its parent, and each of them the terminal", (1, 2, 2))
def a_chain_runs_from_root_to_terminal(second: int, third: int, terminal: int) -> bool:
    """The terminal chain begins with a root, follows parent links, ends with the terminal and has nothing else.

    pre: 0 <= second <= 1
    pre: 0 <= third <= 2
    pre: 0 <= terminal <= 2
    post: _
    """
    records = {call: call_record(call, parent) for call, parent in parents_of(0, second, third).items()}
    last = pick("abc", terminal)
    chain = terminal_chain(Receipt("r", tuple(records.values()), last), records)
    links = [call.parent_call_id for call in chain]
    return links == [None, *(call.model_call_id for call in chain[:-1])] and chain[-1] is records[last]
