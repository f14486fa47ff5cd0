"""Pairs of batches for estimators of advantages: each pair is related in a way that must not show in the values.

Rewards are numbers of few bits, so that equal ones have no difference whatever their sum is rounded to; streams of
their own have large ones, and decimal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.area import Area
from rollproof.spec.judge.portable import AdvantageRequest
from rollproof.spec.portable import ScoredRow

Batch: TypeAlias = list[ScoredRow]
Change: TypeAlias = Callable[[Batch, Bytes], Batch]
"""From a batch to one that is related to it."""

EVEN: Final = (0.0, 1.0, 0.5, -1.0, 2.0, 0.25, 4.0, 0.125)
"""Sums, means and squares of these are exact in float32."""
DECIMAL: Final = (0.35, 0.1, 0.4, 0.3, 0.7, -0.2, 1.1, 0.9)
"""Float32 holds none of these exactly, so the mean of equal ones need not be equal to them."""
LARGE: Final = (1024.0, 1024.5, 1025.0, 1026.5, 1030.0, 1024.0, 1040.5, 1027.0)
"""Half a point apart, which float16 and bfloat16 cannot tell up here."""
SHIFTS: Final = (1.0, -0.5, 8.0, -2.0, 64.0)
UNUSABLE: Final = (math.nan, math.inf, -math.inf)
MOST_GROUPS: Final = 4
MOST_ROLLOUTS: Final = 5
NEEDED: Final = 160
"""Bytes that the largest pair is drawn from."""


def drawn_batch(decide: Bytes, rewards: Sequence[float], *, least_groups: int = 1) -> Batch:
    """Return a batch in the order of its groups, or dealt out in turn.

    Groups are of uneven size, some with equal prompts; rollouts have several rows, of which some train nothing.
    """
    groups = least_groups + decide.below(MOST_GROUPS + 1 - least_groups)
    shared, several, masking, dealt = (decide.chance(share) for share in (96, 96, 96, 64))
    full = 1 + decide.below(MOST_ROLLOUTS) if decide.chance(128) else 2
    batch: Batch = []
    for group in range(groups):
        prompt = (1, 2) if shared else (1, 2 + group)
        count = max(1, full - decide.below(3)) if decide.chance(96) else full
        for index in range(count):
            name, reward = f"r{group}-{index}", decide.choose(rewards)
            trained = not (masking and decide.chance(96))
            for row in range(1 + (decide.below(3) if several else 0)):
                # Part of a rollout may train nothing while the rest of it votes.
                on = trained and not (row and decide.chance(64))
                batch.append(ScoredRow(f"g{group}", name, prompt, reward, on, row))
    return sorted(batch, key=lambda row: row.rollout.partition("-")[2]) if dealt else batch


# ── how the second batch is related ─────────────────────────────────────────────────────────────────────────────────


def names_of(batch: Batch, name: str) -> list[str]:
    """Return the groups or rollouts of a batch, in the order of their first rows."""
    return list(dict.fromkeys(getattr(row, name) for row in batch))


def rewarded(batch: Batch, rewards: dict[str, float]) -> Batch:
    """Return a batch in which some rollouts have another reward."""
    return [evolve(row, reward=rewards.get(row.rollout, row.reward)) for row in batch]


def other_rewards(batch: Batch, decide: Bytes) -> Batch:
    """Give the rollouts of all groups but one other rewards."""
    kept = decide.choose(names_of(batch, "group"))
    moved = [row.rollout for row in batch if row.group != kept]
    return rewarded(batch, {name: decide.choose(EVEN) + 3.0 for name in dict.fromkeys(moved)})


def absent(batch: Batch, decide: Bytes) -> Batch:
    """Leave out one rollout, so that its group is smaller, or gone."""
    gone = decide.choose(names_of(batch, "rollout"))
    return [row for row in batch if row.rollout != gone]


def another_order(batch: Batch, decide: Bytes) -> Batch:
    """Shuffle the rows, of which some may be in their places."""
    rest, order = list(batch), []
    while rest:
        order.append(rest.pop(-1 - decide.below(len(rest))))
    return order


def masked_rewards(batch: Batch, decide: Bytes) -> Batch:
    """Give rollouts that train nothing other rewards."""
    trained = {row.rollout for row in batch if row.trained}
    masked = {row.rollout: row.reward for row in batch if row.rollout not in trained}
    return rewarded(batch, {name: reward + decide.choose(SHIFTS) for name, reward in masked.items()})


def shifted(batch: Batch, decide: Bytes) -> Batch:
    """Add a constant to the rewards of each group, of which some may be 0."""
    constants = {name: decide.choose(SHIFTS) if decide.chance(192) else 0.0 for name in names_of(batch, "group")}
    return [evolve(row, reward=row.reward + constants[row.group]) for row in batch]


def more_rows(batch: Batch, decide: Bytes) -> Batch:
    """Make some rollouts more rows; of one that trains, some may train nothing, also the first."""
    found = list(batch)
    for name in names_of(batch, "rollout"):
        if decide.chance(128):
            mine = [row for row in batch if row.rollout == name]
            trained = any(row.trained for row in mine)
            count = 1 + decide.below(3)
            for more in range(1, count + 1):
                on = trained and (more == count or not decide.chance(64))
                found.append(evolve(mine[-1], row=len(mine) - 1 + more, trained=on))
            if decide.chance(64):
                found = [evolve(row, trained=False) if row in mine else row for row in found]
    order = names_of(batch, "rollout")
    return found if decide.chance(128) else sorted(found, key=lambda row: order.index(row.rollout))


def unusable(batch: Batch, decide: Bytes) -> Batch:
    """Give one rollout a reward that is not finite."""
    return rewarded(batch, {decide.choose(names_of(batch, "rollout")): decide.choose(UNUSABLE)})


def with_differences(batch: Batch) -> Batch:
    """Give the first rollout of each group whose rewards are all equal another one.

    Whoever divides by a deviation gets a small number there, in place of 0, that only rounding decides.
    """
    first = {row.group: row.rollout for row in reversed(batch)}
    alike = {name for name in first if len({row.reward for row in batch if row.group == name}) == 1}
    return rewarded(batch, {first[name]: 0.0 for name in alike})


@st.composite
def _pairs(draw: DrawFn, change: Change, rewards: Sequence[float], least_groups: int) -> AdvantageRequest:
    decide = draw_bytes(draw, NEEDED)
    first = drawn_batch(decide, rewards, least_groups=least_groups)
    if rewards is DECIMAL:
        first = with_differences(first)
    if change is masked_rewards and all(row.trained for row in first):
        name = decide.choose(names_of(first, "rollout"))
        first = [evolve(row, trained=row.rollout != name) for row in first]
    return AdvantageRequest(tuple(first), tuple(change(first, decide)))


def pairs(
    change: Change, rewards: Sequence[float] = EVEN, *, least_groups: int = 1
) -> SearchStrategy[AdvantageRequest]:
    """Draw a batch and what ``change`` makes of it."""
    return _pairs(change, rewards, least_groups)


# ── listed pairs ────────────────────────────────────────────────────────────────────────────────────────────────────


def rows(*rollouts: tuple[str, float], trained: bool = True, prompt: tuple[int, ...] = (1,)) -> tuple[ScoredRow, ...]:
    """Return a batch of rollouts of one row, each with its group and its reward."""
    return tuple(ScoredRow(group, f"r{at}", prompt, reward, trained) for at, (group, reward) in enumerate(rollouts))


ABSENT_OF_TWO: Final = AdvantageRequest(
    rows(("g0", 1.0), ("g1", 0.0), ("g1", 1.0), ("g2", 1.0), ("g2", 0.0)),
    rows(("g0", 1.0), ("g1", 1.0), ("g1", 0.0), ("g2", 1.0), ("g2", 0.0)),
)
"""Groups of two, and a rollout of the first is absent: cut by position, every row is compared with another prompt's."""
EQUAL_PROMPTS: Final = AdvantageRequest(
    rows(("g0", 0.0), ("g0", 1.0), ("g1", 0.0), ("g1", 0.0)), rows(("g0", 0.0), ("g0", 1.0), ("g1", 1.0), ("g1", 1.0))
)
"""Two groups whose prompts have the same tokens (decision D39)."""
ALONE: Final = AdvantageRequest(rows(("g0", 0.5), ("g1", 1.0)), rows(("g0", 1.5), ("g1", 1.0)))
"""Groups of one rollout."""
ALIKE: Final = tuple(
    AdvantageRequest(rows(*[("g0", reward)] * count), rows(*[("g0", reward + 1.0)] * count))
    for reward in (0.0, 1.0, -0.5)
    for count in (2, 3, 4)
)
"""Groups in which all rewards are equal."""
ONE_OF_EIGHT: Final = tuple(
    AdvantageRequest(rows(("g0", 0.0), *[("g0", reward)] * 7), rows(("g0", 8.0), *[("g0", 8.0 + reward)] * 7))
    for reward in (0.35, 0.3, 0.6, 0.7)
)
"""One rollout fails, and seven have the same reward, which float32 does not hold exactly."""
HALF_A_POINT: Final = AdvantageRequest(
    rows(("g0", 1024.0), ("g0", 1024.5), ("g0", 1025.0)), rows(("g0", 1024.0), ("g0", 1024.5))
)
"""Large rewards that differ by less than float16 can tell."""
NOTHING_TRAINED: Final = AdvantageRequest(
    rows(("g0", 1.0), ("g0", 0.0), trained=False), rows(("g0", 0.0), ("g0", 1.0), trained=False)
)
"""A batch without a row that trains."""
NO_ROWS: Final = AdvantageRequest((), ())

EDGES: Final = (ABSENT_OF_TWO, EQUAL_PROMPTS, ALONE, *ALIKE, *ONE_OF_EIGHT, HALF_A_POINT, NOTHING_TRAINED, NO_ROWS)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area advantage."""
    if area is Area.ADVANTAGE:
        yield listed("edges", area, EDGES)
        yield Stream("others' rewards", area, pairs(other_rewards, least_groups=2), 2.0)
        yield Stream("an absent rollout", area, pairs(absent, least_groups=2), 2.0)
        yield Stream("another order", area, pairs(another_order), 2.0)
        yield Stream("masked rewards", area, pairs(masked_rewards), 2.0)
        yield Stream("shifted", area, pairs(shifted), 2.0)
        yield Stream("shifted:decimal", area, pairs(shifted, DECIMAL))
        yield Stream("shifted:large", area, pairs(shifted, LARGE))
        yield Stream("more rows", area, pairs(more_rows), 2.0)
        yield Stream("unusable reward", area, pairs(unusable))
