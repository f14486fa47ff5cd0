"""Completion after a cut, as the spec judges it."""

from __future__ import annotations

import pytest
from attrs import evolve

from rollproof.impl.completion import check_completion
from rollproof.spec.completion import check_completion as spec_check_completion
from rollproof.spec.cut_records import Completion, Cut, TrainedRow
from rollproof.spec.records import LinkSpan

CUT = Cut("a", "r", (1, 2), ("r/a",))
ROW = TrainedRow("r", (LinkSpan("z", 1, 2), LinkSpan("b", 2, 3)), (7, 8, 9, 5, 5, 1, 2, 3))
DONE = Completion("a", "b", 2, 1)


@pytest.mark.parametrize(
    "log, codes",
    [
        ([], ["completion_count"]),
        ([DONE], []),
        ([DONE, DONE], ["completion_count"]),
        ([DONE] * 3, ["completion_count"]),
        ([evolve(DONE, prefix_len=1, tail_len=2)], ["token_count"]),
        ([evolve(DONE, prefix_len=3, tail_len=0)], ["empty_tail", "token_count"]),
        ([evolve(DONE, tail_len=2)], ["token_count"]),
        ([evolve(DONE, new_call_id="c")], []),
        ([DONE, evolve(DONE, source_call_id="x")], ["completion_count"]),
    ],
)
def test_a_cut_is_completed_once(log: list[Completion], codes: list[str]) -> None:
    found = check_completion([CUT], log, [ROW], (), ())
    assert [violation.code.code for violation in found] == codes
    assert tuple(found) == spec_check_completion([CUT], log, [ROW], (), ())
