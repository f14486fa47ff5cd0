"""Advantages: one estimator that holds what any must, worked by hand."""

from __future__ import annotations

import math

import pytest
from attrs import evolve

from rollproof.spec.advantage import advantages
from rollproof.spec.portable import ScoredRow


def row(group: str, rollout: str, reward: float, *, trained: bool = True, number: int = 0) -> ScoredRow:
    return ScoredRow(group, rollout, (1,), reward, trained, number)


def test_a_row_is_compared_with_the_rollouts_of_its_group():
    batch = [row("a", "a0", 1.0), row("b", "b0", 5.0), row("a", "a1", 0.0), row("b", "b1", 9.0)]
    assert advantages(batch) == (0.5, -2.0, -0.5, 2.0)


def test_a_rollout_of_three_rows_has_one_vote():
    batch = [row("a", "a0", 1.0, number=number) for number in range(3)] + [row("a", "a1", 0.0)]
    assert advantages(batch) == (0.5, 0.5, 0.5, -0.5)


def test_a_rollout_votes_once_one_of_its_rows_trains():
    batch = [row("a", "a0", 1.0, trained=False), row("a", "a0", 1.0, number=1), row("a", "a1", 0.0)]
    assert advantages(batch) == (0.0, 0.5, -0.5)


def test_a_rollout_that_trains_nothing_has_no_vote():
    assert advantages([row("a", "a0", 9.0, trained=False), row("a", "a1", 1.0), row("a", "a2", 0.0)]) == (
        0.0,
        0.5,
        -0.5,
    )


def test_a_group_of_one_and_equal_rewards_have_nothing_to_learn():
    assert advantages([row("a", "a0", 0.7)]) == (0.0,)
    assert advantages([row("a", f"a{at}", 0.25) for at in range(3)]) == (0.0, 0.0, 0.0)
    assert advantages([]) == ()


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e39])
def test_a_reward_whose_float32_is_not_finite_is_refused(reward):
    with pytest.raises(ValueError, match=r"batch\[1\].reward: got .*, expected a finite float32"):
        advantages([row("a", "a0", 0.0), row("a", "a1", reward)])


@pytest.mark.parametrize(
    "field, value", [("group", 1), ("rollout", None), ("trained", 1), ("reward", "1"), ("reward", True)]
)
def test_a_row_that_is_not_well_formed_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"batch\[0\].{field}: got"):
        advantages([evolve(row("a", "a0", 0.0), **{field: value})])
