"""Right estimators of advantages that differ: what each promises is held, what it declares is let pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev, stdev
from typing import Final

from rollproof.properties.adapters.protocol import Refusal
from rollproof.properties.right.portable import PortableRight
from rollproof.spec.judge.area import Area
from rollproof.spec.judge.portable import Advantages
from rollproof.spec.portable import Policy, ScoredRow

EPSILON: Final = 1e-6

Values = Callable[[Sequence[ScoredRow]], tuple[float, ...]]
"""From a batch to one number per row."""

Estimate = Callable[[ScoredRow, dict[str, float]], float]
"""From a row and the votes of its group, by rollout, to the row's value."""


def votes_of(batch: Sequence[ScoredRow], group: str, *, masked: bool) -> dict[str, float]:
    """Return the votes of one group: those of rollouts that train, or of all."""
    return {row.rollout: row.reward for row in batch if row.group == group and (row.trained or masked)}


def estimated(estimate: Estimate, *, masked: bool = False) -> Values:
    """Return an estimator that looks at one row after the other."""

    def values(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
        if not all(math.isfinite(row.reward) for row in batch):
            raise Refusal("reward: expected a finite number")
        found = ((row, votes_of(batch, row.group, masked=masked)) for row in batch)
        return tuple(estimate(row, votes) if row.rollout in votes else 0.0 for row, votes in found)

    return values


def leave_one_out(row: ScoredRow, votes: dict[str, float]) -> float:
    """Compare with the others alone; a rollout without others has nothing to learn."""
    others = [reward for name, reward in votes.items() if name != row.rollout]
    return row.reward - fmean(others) if others else 0.0


def raw_alone(row: ScoredRow, votes: dict[str, float]) -> float:
    """Compare with the others alone; a rollout without others is compared with 0."""
    return leave_one_out(row, votes) if len(votes) > 1 else row.reward


def by_deviation(row: ScoredRow, votes: dict[str, float]) -> float:
    """Divide by the standard deviation of the population."""
    return (row.reward - fmean(votes.values())) / (pstdev(votes.values()) + EPSILON)


def by_sample_deviation(row: ScoredRow, votes: dict[str, float]) -> float:
    """Divide by the standard deviation of the sample, which one vote has not."""
    deviation = stdev(votes.values()) if len(votes) > 1 else 0.0
    return (row.reward - fmean(votes.values())) / (deviation + EPSILON)


def centered(row: ScoredRow, votes: dict[str, float]) -> float:
    """Subtract the mean."""
    return row.reward - fmean(votes.values())


def reward_itself(row: ScoredRow, _: dict[str, float]) -> float:
    """Take the reward for the value."""
    return row.reward


def above_the_mean(row: ScoredRow, votes: dict[str, float]) -> float:
    """Return the sign of the difference to the mean."""
    difference = centered(row, votes)
    return 0.0 if abs(difference) < EPSILON else math.copysign(1.0, difference)


def refusing_the_lonely(row: ScoredRow, votes: dict[str, float]) -> float:
    """Refuse a batch with a rollout that has nobody to be compared with."""
    if len(votes) == 1:
        raise Refusal(f"group {row.group}: one rollout")
    return centered(row, votes)


def shared_by_rows(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
    """Divide a rollout's value among its rows."""
    rows = [row.rollout for row in batch]
    return tuple(value / rows.count(row.rollout) for row, value in zip(batch, estimated(centered)(batch), strict=True))


def counted_by_rows(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
    """Subtract the mean over the rows that train."""
    estimated(centered)(batch)
    means = {
        row.group: fmean(one.reward for one in batch if one.trained and one.group == row.group)
        for row in batch
        if row.trained
    }
    return tuple(row.reward - means[row.group] if row.trained else 0.0 for row in batch)


def scattered(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
    """Compute all groups at once in float32: one row of a matrix per group, sums by scattering."""
    import torch

    estimated(centered)(batch)
    groups = {name: at for at, name in enumerate(dict.fromkeys(row.group for row in batch))}
    if not groups:
        return ()
    votes = list({row.rollout: row for row in batch if row.trained}.values())
    index = torch.tensor([groups[row.group] for row in votes], dtype=torch.long)
    rewards = torch.tensor([row.reward for row in votes], dtype=torch.float32)
    zeros = torch.zeros(len(groups))
    counts = zeros.scatter_add(0, index, torch.ones_like(rewards)).clamp(min=1)
    means = zeros.scatter_add(0, index, rewards) / counts
    squares = zeros.scatter_add(0, index, (rewards - means[index]) ** 2) / counts
    all_groups = torch.tensor([groups[row.group] for row in batch])
    all_rewards = torch.tensor([row.reward for row in batch], dtype=torch.float32)
    values = (all_rewards - means[all_groups]) / (squares[all_groups].sqrt() + EPSILON)
    return tuple(torch.where(torch.tensor([row.trained for row in batch]), values, 0.0).tolist())


def of_both(values: Values) -> Callable[..., Advantages]:
    """Return a function of two batches."""
    return lambda first, second: Advantages(values(first), values(second))


def right(name: str, sentence: str, values: Values, *policies: Policy) -> PortableRight:
    """Return a right estimator: its values for one batch, and what it declares."""
    return PortableRight(name, sentence, Area.ADVANTAGE, of_both(values), frozenset(policies))


ESTIMATORS: Final = (
    right("leave-one-out", "Each rollout is compared with the others.", estimated(leave_one_out)),
    right("by-deviation", "Differences are in population standard deviations.", estimated(by_deviation)),
    right("by-sample-deviation", "Differences are in sample standard deviations.", estimated(by_sample_deviation)),
    right("scattered", "All groups at once, in float32.", scattered),
    right("shared-by-rows", "A rollout's value is divided among its rows.", shared_by_rows),
    right("refuses-the-lonely", "A group of one is refused.", estimated(refusing_the_lonely)),
    right(
        "raw-alone",
        "A group's only rollout keeps its reward.",
        estimated(raw_alone),
        Policy.SINGLETON_RAW,
    ),
    right("raw", "There is no baseline.", estimated(reward_itself), Policy.UNCENTERED),
    right("sign", "Better or worse than the mean.", estimated(above_the_mean), Policy.COARSE),
    right(
        "masked-rollouts-vote",
        "Rollouts that train nothing have a vote.",
        estimated(centered, masked=True),
        Policy.MASKED_VOTE,
    ),
    right("rows-have-votes", "Each row that trains has a vote.", counted_by_rows, Policy.ROWS_VOTE),
)
"""All of them; besides, the spec subtracts the mean."""
