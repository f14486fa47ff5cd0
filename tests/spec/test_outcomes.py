"""Outcomes of the spec as values."""

from __future__ import annotations

from answers import ROLLOUTS, group

from rollproof.spec.outcomes import GroupOutcome


def test_group_outcomes_are_equal_whatever_they_were_made_of() -> None:
    assert GroupOutcome((), rollouts=ROLLOUTS, dims=(1, 2)) == GroupOutcome(())
    assert GroupOutcome((), group(2, 6)) != GroupOutcome(())
