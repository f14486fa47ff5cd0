"""Mutants of rebuilding one rollout (sections 4 and 5)."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, Replacement
from rollproof.spec.records import LinearizedRow, Receipt


def with_dead_branches(linearize: Any) -> Any:
    """Every staged call's tokens follow, on the chain or not."""

    def wrong(receipt: Receipt, calls: Any) -> LinearizedRow:
        row: LinearizedRow = linearize(receipt, calls)
        dead = [call for call in calls if call.model_call_id not in row.model_call_ids]
        return evolve(
            row,
            token_ids=row.token_ids + tuple(token for call in dead for token in call.token_ids_delta),
            token_mask=row.token_mask + tuple(mask for call in dead for mask in call.token_mask_delta),
            logprobs=row.logprobs + tuple(value for call in dead for value in call.generation_log_probs_delta),
        )

    return wrong


def versions_of_chain(_: Any) -> Any:
    """The range is read off the terminal chain."""

    def wrong(receipt: Receipt) -> tuple[int, int]:
        by_id = {record.model_call_id: record for record in receipt.manifest}
        versions, current = [], receipt.terminal_model_call_id
        while current is not None:
            versions.append(by_id[current].weight_version)
            current = by_id[current].parent_call_id
        return min(versions), max(versions)

    return wrong


def rounded_logprobs(lay_out: Any) -> Any:
    """Log-probabilities go through text with a few decimals and come back as other float64 values."""

    def wrong(rollout_id: str, chain: Any) -> LinearizedRow:
        row: LinearizedRow = lay_out(rollout_id, chain)
        return evolve(row, logprobs=tuple(float(f"{value:.6g}") for value in row.logprobs))

    return wrong


def raise_on_nan(is_usable_reward: Any) -> Any:
    """An assertion instead of a rejection."""

    def wrong(reward: Any) -> bool:
        if isinstance(reward, float) and reward != reward:
            raise AssertionError("reward is NaN")
        return bool(is_usable_reward(reward))

    return wrong


def patches(**replacements: Replacement) -> dict[str, Replacement]:
    """Keyword arguments with "__" for the dot between module and name."""
    return {name.replace("__", "."): replacement for name, replacement in replacements.items()}


MUTANTS: Final = (
    Mutant(
        "dead-branch-tokens",
        "ROLLOUT-7",
        "contract section 4",
        "Tokens of dead branches follow the terminal chain's.",
        patches(oracle__linearize=with_dead_branches, rollout__linearize=with_dead_branches),
    ),
    Mutant(
        "min-wv-of-chain",
        "ROLLOUT-8",
        "contract section 5",
        "The weight-version range forgets dead branches.",
        patches(rollout__version_range=versions_of_chain),
    ),
    Mutant(
        "float64-logprobs",
        "ROLLOUT-10",
        "contract section 1",
        "Log-probabilities are float64 values that only round to the sampled float32.",
        patches(lineage__lay_out=rounded_logprobs),
    ),
    Mutant(
        "raises-on-nan-reward",
        "ROLLOUT-1",
        "huggingface/trl 6427, 5775; radixark/miles 2814",
        "A NaN reward raises and takes the group down.",
        patches(rollout__is_usable_reward=raise_on_nan),
    ),
)
