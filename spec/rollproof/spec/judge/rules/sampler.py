"""Invariants of the sampler columns (section 12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rollproof.spec.constants import TOPK_COLUMNS
from rollproof.spec.judge.invariant import Case, Invariant, Rule, difference, invariant
from rollproof.spec.judge.requests import Area, FinalizeGroups, FinalizeRollout
from rollproof.spec.judge.rules.group import StepCase, each_step, groups_complaint
from rollproof.spec.judge.rules.rollout import rollout_complaint
from rollproof.spec.plane import Get, PublishedRow
from rollproof.spec.tensor import Tensor

NAMES: Final = tuple(TOPK_COLUMNS)


def sampler_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of sampler columns."""
    return invariant(id, Area.SAMPLER, "12", sentence, requests)


def per_token(column: Tensor) -> list[tuple[Any, ...]]:
    """Return the candidates of each token."""
    width, values = column.shape[1], column.values()
    return [values[start : start + width] for start in range(0, len(values), width)] if width else []


def staged_candidates(case: StepCase, index: int, name: str) -> list[tuple[Any, ...]]:
    """Return the candidates that the calls of a rollout's chain staged, root first, read off the receipt's links."""
    receipt = case.step.request.receipts[index]
    manifest = {row["model_call_id"]: row for row in receipt["manifest"]}
    found: list[tuple[Any, ...]] = []
    current = receipt["terminal_model_call_id"]
    while current is not None:
        column = case.request.staging.rows[manifest[current]["staging_key"]][name]
        found = per_token(Tensor(column.dtype, column.shape[1:], column.data)) + found
        current = manifest[current].get("parent_call_id")
    return found


def valid_rows(case: StepCase) -> list[tuple[int, PublishedRow]]:
    """Return the published rows that both sides take for valid, with their places."""
    rollouts = zip(case.contract.rollouts, case.answer.rows or (), strict=False)
    return [(index, row) for index, (rollout, row) in enumerate(rollouts) if rollout.valid]


@sampler_rule(
    "SAMPLER-1", "A generated token has the candidates that its own call staged for it, in order.", FinalizeGroups
)
@each_step
def own_candidates(case: StepCase) -> str | None:
    """Checked on the staged rows along the receipt's links: none from a dead branch, none shifted by the carry."""
    for index, row in valid_rows(case) if case.request.config.top_logprobs else ():
        for name in NAMES:
            if name not in row.columns:
                return f"row {index}: {name} is missing"
            published = per_token(row.columns[name])
            marks = row.columns["token_mask"].values()
            found = [one for one, mark in zip(published, marks, strict=True) if mark == 1.0]
            wanted = staged_candidates(case, index, name)
            if (complaint := difference(wanted, found, f"row {index}: {name} of generated tokens")) is not None:
                return complaint
    return None


@sampler_rule("SAMPLER-2", "Every token that was not sampled has zeros, placeholder rows included.", FinalizeGroups)
@each_step
def zeros_elsewhere(case: StepCase) -> str | None:
    """Anything else would be candidates of another token."""
    for index, row in enumerate(case.answer.rows or ()):
        for name in NAMES:
            if name not in row.columns:
                continue
            marks = row.columns["token_mask"].values()
            for position, (one, mark) in enumerate(zip(per_token(row.columns[name]), marks, strict=True)):
                if mark == 0.0 and any(one):
                    return f"row {index}, token {position}: {name} {one}, expected zeros"
    return None


@sampler_rule(
    "SAMPLER-3",
    "Sampler columns are int32 and float32 of k candidates per token, where they are wanted.",
    FinalizeGroups,
)
@each_step
def column_types(case: StepCase) -> str | None:
    """Where they are not, there are none."""
    width = case.request.config.top_logprobs
    for row in case.answer.rows or ():
        for name, dtype in TOPK_COLUMNS.items():
            column = row.columns.get(name)
            if (column is None) == bool(width):
                return f"{name} is {'missing' if column is None else 'there'}"
            if column is not None and (column.dtype, column.shape) != (dtype, (row.columns["input_ids"].count, width)):
                return f"{name} is {column.dtype}{list(column.shape)}"
    return None


@sampler_rule("SAMPLER-4", "Sampler columns are read with the base columns, where they are wanted.", FinalizeRollout)
def read_with_base(case: Case[FinalizeRollout]) -> str | None:
    """No further read, and none where nobody wants them."""
    value = getattr(case.answer, "value", None)
    wanted = case.request.config.top_logprobs > 0
    for effect in getattr(value, "effects", ()):
        asked = [name for name in NAMES if isinstance(effect, Get) and name in effect.columns]
        if asked and (not wanted or "token_ids_delta" not in effect.columns):
            return f"read {asked} {'on their own' if wanted else 'although nobody wants them'}"
    return None


@sampler_rule(
    "SAMPLER-5", "A rollout with sampler columns is accepted or rejected as section 12 says.", FinalizeRollout
)
def rollouts_agree(case: Case[FinalizeRollout]) -> str | None:
    """In every field, and the first violated rule, after media and before routes (decision D30)."""
    return rollout_complaint(case)


@sampler_rule("SAMPLER-6", "Candidates that do not descend, or disagree with the row, are counted.", FinalizeGroups)
@each_step
def counted(case: StepCase) -> str | None:
    """Neither rejects: engines differ in what they sort by, and in the temperature of their log-probabilities."""
    if case.contract.group is None or case.answer.group is None:
        return None
    for name in ("advisory/topk_unordered", "advisory/topk_disagreement"):
        wanted, found = case.contract.group.metrics.get(name), case.answer.group.metrics.get(name)
        if wanted != found:
            return f"{name}: {found}, expected {wanted}"
    return None


@sampler_rule(
    "SAMPLER-7",
    "A group with sampler columns has the contract's effects, rows and result in every field.",
    FinalizeGroups,
)
def groups_agree(case: Case[FinalizeGroups]) -> str | None:
    """Everything that no narrower invariant covers."""
    return groups_complaint(case)
