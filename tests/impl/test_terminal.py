"""Section 3: every small graph gives the spec's terminal call."""

from __future__ import annotations

from itertools import product

from attrs import evolve

from rollproof.impl.terminal import select_terminal
from rollproof.spec.records import CallRecord
from rollproof.spec.terminal import select_terminal as spec_select

RECORD = CallRecord("a", None, 0, 1, 1, 0, *["0" * 64] * 2, "k", *["0" * 64] * 2, "r", "text")


def test_all_graphs_of_up_to_four_calls():
    reasons = set()
    for size in range(5):
        names = [f"c{index}" for index in range(size)]
        for parents in product([None, *names, "absent"], repeat=size):
            records = [
                evolve(RECORD, model_call_id=name, parent_call_id=parent)
                for name, parent in zip(names, parents, strict=True)
            ]
            selected = select_terminal(records)
            assert selected == spec_select(records)
            reasons.add(selected.reason)
    assert reasons == {"no_records", "orphaned_row", "no_root", "ambiguous_terminal", "selected"}


def test_admission_times_order_roots():
    for stamps in product([None, 1.0, 2.0, -1.0], repeat=3):
        records = [evolve(RECORD, model_call_id=f"c{index}", admitted_at=stamp) for index, stamp in enumerate(stamps)]
        records.append(evolve(RECORD, model_call_id="child", parent_call_id="c1"))
        assert select_terminal(records) == spec_select(records)
        assert select_terminal(records[:3]) == spec_select(records[:3])


def test_repeated_calls():
    assert select_terminal([RECORD, RECORD]).reason == "duplicate_call_id"
