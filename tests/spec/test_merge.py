"""Merging calls: the spec's rows, the faults that the area was calibrated by, and linearizing as a second oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.portable import MergeCalls
from rollproof.spec.judge.requests import Accepted, Area
from rollproof.spec.judge.rules.lineage import chain_ids
from rollproof.spec.lineage import linearize
from rollproof.spec.merge import merge_calls
from rollproof.spec.portable import Call, Merged, Policy, Row

FORKED = (Call((3,), (4,), (-0.5,)), Call((3, 4, 5), (6,), (-0.25,)), Call((3, 4, 7), (6,), (-0.125,)))


def broken(calls, merged, *policies, max_len=None):
    """Return the ids of the invariants that rows break, advisories aside."""
    request, answer = MergeCalls(tuple(calls), 1.0, max_len, 2, (9,)), Accepted(merged, frozenset(policies))
    items = [item for item in of_area(Area.MERGE) if item.covers(request) and not item.advisory]
    return [item.id for item in items if item.check(request, answer, answer) is not None]


def test_a_fork_becomes_two_rows_that_train_their_trunk_once():
    merged = merge_calls(FORKED)
    assert merged == Merged(
        (
            Row((3, 4, 5, 6), (0, 1, 0, 1), (0.0, -0.5, 0.0, -0.25)),
            Row((3, 4, 7, 6), (0, 0, 0, 1), (0.0, 0.0, 0.0, -0.125)),
        )
    )
    assert broken(FORKED, merged) == []


def test_both_leaves_training_their_trunk_falls():
    first, second = merge_calls(FORKED).rows
    assert broken(FORKED, Merged((first, Row(second.ids, (0, 1, 0, 1), (0.0, -0.5, 0.0, -0.125))))) == ["MERGE-2"]


def test_a_prompt_copied_by_an_empty_slice_falls():
    row = Row((3, 4, 3, 4), (2, 2, 0, 0))
    assert broken([Call((3, 4), (), ())], Merged((row,))) == ["MERGE-1", "MERGE-5"]


@pytest.mark.parametrize(
    ("index", "policy", "right"),
    [
        (0, Policy.DEAD_BRANCH, False),
        (1, Policy.DEAD_BRANCH, True),
        (2, Policy.DEAD_BRANCH, False),
        (0, Policy.DRIFT, False),
        (1, Policy.DRIFT, True),
        (2, Policy.DRIFT, False),
        (1, Policy.EXTEND_ONLY, False),
        (2, Policy.EXTEND_ONLY, True),
        (1, Policy.OVER_LIMIT, False),
        (7, Policy.DRIFT, False),
        (-1, Policy.DRIFT, False),
    ],
)
def test_a_drop_counts_where_it_is_declared_and_true(index, policy, right):
    rows = merge_calls([call for at, call in enumerate(FORKED) if at != index]).rows
    merged = Merged(rows, ((index, policy),))
    assert broken(FORKED, merged, policy) == ([] if right else ["MERGE-3"])
    assert broken(FORKED, merged) == ["MERGE-3"]


def test_a_limit_excuses_what_is_beyond_it_and_what_leads_there():
    calls = (Call((3,), (4,), (-0.5,)), Call((3, 4, 5), (6,), (-0.25,)))
    assert broken(calls, merge_calls(calls, 3), Policy.OVER_LIMIT, max_len=3) == []
    assert broken(calls, Merged((), ((0, "over-limit"), (1, "over-limit"))), Policy.OVER_LIMIT, max_len=3) == []
    assert broken(calls, Merged((), ((0, "over-limit"), (1, "over-limit"))), Policy.OVER_LIMIT, max_len=4) == [
        "MERGE-3"
    ]


def test_log_probs_that_do_not_fit_are_refused_by_the_spec():
    with pytest.raises(ValueError, match=r"calls\[0\].log_probs: got 2 values, expected 1, one per generated token"):
        merge_calls([Call((3,), (4,), (-0.5, -0.25))])


@given(histories())
@settings(max_examples=40, deadline=None, database=None)
def test_a_direct_rollouts_row_is_a_merge_of_its_chain(history):
    """Two chapters that know nothing of each other: digests and links there, contexts here."""
    request = history.linearize()
    row = linearize(request.receipt, request.calls)
    staged = {call.model_call_id: call for call in request.calls}
    calls, before = [], ()
    for call in (staged[name] for name in chain_ids(request)):
        carry = call.token_mask_delta.count(0.0)
        ids = call.token_ids_delta
        calls.append(Call(before + ids[:carry], ids[carry:], call.generation_log_probs_delta[carry:]))
        before += ids
    laid_out = Row(row.token_ids, tuple(map(int, row.token_mask)), row.logprobs)
    assert broken(calls, Merged((laid_out,))) == []
    merged = merge_calls(calls)
    assert [one for one in merged.rows if one.ids == laid_out.ids] == [laid_out] or len(merged.rows) > 1
