"""Invariants of advantages on answers made by hand: what each complains about, and what a declaration lets pass."""

from __future__ import annotations

import math

import pytest
from attrs import evolve

from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.portable import AdvantageRequest, Advantages
from rollproof.spec.judge.requests import Accepted, Answer, Crashed, Refused
from rollproof.spec.portable import Policy, ScoredRow

Batch = tuple[ScoredRow, ...]


def rows(*rewards: float, group: str = "g", trained: bool = True) -> Batch:
    return tuple(ScoredRow(group, f"{group}{at}", (1,), reward, trained) for at, reward in enumerate(rewards))


def fallen(request: AdvantageRequest, found: Answer) -> list[str]:
    """The invariants that an answer breaks."""
    items = [item for item in BY_ID.values() if item.covers(request)]
    return [item.id for item in items if item.check(request, answer(request), found) is not None]


def accepted(first: tuple[float, ...], second: tuple[float, ...], *policies: str) -> Accepted:
    return Accepted(Advantages(first, second), frozenset(policies))


def test_the_advantage_of_100000_is_a_row_compared_with_another_prompts():
    """Groups of two by position, one rollout absent: the last row is alone, its deviation 0, its divisor 0.00001."""
    first, second = rows(1.0) + rows(0.0, 1.0, group="h"), rows(1.0) + rows(2.0, 1.0, group="h")
    found = accepted((0.5, -0.5, 100_000.0), (-0.5, 0.5, 100_000.0))
    assert "ADV-1" in fallen(AdvantageRequest(first, second), found)


def test_the_same_batch_has_the_same_values():
    batch = rows(0.0, 1.0)
    assert fallen(AdvantageRequest(batch, batch), accepted((-0.5, 0.5), (-0.6, 0.5))) == [
        "ADV-1",
        "ADV-3",
        "ADV-4",
        "ADV-5",
    ]


def test_another_order_is_compared_row_by_row():
    batch = rows(0.0, 1.0)
    request = AdvantageRequest(batch, batch[::-1])
    assert fallen(request, accepted((-0.5, 0.5), (0.5, -0.5))) == []
    assert "ADV-2" in fallen(request, accepted((-0.5, 0.5), (1.0, -0.5)))


def test_a_masked_reward_may_move_its_own_value_alone():
    first, second = (
        rows(0.0, 1.0) + rows(1.0, group="m", trained=False),
        rows(0.0, 1.0) + rows(9.0, group="m", trained=False),
    )
    first, second = (tuple(evolve(row, group="g") for row in batch) for batch in (first, second))
    request = AdvantageRequest(first, second)
    assert fallen(request, accepted((-0.5, 0.5, 0.5), (-0.5, 0.5, 8.5))) == []
    moved = (-0.7, 0.3, 0.3), (-3.3, -2.3, 5.7)
    assert fallen(request, accepted(*moved)) == ["ADV-3"]
    assert fallen(request, accepted(*moved, Policy.MASKED_VOTE)) == []


def test_a_group_of_one_may_keep_its_reward_if_that_is_declared():
    request = AdvantageRequest(rows(0.5), rows(1.5))
    assert fallen(request, accepted((0.0,), (0.0,))) == []
    assert fallen(request, accepted((0.5,), (1.5,))) == ["ADV-4"]
    assert fallen(request, accepted((0.5,), (1.5,), Policy.SINGLETON_RAW)) == []
    assert fallen(request, accepted((0.5,), (1.5,), Policy.UNCENTERED)) == []
    assert fallen(request, accepted((50_000.0,), (150_000.0,), Policy.SINGLETON_RAW)) == ["ADV-4"]


def test_a_rollout_of_two_rows_counts_once():
    first = rows(0.0, 1.0)
    request = AdvantageRequest(first, (*first, evolve(first[1], row=1)))
    assert fallen(request, accepted((-0.5, 0.5), (-0.5, 0.25, 0.25))) == []
    by_rows = (-0.5, 0.5), (-0.67, 0.33, 0.33)
    assert fallen(request, accepted(*by_rows)) == ["ADV-5"]
    assert fallen(request, accepted(*by_rows, Policy.ROWS_VOTE)) == []


@pytest.mark.parametrize("values", [(math.nan, 0.0), (math.inf, 0.0), (0.0,), (0.0, 1.0, 2.0), (0.0, "1"), (0.0, True)])
def test_each_row_has_one_finite_number(values):
    batch = rows(0.0, 1.0)
    assert fallen(AdvantageRequest(batch, batch), accepted((-0.5, 0.5), values)) == ["ADV-6"]


def test_a_crash_is_a_fault_and_a_refusal_is_not():
    request = AdvantageRequest(rows(0.0), rows(1.0))
    assert fallen(request, Crashed("ZeroDivisionError", "")) == ["ADV-6"]
    assert fallen(request, Refused("group of one")) == []


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused_unless_its_row_trains_nothing(reward):
    request = AdvantageRequest(rows(0.0), rows(reward))
    assert fallen(request, accepted((0.0,), (0.0,))) == ["ADV-6"]
    masked = AdvantageRequest(rows(0.0), rows(0.0) + rows(reward, group="h", trained=False))
    assert fallen(masked, accepted((0.0,), (0.0, 0.0))) == []


def test_the_better_rollout_has_the_higher_value():
    batch = rows(0.0, 1.0)
    request = AdvantageRequest(batch, batch)
    assert fallen(request, accepted((1.0, 1.0), (1.0, 1.0))) == ["ADV-7"]
    assert fallen(request, accepted((0.5, -0.5), (0.5, -0.5))) == ["ADV-7"]
    assert fallen(request, accepted((1.0, 1.0), (1.0, 1.0), Policy.COARSE)) == []
