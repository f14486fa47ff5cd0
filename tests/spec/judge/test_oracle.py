"""The contract's answer to what an implementation did: a fault counts as it was met (decision D15)."""

from __future__ import annotations

from rollproof.properties.strategies.streams.group import small_group
from rollproof.spec.judge.oracle import answer, answer_to
from rollproof.spec.judge.requests import Accepted, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Faults
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Get
from rollproof.spec.records import ReassemblerConfig

GROUP, STAGING = small_group("g", 1)


def asked(failing_get: int | None) -> FinalizeGroups:
    """Return a group of one rollout, which the contract reads once, finalized twice."""
    steps = (GroupStep(GROUP, Faults(failing_get=failing_get)), GroupStep(GROUP))
    return FinalizeGroups(ReassemblerConfig(), steps, STAGING)


def failures(request: FinalizeGroups, first: GroupOutcome) -> list[Failure | None]:
    """Return how both steps must end for an implementation of which the first ended so."""
    _, second = answer(request).value
    return [outcome.failure for outcome in answer_to(request, Accepted((first, second))).value]


def reads(count: int, failure: Failure | None) -> GroupOutcome:
    """Return the outcome of an implementation that made so many reads."""
    return GroupOutcome((Get("staging", ("g_g0/c0",), ("token_ids_delta",)),) * count, None, failure)


def test_a_fault_that_only_further_reads_meet_is_a_failed_read():
    request = asked(1)
    assert answer(request).value[0].failure is None
    assert failures(request, reads(2, Failure.READ)) == [Failure.READ, None]
    rows = answer_to(request, Accepted((reads(2, Failure.READ), answer(asked(0)).value[1]))).value[1].rows
    assert rows is not None, "the second run finds everything where it was staged"


def test_a_failed_read_is_no_excuse_where_none_was_to_fail_or_it_was_not_reached():
    assert failures(asked(None), reads(2, Failure.READ))[0] is None
    assert failures(asked(5), reads(2, Failure.READ))[0] is None


def test_a_fault_that_was_not_met_is_none():
    assert answer(asked(0)).value[0].failure is Failure.READ
    assert failures(asked(0), reads(0, None))[0] is None
    assert failures(asked(0), reads(1, None))[0] is Failure.READ
