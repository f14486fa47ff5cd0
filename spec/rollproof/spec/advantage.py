"""Advantages: what the rewards of a batch say about each of its rows, in any framework (section 14).

Every trainer compares the rollouts of a prompt group with each other. How is its own choice: leave one out, center,
divide by a standard deviation. This chapter asks for no formula, only for what all of them share: who takes part in a
comparison, and how often. The function below is one estimator that has it all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rollproof.spec.portable import ScoredRow
from rollproof.spec.tensor import to_float32
from rollproof.spec.values import fault

Votes: TypeAlias = Mapping[str, Mapping[str, float]]
"""The rewards that make up each group's baseline, by rollout."""


def advantages(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
    """Return one number per row: its reward minus the mean of its group's votes, 0.0 for a row that trains nothing.

    Raises ``ValueError`` for a reward whose float32 is not finite, and for a row that is not well-formed.
    """
    for index, row in enumerate(batch):
        check_row(row, f"batch[{index}]")
    baselines = {group: baseline(list(cast.values())) for group, cast in votes(batch).items()}
    return tuple(row.reward - baselines[row.group] if row.trained else 0.0 for row in batch)


def check_row(row: ScoredRow, where: str) -> None:
    """Raise ``ValueError`` for a row that has no place in a batch."""
    for name, value in (("group", row.group), ("rollout", row.rollout)):
        if type(value) is not str:
            raise ValueError(fault(f"{where}.{name}", value, "a string"))
    if type(row.trained) is not bool:
        raise ValueError(fault(f"{where}.trained", row.trained, "True or False"))
    if type(row.reward) not in (int, float) or not math.isfinite(to_float32(row.reward)):
        raise ValueError(fault(f"{where}.reward", row.reward, "a finite float32"))


def votes(batch: Sequence[ScoredRow]) -> Votes:
    """Return the votes of each group: one per rollout, iff one of its rows trains."""
    cast: dict[str, dict[str, float]] = {}
    for row in batch:
        if row.trained:
            cast.setdefault(row.group, {})[row.rollout] = row.reward
    return cast


def baseline(rewards: Sequence[float]) -> float:
    """Return the mean of some rewards, whatever their order."""
    return math.fsum(rewards) / len(rewards)
