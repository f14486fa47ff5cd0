"""A user's function as an implementation: plain lists and dicts in, lists, dicts or arrays out, clear errors."""

from __future__ import annotations

import numpy as np
import pytest

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.functions import Functions, WrongShape, as_plain, as_record
from rollproof.properties.adapters.protocol import Adapter, Refusal
from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import AdapterError, load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.portable import MergeCalls, MergeTwice
from rollproof.spec.judge.requests import Accepted, Area, Crashed
from rollproof.spec.portable import Call, Captured, Merged, RoutedRow, Row

CALLS = (Call((3, 4), (5,), (-0.5,)), Call((3, 4, 5, 6), (7,), (-0.25,)))
REQUEST = MergeCalls(CALLS, 1.0, None, 2, (9,))
TWICE = MergeTwice(CALLS, 1.0, None, 2, (9,))


def merge_calls(calls):
    """One row per call."""
    return [
        {
            "ids": np.array(call["prompt_ids"] + call["generated_ids"]),
            "mask": [False] * len(call["prompt_ids"]) + [True] * len(call["generated_ids"]),
        }
        for call in calls
    ]


def found(function, request=REQUEST):
    function.__name__ = "merge_calls"
    return ask(Functions("mine", function), request)


def test_a_function_is_loaded_by_its_name_and_its_arrays_become_records():
    mine = load_implementation(f"{__name__}:merge_calls")
    assert mine.areas == {Area.MERGE}
    answer = ask(mine, REQUEST)
    assert answer == Accepted(Merged((Row((3, 4, 5), (0, 0, 1)), Row((3, 4, 5, 6, 7), (0, 0, 0, 0, 1)))))
    assert {type(one) for row in answer.value.rows for one in (*row.ids, *row.mask)} == {int}


def test_a_function_gets_what_it_names_and_no_more():
    assert found(lambda pad_id, calls: [{"ids": [pad_id], "mask": [len(calls)]}]).value.rows[0].mask == (2,)
    assert found(lambda **rest: [{"ids": sorted(map(len, rest)), "mask": []}]).value.rows[0].ids == (5, 6, 6, 7, 7)
    with pytest.raises(InputError, match="merge_calls: parameter 'tokens': expected some of calls, reward, max_len"):
        found(lambda tokens: [])


def test_policies_of_a_function_come_with_its_answers():
    def merging(calls):
        return []

    merging.policies = {"drift"}
    assert found(merging).policies == {"drift"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "rows: got NoneType None, expected a list"),
        ([{"ids": [1]}], "rows[0]: no 'mask' in dict {'ids': [1]}"),
        ([{"ids": [1], "mask": "1"}], "rows[0].mask: got str '1', expected a list"),
        ([{"ids": [1], "mask": [0.5]}], "rows[0].mask[0]: got float 0.5, expected an integer"),
        (
            [{"ids": [1], "mask": [0], "weights": []}],
            "rows[0]: key 'weights': expected ids, mask, log_probs, attention",
        ),
        ([([1], [0])], "rows[0]: got tuple ([1], [0]), expected a dict with ids, mask, log_probs, attention"),
        ({"rows": [], "dropped": [(0,)]}, "dropped[0]: got 1 values, expected 2"),
    ],
)
def test_a_wrong_shape_is_a_crash_that_says_where(answer, says):
    assert found(lambda calls: answer) == Crashed("WrongShape", says)
    assert found(lambda calls: answer).message == says


def test_plain_and_record_are_inverse():
    row = RoutedRow((3,), (1,), (((0, 1), (2, 3)),), fill=(0,))
    for kind, value in ((RoutedRow, row), (MergeCalls, REQUEST), (Captured | None, None)):
        assert as_record(kind, as_plain(value)) == value
    with pytest.raises(WrongShape):
        as_record(RoutedRow, as_plain(REQUEST))


def test_a_function_that_changes_its_arguments_is_seen():
    def growing(calls):
        for call in calls:
            call["prompt_ids"] += call["generated_ids"]
        return []

    answer = found(growing, TWICE)
    assert BY_ID["MERGE-6"].check(TWICE, answer, answer) == "it changed calls"
    steady = found(merge_calls, TWICE)
    assert BY_ID["MERGE-6"].check(TWICE, steady, steady) is None


def test_who_refuses_everything_has_not_been_exercised():
    class Refusing(Adapter):
        name = "refusing"
        areas = frozenset({Area.MERGE})

        def merge_calls(self, calls, reward, max_len, pad_id, eos_ids):
            raise Refusal("refused: not today")

    report = Check(Refusing(), (Area.MERGE,), PROFILES["quick"], 0, shrink=False).run()
    assert report.falsified == []
    assert set(report.not_exercised) == {item for item in report.invariants if item != "MERGE-7"}
    assert not report.exercised


def other(calls):
    return []


class Undeclared(Adapter):
    name = "undeclared"
    areas = frozenset({Area.MERGE})
    policies = frozenset({"whatever"})


def test_a_function_of_another_name_and_an_unknown_policy_are_refused():
    with pytest.raises(AdapterError, match="a function must be called merge_calls or align_routes"):
        load_implementation(f"{__name__}:other")
    with pytest.raises(AdapterError, match="unknown policy 'whatever', expected some of dead-branch"):
        load_implementation(f"{__name__}:Undeclared")
