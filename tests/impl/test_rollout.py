"""One rollout in the implementation: which row is named, and what is not read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rollproof.impl.dataplane.memory import MemoryDataPlane


def test_a_rejected_rollout_reads_nothing_it_need_not(make):
    for options in ({}, {"router_replay_enabled": True}):
        untouched = SimpleNamespace(get_samples=pytest.fail, put_samples=pytest.fail, clear_samples=pytest.fail)
        reassembler = make.reassembler(untouched, **options)
        assert reassembler.finalize_rollout("g_g0", None, reward=1.0).rejection_reason == "missing_receipt"


@pytest.mark.parametrize("found, call_id", [("bbc", "c0"), ("aac", "c1"), ("abb", "c2"), ("bac", "c0")])
def test_finalize_rollout_names_the_first_row_that_is_of_another_call(make, found, call_id):
    calls = []
    for _ in "abc":
        make.add_call(calls, [10, 11], 1, parent=calls[-1] if calls else None)
    rows = dict(zip("abc", make.rows_of(calls).values(), strict=True))
    plane = MemoryDataPlane()
    make.put_rows(plane, dict(zip(make.rows_of(calls), (rows[name] for name in found), strict=True)))
    rollout = make.reassembler(plane).finalize_rollout("g_g0", make.receipt_of(calls), reward=1.0)
    wanted, got = f"g_g0/{call_id}", f"g_g0/c{'abc'.index(found[int(call_id[1])])}"
    assert rollout.rejection_reason == f"staging_key_mismatch:{call_id}: staging_key: got {got!r}, expected {wanted!r}"
