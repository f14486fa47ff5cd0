"""Invariants of advantages (section 14): what any estimator of them holds, and what one holds unless it says otherwise.

Each compares two batches that one request asks about. What relates them is read off the batches themselves, so that a
request says nothing about what it was drawn for. Rows that train nothing are not compared: their value trains nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from attrs import evolve

from rollproof.spec.judge.invariant import Case, describe, invariant
from rollproof.spec.judge.portable import AdvantageRequest, Advantages
from rollproof.spec.judge.requests import Accepted, Area, Crashed
from rollproof.spec.portable import Policy, ScoredRow

SLACK: Final = 0.01
"""How far two values may be apart and still count as equal: sums in float32 depend on their order."""
RELATIVE_SLACK: Final = 0.001
"""The same, of large values."""
RESOLUTION: Final = 0.0001
"""Rewards that differ by less than this part of them may count as one."""

Batch: TypeAlias = tuple[ScoredRow, ...]
Key: TypeAlias = tuple[str, int]
"""A row of a batch: its rollout, and its number there."""
Values: TypeAlias = dict[Key, float]


# ── reading a case ──────────────────────────────────────────────────────────────────────────────────────────────────


def key_of(row: ScoredRow) -> Key:
    """Return what names a row in its batch, in any order."""
    return row.rollout, row.row


def values_of(case: Case[AdvantageRequest]) -> tuple[Values, Values] | None:
    """Return the values of both batches by row; None where there are none, or not one finite number per row."""
    if not isinstance(case.answer, Accepted) or malformed(case.request, case.answer.value) is not None:
        return None
    found: Advantages = case.answer.value
    return by_row(case.request.first, found.first), by_row(case.request.second, found.second)


def by_row(batch: Batch, values: Sequence[float]) -> Values:
    """Return the values of one batch by row."""
    return {key_of(row): value for row, value in zip(batch, values, strict=True)}


def malformed(request: AdvantageRequest, found: Advantages) -> str | None:
    """Return what is wrong with the form of an answer, or None."""
    for name, batch, values in (("first", request.first, found.first), ("second", request.second, found.second)):
        if len(values) != len(batch):
            return f"{name}: {len(values)} values, expected {len(batch)}, one per row"
        for row, value in zip(batch, values, strict=True):
            if type(value) not in (int, float) or not math.isfinite(value):
                return f"{name}: {value!r} for {named(row)}, expected a finite number"
    return None


def declares(case: Case[AdvantageRequest], policy: Policy) -> bool:
    """Return whether the implementation that gave an answer declares a policy."""
    return isinstance(case.answer, Accepted) and policy in case.answer.policies


def named(row: ScoredRow) -> str:
    """Return how a complaint names a row."""
    return f"row {row.row} of {row.rollout} in {row.group}"


def same(left: float, right: float) -> bool:
    """Return whether two values are equal but for the rounding of float32."""
    return abs(left - right) <= SLACK + RELATIVE_SLACK * max(abs(left), abs(right))


def moved(rows: Iterable[ScoredRow], found: tuple[Values, Values]) -> Iterator[tuple[ScoredRow, float, float]]:
    """Yield the rows that train and whose values differ between the batches."""
    first, second = found
    for row in rows:
        left, right = first[key_of(row)], second[key_of(row)]
        if row.trained and not same(left, right):
            yield row, left, right


def complaint(moves: Iterator[tuple[ScoredRow, float, float]], why: str) -> str | None:
    """Return a complaint about the first row that moved, or None."""
    for row, left, right in moves:
        return f"{named(row)}: {left:.6g} and {right:.6g}, though {why}"
    return None


def by(batch: Batch, name: str) -> dict[str, list[ScoredRow]]:
    """Return the rows of a batch by group, or by rollout."""
    found: defaultdict[str, list[ScoredRow]] = defaultdict(list)
    for row in batch:
        found[getattr(row, name)].append(row)
    return found


def without_rewards(batch: Batch) -> list[ScoredRow]:
    """Return a batch with all rewards the same: what a relation of rewards alone leaves as it is."""
    return [evolve(row, reward=0.0) for row in batch]


def masked_rollouts(batch: Batch) -> set[str]:
    """Return the rollouts of which no row trains anything."""
    return {rollout for rollout, rows in by(batch, "rollout").items() if not any(row.trained for row in rows)}


# ── the invariants ──────────────────────────────────────────────────────────────────────────────────────────────────


@invariant(
    "ADV-1",
    Area.ADVANTAGE,
    "14",
    "A row's value does not depend on another prompt's rewards, even where two groups have equal prompt tokens.",
    (AdvantageRequest,),
    of_values=True,
)
def own_group(case: Case[AdvantageRequest]) -> str | None:
    """Groups that are cut by position share a baseline as soon as one rollout is absent (AReaL 1419)."""
    found = values_of(case)
    if found is None:
        return None
    first, second = (by(batch, "group") for batch in (case.request.first, case.request.second))
    kept = [row for group, rows in first.items() if rows == second.get(group) for row in rows]
    return complaint(moved(kept, found), "its group is the same")


@invariant(
    "ADV-2",
    Area.ADVANTAGE,
    "14",
    "The batch in another order gives the same values.",
    (AdvantageRequest,),
    of_values=True,
)
def any_order(case: Case[AdvantageRequest]) -> str | None:
    """Batches are sorted by length, sharded and shuffled before anyone looks at their groups."""
    first, second = case.request.first, case.request.second
    found = values_of(case)
    if found is None or first == second or Counter(first) != Counter(second):
        return None
    return complaint(moved(first, found), "only the order of the rows differs")


@invariant(
    "ADV-3",
    Area.ADVANTAGE,
    "14",
    "The reward of a row that trains nothing moves no other row's value, unless masked-vote is declared.",
    (AdvantageRequest,),
    of_values=True,
)
def masked_rewards(case: Case[AdvantageRequest]) -> str | None:
    """A placeholder's reward says nothing about the policy; in the baseline it moves all of its siblings (D33)."""
    first, second = case.request.first, case.request.second
    found = values_of(case)
    if found is None or declares(case, Policy.MASKED_VOTE) or without_rewards(first) != without_rewards(second):
        return None
    masked = masked_rollouts(first)
    if any(
        left.reward != right.reward and left.rollout not in masked for left, right in zip(first, second, strict=True)
    ):
        return None
    return complaint(moved(first, found), "only rewards of rows that train nothing differ")


@invariant(
    "ADV-4",
    Area.ADVANTAGE,
    "14",
    "A constant added to all rewards of a prompt changes nothing, unless uncentered is declared; with singleton-raw, "
    "a prompt's only rollout has its own reward.",
    (AdvantageRequest,),
    of_values=True,
)
def shifted_rewards(case: Case[AdvantageRequest]) -> str | None:
    """A baseline that is not one: what all rollouts of a prompt share is no reason to train any of them."""
    first, second = case.request.first, case.request.second
    found = values_of(case)
    if found is None or declares(case, Policy.UNCENTERED) or without_rewards(first) != without_rewards(second):
        return None
    if not all(
        shifted(rows, other)
        for rows, other in zip(by(first, "group").values(), by(second, "group").values(), strict=True)
    ):
        return None
    rewards = {key_of(row): row.reward for row in second}
    moves = (
        (row, left, right)
        for row, left, right in moved(first, found)
        if not (
            declares(case, Policy.SINGLETON_RAW)
            and alone(row, case)
            and same(left, row.reward)
            and same(right, rewards[key_of(row)])
        )
    )
    return complaint(moves, "a constant was added to all rewards of its prompt")


def shifted(rows: Sequence[ScoredRow], others: Sequence[ScoredRow]) -> bool:
    """Return whether the rewards of a group differ from those of another by one constant."""
    by_how_much = [other.reward - row.reward for row, other in zip(rows, others, strict=True)]
    return max(by_how_much) - min(by_how_much) <= RESOLUTION


def alone(row: ScoredRow, case: Case[AdvantageRequest]) -> bool:
    """Return whether no other rollout of a row's group has a vote."""
    others = (one for one in case.request.first if one.group == row.group and one.rollout != row.rollout)
    return not any(one.trained or declares(case, Policy.MASKED_VOTE) for one in others)


@invariant(
    "ADV-5",
    Area.ADVANTAGE,
    "14",
    "A rollout counts once, whether it became one row or several, unless rows-vote is declared.",
    (AdvantageRequest,),
    of_values=True,
)
def one_vote(case: Case[AdvantageRequest]) -> str | None:
    """Counted per row, a rollout that compacted its context five times outvotes its siblings (D33)."""
    found = values_of(case)
    if found is None or declares(case, Policy.ROWS_VOTE):
        return None
    first, second = (by(batch, "rollout") for batch in (case.request.first, case.request.second))
    if first.keys() != second.keys() or any(ballot(first[name]) != ballot(second[name]) for name in first):
        return None
    kept = [row for name, rows in first.items() if rows == second[name] for row in rows]
    return complaint(moved(kept, found), "each rollout has the same reward, in more rows or fewer")


def ballot(rows: Sequence[ScoredRow]) -> tuple[object, ...]:
    """Return what a rollout votes with: its group, its rewards, and whether it trains anything."""
    return rows[0].group, rows[0].prompt_ids, {row.reward for row in rows}, any(row.trained for row in rows)


@invariant(
    "ADV-6",
    Area.ADVANTAGE,
    "14",
    "Each row has one finite value, also in a group of one and with equal rewards; a reward that is not finite is "
    "refused, and no batch crashes.",
    (AdvantageRequest,),
)
def finite_values(case: Case[AdvantageRequest]) -> str | None:
    """One NaN in a batch makes every weight of the model NaN."""
    if isinstance(case.answer, Crashed):
        return f"it {describe(case.answer)}"
    if not isinstance(case.answer, Accepted):
        return None
    rows = (*case.request.first, *case.request.second)
    unusable = [row for row in rows if row.trained and not math.isfinite(row.reward)]
    if unusable:
        return f"accepted the reward {unusable[0].reward!r} of {named(unusable[0])}, expected a refusal"
    return malformed(case.request, case.answer.value)


@invariant(
    "ADV-7",
    Area.ADVANTAGE,
    "14",
    "Of two rewards in a group the higher one gives the higher value, unless coarse is declared.",
    (AdvantageRequest,),
    of_values=True,
)
def resolved_rewards(case: Case[AdvantageRequest]) -> str | None:
    """Rewards summed in float16 collapse; a sign that is turned trains what was worse."""
    found = values_of(case)
    if found is None or declares(case, Policy.COARSE):
        return None
    for batch, values in ((case.request.first, found[0]), (case.request.second, found[1])):
        rows = by(batch, "rollout")
        for left, right in combinations([row for row in batch if row.trained], 2):
            # A rollout's value may be divided among its rows.
            if left.group != right.group or shape(rows[left.rollout]) != shape(rows[right.rollout]):
                continue
            low, high = sorted((left, right), key=lambda row: row.reward)
            gap = high.reward - low.reward
            if gap > RESOLUTION * max(1.0, abs(low.reward), abs(high.reward)):
                below, above = values[key_of(low)], values[key_of(high)]
                if not below < above:
                    return (
                        f"{named(low)} has {below:.6g} for {low.reward!r}, "
                        f"{named(high)} has {above:.6g} for {high.reward!r}: expected a higher value"
                    )
    return None


def shape(rows: Sequence[ScoredRow]) -> tuple[int, int]:
    """Return how many rows a rollout has, and how many of them train."""
    return len(rows), sum(row.trained for row in rows)
