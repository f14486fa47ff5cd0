"""Mutants of verifying and linearizing (section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, passing, patches
from rollproof.properties.mutants.rollout import with_dead_branches
from rollproof.properties.strategies.rollouts.staged_calls import call_record
from rollproof.spec.digest import chain_digest, prefix_digest
from rollproof.spec.records import CallRecord, LinearizedRow, Receipt, StagedCall


def all_trained(lay_out: Any) -> Any:
    """Train everything after the first prompt."""

    def wrong(rollout_id: str, chain: Sequence[StagedCall]) -> LinearizedRow:
        row: LinearizedRow = lay_out(rollout_id, chain)
        trained = len(row.token_mask) - row.prompt_len
        return evolve(row, token_mask=row.token_mask[: row.prompt_len] + (1.0,) * trained)

    return wrong


def any_order(_: Any) -> Any:
    """Take the leading tokens with mask 0.0 for the carry; do not check what follows."""
    return lambda call: next((at for at, mask in enumerate(call.token_mask_delta) if mask == 1.0), call.delta_len - 1)


def chain_agrees(lay_out: Any) -> Any:
    """Do not compare chain hashes with the tokens."""

    def wrong(rollout_id: str, chain: Sequence[StagedCall]) -> Any:
        agreeing, parent = [], None
        for call in chain:
            parent = chain_digest(parent, call.token_ids_delta)
            agreeing.append(evolve(call, chain_hash=parent))
        return lay_out(rollout_id, agreeing)

    return wrong


def prefix_agrees(lay_out: Any) -> Any:
    """Do not compare the terminal's prefix hash with the row."""

    def wrong(rollout_id: str, chain: Sequence[StagedCall]) -> Any:
        ids = [token for call in chain for token in call.token_ids_delta]
        return lay_out(rollout_id, [*chain[:-1], evolve(chain[-1], cumulative_hash=prefix_digest(ids))])

    return wrong


def from_parents_end(start_of: Any) -> Any:
    """Let calls start where ``start_of(record, parent)`` says, before the graph is checked."""

    def replacement(check_graph: Any) -> Any:
        def wrong(records: Mapping[str, CallRecord]) -> None:
            moved = {}
            for call_id, record in records.items():
                parent = records.get(record.parent_call_id or "")
                start = record.prev_len if parent is None else start_of(record, parent)
                moved[call_id] = evolve(record, prev_len=start)
            check_graph(moved)

        return wrong

    return replacement


def orphans_are_roots(check_graph: Any) -> Any:
    """Take a call whose parent is missing for a root."""

    def wrong(records: Mapping[str, CallRecord]) -> None:
        check_graph(
            {
                call_id: record if record.parent_call_id in records else evolve(record, parent_call_id=None)
                for call_id, record in records.items()
            }
        )

    return wrong


def up_to_the_hole(terminal_chain: Any) -> Any:
    """Begin the chain at its first known call."""

    def wrong(receipt: Receipt, records: Mapping[str, CallRecord]) -> Any:
        known = {
            call_id: record if record.parent_call_id in records else evolve(record, parent_call_id=None)
            for call_id, record in records.items()
        }
        return terminal_chain(receipt, known)

    return wrong


def later_codes_first(check_pairs: Any) -> Any:
    """Check every call's own digest before it is compared with its manifest row."""

    def wrong(receipt: Receipt, calls: Sequence[StagedCall]) -> None:
        if len({call.model_call_id for call in calls}) == len(calls):
            own = {call.model_call_id: call for call in calls}
            check_pairs(evolve(receipt, manifest=tuple(map(listed, own.values()))), calls)
        check_pairs(receipt, calls)

    return wrong


def listed(call: StagedCall) -> CallRecord:
    """Return the manifest row that agrees with a staged call."""
    return evolve(call_record(call, "r"), staging_key="k")


def walk_for_each(_: Any) -> Any:
    """Walk to the root from every call."""

    def wrong(records: Mapping[str, CallRecord]) -> set[str]:
        cyclic = set()
        for start in records:
            seen: set[str] = set()
            current: str | None = start
            while current is not None and current in records and current not in seen:
                seen.add(current)
                current = records[current].parent_call_id
            if current in seen:
                cyclic.add(start)
        return cyclic

    return wrong


def prompt_is_all_carry(lay_out: Any) -> Any:
    """Count the carry of later calls in the prompt length."""

    def wrong(rollout_id: str, chain: Sequence[StagedCall]) -> LinearizedRow:
        row: LinearizedRow = lay_out(rollout_id, chain)
        return evolve(row, prompt_len=row.token_mask.count(0.0))

    return wrong


MUTANTS: Final = (
    Mutant(
        "linearized-with-dead-branches",
        "LINEAGE-1",
        "contract section 4",
        "The row goes on with the tokens of retries that were abandoned.",
        patches(judge__oracle__linearize=with_dead_branches),
    ),
    Mutant(
        "tool-output-trains",
        "LINEAGE-2",
        "allenai/open-instruct 1202",
        "What a tool returned between two calls is trained on.",
        patches(lineage__lay_out=all_trained),
    ),
    Mutant(
        "mask-order-unchecked",
        "LINEAGE-3",
        "mll-lab-nu/RAGEN 71",
        "An inverted mask, 1, 1, 0, 0, is taken as it comes.",
        patches(lineage__carry_length=any_order),
    ),
    Mutant(
        "uneven-columns-accepted",
        "LINEAGE-3",
        "huggingface/trl 5144",
        "Tokens were made fewer, their mask was not, and nobody compares the lengths.",
        patches(digest__check_call=passing("token columns")),
    ),
    Mutant(
        "parent-length-unchecked",
        "LINEAGE-3",
        "PrimeIntellect-ai/prime-rl 1383",
        "A call need not start where its parent ends: the tokens of earlier turns go missing.",
        patches(lineage__check_graph=from_parents_end(lambda _record, parent: parent.cum_len)),
    ),
    Mutant(
        "shorter-prefix-accepted",
        "LINEAGE-3",
        "NVIDIA-NeMo/RL 1903, 2360",
        "A call may start before its parent's end, as if it counted compact tokens and the parent expanded ones.",
        patches(lineage__check_graph=from_parents_end(lambda record, parent: max(record.prev_len, parent.cum_len))),
    ),
    Mutant(
        "orphans-are-roots",
        "LINEAGE-3",
        "NVIDIA-NeMo/Gym 2124",
        "A lost call is swallowed: its children become roots, and the hole looks complete.",
        patches(lineage__check_graph=orphans_are_roots, lineage__terminal_chain=up_to_the_hole),
    ),
    Mutant(
        "chain-hash-unchecked",
        "LINEAGE-3",
        "sgl-project/sglang 26555",
        "Tokens that were decoded and tokenized again pass for those that were sent.",
        patches(lineage__lay_out=chain_agrees),
    ),
    Mutant(
        "prefix-hash-unchecked",
        "LINEAGE-3",
        "areal-project/AReaL 647",
        "One word is two tokens in the engine and one in the row.",
        patches(lineage__lay_out=prefix_agrees),
    ),
    Mutant(
        "own-digest-first",
        "LINEAGE-3",
        "contract section 4",
        "A row that differs from its manifest and was tampered with as well is reported as tampered with.",
        patches(lineage__check_pairs=later_codes_first),
    ),
    Mutant(
        "prompt-length-counts-later-carry",
        "LINEAGE-4",
        "contract section 4",
        "The prompt is as long as all carry of the chain.",
        patches(lineage__lay_out=prompt_is_all_carry),
    ),
    Mutant(
        "walk-to-the-root-per-call",
        "LINEAGE-5",
        "contract decision D5",
        "The graph is walked to its root once per call: quadratic.",
        patches(lineage__calls_that_reach_a_cycle=walk_for_each),
    ),
)
