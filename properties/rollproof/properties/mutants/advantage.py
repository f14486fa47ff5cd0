"""Mutants of advantages (section 14)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.portable import ScoredRow
from rollproof.spec.tensor import to_float32

EPSILON: Final = 1e-5
"""What is added to a standard deviation before something is divided by it."""


def regrouped(name: Callable[[int, ScoredRow], str]) -> Any:
    """Let rows belong to groups of other names."""

    def replacement(advantages: Any) -> Any:
        return lambda batch: advantages([evolve(row, group=name(at, row)) for at, row in enumerate(batch)])

    return replacement


def ungrouped_prompts(advantages: Any) -> Any:
    """Normalize by position in groups of two, of which the last is what is left: a mean of others, and no deviation."""

    def wrong(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
        advantages(batch)
        found: list[float] = []
        for start in range(0, len(batch), 2):
            chunk = [row.reward for row in batch[start : start + 2]]
            for at, reward in enumerate(chunk):
                others = chunk[:at] + chunk[at + 1 :]
                found.append((reward - (fmean(others) if others else 0.0)) / (pstdev(chunk) + EPSILON))
        return tuple(found)

    return wrong


def every_rollout(_: Any) -> Any:
    """All rows vote, also of rollouts that train nothing."""

    def wrong(batch: Sequence[ScoredRow]) -> Any:
        cast: dict[str, dict[str, float]] = {}
        for row in batch:
            cast.setdefault(row.group, {})[row.rollout] = row.reward
        return cast

    return wrong


def by_first_row(_: Any) -> Any:
    """A rollout votes if its first row trains; of others that train, a sibling's vote is not missed."""

    def wrong(batch: Sequence[ScoredRow]) -> Any:
        cast: dict[str, dict[str, float]] = {row.group: {} for row in batch}
        for row in batch:
            if row.trained and row.row == 0:
                cast[row.group][row.rollout] = row.reward
        return {group: votes or {"": 0.0} for group, votes in cast.items()}

    return wrong


def votes_by(key: Callable[[ScoredRow], Any]) -> Any:
    """Let rows of one key vote together."""

    def replacement(_: Any) -> Any:
        def wrong(batch: Sequence[ScoredRow]) -> Any:
            cast: dict[str, dict[Any, float]] = {}
            for row in batch:
                if row.trained:
                    cast.setdefault(row.group, {})[key(row)] = row.reward
            return cast

        return wrong

    return replacement


def group_size(_: Any) -> Any:
    """Divide the votes' sum by the size that a group should have, also where a rollout is absent."""
    return lambda rewards: math.fsum(rewards) / 4


def first_reward(_: Any) -> Any:
    """The reward of the group's first rollout is its baseline."""
    return lambda rewards: rewards[0]


def last_two(_: Any) -> Any:
    """A running mean: later rewards weigh more."""

    def wrong(rewards: Sequence[float]) -> float:
        mean = rewards[0]
        for reward in rewards[1:]:
            mean = (mean + reward) / 2
        return mean

    return wrong


def each_group(value: Callable[[float, Sequence[float]], float]) -> Any:
    """Compute each trained row's value from its reward and the votes of its group."""

    def replacement(advantages: Any) -> Any:
        def wrong(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
            advantages(batch)
            cast: dict[str, dict[str, float]] = {}
            for row in batch:
                if row.trained:
                    cast.setdefault(row.group, {})[row.rollout] = row.reward
            return tuple(value(row.reward, list(cast[row.group].values())) if row.trained else 0.0 for row in batch)

        return wrong

    return replacement


def by_deviation(reward: float, votes: Sequence[float]) -> float:
    """Divide by a standard deviation that may be 0, as an array does."""
    deviation, centered = pstdev(votes), reward - fmean(votes)
    if deviation:
        return centered / deviation
    return math.copysign(math.inf, centered) if centered else math.nan


def by_sample_deviation(reward: float, votes: Sequence[float]) -> float:
    """Divide by n - 1, also where n is 1."""
    mean = fmean(votes)
    return (reward - mean) / (math.sqrt(sum((vote - mean) ** 2 for vote in votes) / (len(votes) - 1)) + EPSILON)


def half_precision(reward: float, votes: Sequence[float]) -> float:
    """Sum in float16."""
    total = 0.0
    for vote in votes:
        total = to_float16(total + to_float16(vote))
    return to_float16(to_float16(reward) - to_float16(total / len(votes)))


def to_float16(value: float) -> float:
    """Return a number as float16 holds it."""
    return float(struct.unpack("<e", struct.pack("<e", value))[0])


def residue(reward: float, votes: Sequence[float]) -> float:
    """Divide by the deviation of the others, computed in float32 as the difference of two squares."""
    others = [to_float32(vote) for vote in votes]
    others.remove(to_float32(reward))
    if not others:
        return 0.0
    mean = float32_mean(others)
    variance = to_float32(float32_mean([to_float32(other**2) for other in others]) - to_float32(mean**2))
    return (reward - mean) / math.sqrt(variance) if variance > 0 else reward - mean


def float32_mean(values: Sequence[float]) -> float:
    """Return a mean as one loop in float32 computes it."""
    total = 0.0
    for value in values:
        total = to_float32(total + value)
    return to_float32(total / len(values))


def raw_alone(reward: float, votes: Sequence[float]) -> float:
    """Leave the only rollout of a group as it is."""
    return reward - fmean(votes) if len(votes) > 1 else reward


def rank(reward: float, votes: Sequence[float]) -> float:
    """Tell what is above the mean from what is not."""
    return 1.0 if reward > fmean(votes) else -1.0


def share(reward: float, votes: Sequence[float]) -> float:
    """Divide by the mean instead of subtracting it."""
    return reward / (abs(fmean(votes)) + EPSILON)


def unread(advantages: Any) -> Any:
    """Take a reward that is not finite for 0."""

    def wrong(batch: Sequence[ScoredRow]) -> Any:
        return advantages([row if math.isfinite(row.reward) else evolve(row, reward=0.0) for row in batch])

    return wrong


def only_trained(advantages: Any) -> Any:
    """Return values of the rows that train, and none for the others."""

    def wrong(batch: Sequence[ScoredRow]) -> Any:
        return tuple(value for row, value in zip(batch, advantages(batch), strict=True) if row.trained)

    return wrong


def turned(advantages: Any) -> Any:
    """Subtract the reward from its baseline."""
    return lambda batch: tuple(-value for value in advantages(batch))


def whitened(advantages: Any) -> Any:
    """Center and scale over the whole batch afterwards."""

    def wrong(batch: Sequence[ScoredRow]) -> tuple[float, ...]:
        values = advantages(batch)
        if not values:
            return ()
        return tuple((value - fmean(values)) / (pstdev(values) + EPSILON) for value in values)

    return wrong


def sorted_batch(advantages: Any) -> Any:
    """Sort the rows by their rewards, and return the values in that order."""
    return lambda batch: advantages(sorted(batch, key=lambda row: row.reward))


def replaced(value: Callable[[float, Sequence[float]], float]) -> dict[str, Any]:
    """Return the patches of another estimator."""
    return patches(judge__oracle__advantages=each_group(value))


MUTANTS: Final = (
    Mutant(
        "groups-by-position",
        "ADV-1",
        "areal-project/AReaL 1419, 1673",
        "Groups are cut by position: one absent rollout in groups of two, and a row has an advantage of 100,000.",
        patches(judge__oracle__advantages=ungrouped_prompts),
    ),
    Mutant(
        "groups-by-prompt-tokens",
        "ADV-1",
        "contract decision D39",
        "Rows with equal prompt tokens are one group, also where two groups were sampled for one prompt.",
        patches(judge__oracle__advantages=regrouped(lambda _, row: str(row.prompt_ids))),
    ),
    Mutant(
        "one-group-for-uneven-sizes",
        "ADV-1",
        "THUDM/slime 2230",
        "The whole batch is one group.",
        patches(judge__oracle__advantages=regrouped(lambda _at, _row: "g")),
    ),
    Mutant(
        "whitened-over-the-batch",
        "ADV-1",
        "axon-rl/gem 113",
        "Advantages are normalized once more, over all prompts of the batch.",
        patches(judge__oracle__advantages=whitened),
    ),
    Mutant(
        "values-in-sorted-order",
        "ADV-2",
        "contract section 14",
        "Rows were sorted on the way, and the values come back in that order.",
        patches(judge__oracle__advantages=sorted_batch),
    ),
    Mutant(
        "first-rollout-is-the-baseline",
        "ADV-2",
        "contract section 14",
        "What comes first in the batch is what its siblings are compared with.",
        patches(advantage__baseline=first_reward),
    ),
    Mutant(
        "running-baseline",
        "ADV-2",
        "contract section 14",
        "The baseline moves along with the batch, so later rollouts weigh more.",
        patches(advantage__baseline=last_two),
    ),
    Mutant(
        "masked-rollouts-vote",
        "ADV-3",
        "contract decision D33",
        "The reward of a rollout that trains nothing is in the baseline of its siblings.",
        patches(advantage__votes=every_rollout),
    ),
    Mutant(
        "divided-by-the-planned-size",
        "ADV-4",
        "contract section 14",
        "The sum of the rewards is divided by the configured group size, whoever is absent.",
        patches(advantage__baseline=group_size),
    ),
    Mutant(
        "alone-and-uncentered",
        "ADV-4",
        "contract section 14",
        "The only rollout of a group keeps its reward, and nobody has said so.",
        replaced(raw_alone),
    ),
    Mutant(
        "share-of-the-mean",
        "ADV-4",
        "contract section 14",
        "Rewards are divided by their mean, so a constant added to all of them makes them alike.",
        replaced(share),
    ),
    Mutant(
        "deviation-of-rounding",
        "ADV-4",
        "NVIDIA-NeMo/RL 4161",
        "The deviation of equal rewards is what float32 rounds away, and the value is thousands of times the reward.",
        replaced(residue),
    ),
    Mutant(
        "rows-vote",
        "ADV-5",
        "radixark/miles 2378; THUDM/slime 2062",
        "A rollout is in the baseline once for each of its rows.",
        patches(advantage__votes=votes_by(lambda row: (row.rollout, row.row))),
    ),
    Mutant(
        "equal-rewards-vote-once",
        "ADV-5",
        "contract decision D33",
        "Rollouts are told apart by their reward and their number of rows, so two that have the same vote once.",
        patches(advantage__votes=votes_by(lambda row: (row.reward, row.row))),
    ),
    Mutant(
        "votes-by-the-first-row",
        "ADV-5",
        "contract decision D33",
        "A rollout whose first row trains nothing does not vote, though its later rows train.",
        patches(advantage__votes=by_first_row),
    ),
    Mutant(
        "deviation-of-zero",
        "ADV-6",
        "contract section 14",
        "Equal rewards are divided by their standard deviation, 0.",
        replaced(by_deviation),
    ),
    Mutant(
        "sample-deviation-of-one",
        "ADV-6",
        "contract section 14",
        "The deviation of a group of one is divided by n - 1, 0.",
        replaced(by_sample_deviation),
    ),
    Mutant(
        "unusable-reward-is-zero",
        "ADV-6",
        "contract section 14",
        "A NaN reward counts as 0, which its siblings are then better or worse than.",
        patches(judge__oracle__advantages=unread),
    ),
    Mutant(
        "values-of-trained-rows",
        "ADV-6",
        "contract section 14",
        "Rows that train nothing have no value, so that all later values belong to other rows.",
        patches(judge__oracle__advantages=only_trained),
    ),
    Mutant(
        "sums-in-float16",
        "ADV-7",
        "contract section 14",
        "Rewards are summed in float16, and those of half a point more are alike.",
        replaced(half_precision),
    ),
    Mutant(
        "better-than-the-mean",
        "ADV-7",
        "contract section 14",
        "Whatever is above the mean has one value.",
        replaced(rank),
    ),
    Mutant(
        "turned-sign",
        "ADV-7",
        "contract section 14",
        "The reward is subtracted from the baseline.",
        patches(judge__oracle__advantages=turned),
    ),
)
