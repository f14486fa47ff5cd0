"""Linearizing: graphs, chains and the spans of a row."""

from __future__ import annotations

from itertools import product

import pytest
from attrs import evolve
from cases import every

from rollproof.properties.adapters.asking import long_chain
from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic.build import accepted, pick, staged_call
from rollproof.spec.digest import call_digest, chain_digest, prefix_digest
from rollproof.spec.lineage import calls_that_reach_a_cycle, check_graph, lay_out, linearize, terminal_chain
from rollproof.spec.records import LinearizedRow, Receipt, StagedCall
from rollproof.spec.rejections import Code, Rejected


def chain_of(*calls: tuple[int, int]) -> list[StagedCall]:
    """Return a chain of calls a, b, …, each given as (carry, generation) lengths, with ids 0, 1, … and right hashes."""
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


def laid_out(carry: int, generation: int, next_carry: int, next_generation: int) -> LinearizedRow:
    """Return the row of one of the chains."""
    return lay_out("r", pick(CHAINS, ((carry * 2 + generation - 1) * 3 + next_carry) * 2 + next_generation - 1))


@every(carry=range(3), generation=range(1, 3), next_carry=range(3), next_generation=range(1, 3))
def test_link_spans_tile_the_row(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """Link spans are the calls' carry and generation lengths, and add up to the row."""
    row = laid_out(carry, generation, next_carry, next_generation)
    spans = [(span.carry_len, span.generation_len) for span in row.link_spans]
    return spans == [(carry, generation), (next_carry, next_generation)] and (
        sum(map(sum, spans)) == len(row.token_ids) == len(row.token_mask) == len(row.logprobs)
    )


@every(carry=range(3), generation=range(1, 3), next_carry=range(3), next_generation=range(1, 3))
def test_version_spans_tile_the_row(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """Weight-version spans begin at 0, follow on each other, and end with the row; tokens keep their order."""
    row = laid_out(carry, generation, next_carry, next_generation)
    first, second = row.weight_version_spans
    return (
        (first.start, first.end, second.start) == (0, carry + generation, first.end)
        and second.end == len(row.token_ids)
        and row.token_ids == tuple(range(second.end))
    )


@every(carry=range(3), generation=range(1, 3), next_carry=range(3), next_generation=range(1, 3))
def test_the_prompt_is_the_roots_carry(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """The prompt of a row is the root's carry, whatever later calls carry."""
    return laid_out(carry, generation, next_carry, next_generation).prompt_len == carry


@every(cum_len=range(1, 6), prev_len=range(1, 6))
def test_a_child_starts_where_its_parent_ends(cum_len: int, prev_len: int) -> bool:
    """A child is accepted iff it starts at the number of tokens that its parent ended with."""
    records = {"a": bare_record("a", None, cum_len=cum_len), "b": bare_record("b", "a", prev_len=prev_len)}
    return accepted(check_graph, records) == (cum_len == prev_len)


def parents_of(*parents: int) -> dict[str, str | None]:
    """Return calls a, b, c with their parents: 0 for none, 4 for one that is not in the manifest."""
    return {call: pick((None, *"abcd"), parent) for call, parent in zip("abc", parents, strict=True)}


@every(first=range(4), second=range(4), third=range(5))
def test_a_cycle_is_a_walk_that_never_ends(first: int, second: int, third: int) -> bool:
    """A call reaches a cycle iff its parents can be followed for more steps than there are calls."""
    parents = parents_of(first, second, third)
    cyclic = set()
    for call in parents:
        current: str | None = call
        for _ in range(len(parents)):
            current = parents.get(current) if current is not None else None
        if current in parents:
            cyclic.add(call)
    records = {call: bare_record(call, parent) for call, parent in parents.items()}
    return calls_that_reach_a_cycle(records) == cyclic


@every(second=range(2), third=range(3), terminal=range(3))
def test_a_chain_runs_from_root_to_terminal(second: int, third: int, terminal: int) -> bool:
    """The terminal chain begins with a root, follows parent links, ends with the terminal and has nothing else."""
    records = {call: bare_record(call, parent) for call, parent in parents_of(0, second, third).items()}
    last = pick("abc", terminal)
    chain = terminal_chain(Receipt("r", tuple(records.values()), last), records)
    links = [call.parent_call_id for call in chain]
    return links == [None, *(call.model_call_id for call in chain[:-1])] and chain[-1] is records[last]


# ── lineage and completion ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_chain_of_many_calls_is_one_row() -> None:
    """More calls than Python has shared small integers: counts are compared by value."""
    receipt, calls = long_chain(300)
    assert len(linearize(receipt, calls).link_spans) == 300
    with pytest.raises(Rejected) as caught:
        linearize(receipt, calls[:-1])
    assert caught.value.code is Code.ROW_COUNT_MISMATCH


def test_a_carry_of_many_tokens_ends_with_its_call() -> None:
    receipt, calls = long_chain(1)
    ids, zeros = tuple(range(300)), (0.0,) * 300
    call = evolve(
        calls[0],
        delta_len=300,
        cum_len=300,
        token_ids_delta=ids,
        token_mask_delta=zeros,
        generation_log_probs_delta=zeros,
        chain_hash=chain_digest(None, ids),
    )
    call = evolve(call, digest=call_digest(call))
    shared = {name: getattr(call, name) for name in ("delta_len", "cum_len", "chain_hash", "digest")}
    receipt = evolve(receipt, manifest=(evolve(receipt.manifest[0], **shared),))
    with pytest.raises(Rejected) as caught:
        linearize(receipt, [call])
    assert caught.value.code is Code.EMPTY_GENERATION
