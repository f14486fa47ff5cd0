"""Groups in the implementation: the spec's outcome on damaged inputs, and one read for a whole group."""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import pytest
from attrs import evolve
from cases import HYPOTHESIS
from groups import MODES, OPTIONS, REWARDS, complaints, finalize, staged_group
from hypothesis import given

from rollproof.impl import reassembler as module
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.group import argument_error
from rollproof.properties.strategies.streams.between import DEFERRED, DIRECT
from rollproof.properties.strategies.streams.finish import DIMS, finished
from rollproof.spec.constants import STEP_TIMES
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeGroups, FinalizeRollout, GroupStep
from rollproof.spec.judge.staging import Faults, OnMiss, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor

RULES = {
    "missing_receipt": lambda receipt, rows, rng: None,
    "identity_mismatch": lambda receipt, rows, rng: receipt | {"rollout_id": "other"},
    "rollout_failed": lambda receipt, rows, rng: receipt | {"failure_reason": "x: y", "capture_poisoned": True},
    "capture_poisoned": lambda receipt, rows, rng: receipt | {"capture_poisoned": True},
    "foreign_key": lambda receipt, rows, rng: with_row(receipt, rng, staging_key="other/c0"),
    "one_key": lambda receipt, rows, rng: with_row(receipt, rng, staging_key=receipt["manifest"][0]["staging_key"]),
    "manifest": lambda receipt, rows, rng: receipt | {"manifest": rng.choice([5, [5], [{}], {}])},
    "wrong_field": lambda receipt, rows, rng: with_row(receipt, rng, weight_version=1),
    "wrong_digest": lambda receipt, rows, rng: with_row(receipt, rng, digest="0" * 64),
    "absent_row": lambda receipt, rows, rng: rows.pop(rng.choice(list(rows))) and receipt,
    "swapped_rows": lambda receipt, rows, rng: swap(rows, rng) or receipt,
    "absent_column": lambda receipt, rows, rng: damage(rows, rng, None) or receipt,
    "changed_column": lambda receipt, rows, rng: damage(rows, rng, b"\xff") or receipt,
    "other_dtype": lambda receipt, rows, rng: damage(rows, rng, "int16") or receipt,
}
"""Ways to break a rollout: each takes the receipt and changes the staged rows, or gives another receipt."""


def with_row(receipt, rng, **changes):
    manifest = list(receipt["manifest"])
    index = rng.randrange(len(manifest))
    manifest[index] = manifest[index] | changes
    return receipt | {"manifest": manifest}


def swap(rows, rng) -> None:
    first, second = rng.choice(list(rows)), rng.choice(list(rows))
    rows[first], rows[second] = rows[second], rows[first]


def damage(rows, rng, how) -> None:
    key = rng.choice(list(rows))
    row = dict(rows[key])
    name = rng.choice(list(row))
    if how is None:
        del row[name]
    elif how == "int16":
        row[name] = Tensor("int16", row[name].shape, bytes(2 * row[name].count))
    else:
        row[name] = Tensor(row[name].dtype, row[name].shape, how + row[name].data[1:])
    rows[key] = row


def test_groups_are_the_specs(make):
    rng = random.Random(3)
    reasons = Counter()
    for _ in range(150):
        rollout_ids = [f"g_g{index}" for index in range(rng.randrange(1, 4))]
        receipts, staged = [], {}
        for rollout_id in rollout_ids:
            calls = make.random_calls(rng, rollout_id)
            rows = make.rows_of(calls)
            receipt = make.receipt_of(calls, terminal_attribution_reason=rng.choice([None, "witness_disagreement: x"]))
            if rng.random() < 0.5:
                receipt = rng.choice(list(RULES.values()))(receipt, rows, rng)
            receipts.append(receipt)
            staged |= rows
        rewards = tuple(rng.choice([1.0, 0, -0.0, 2.5, math.nan, True, None, 1e39]) for _ in rollout_ids)
        request = GroupRequest(
            "g",
            tuple(rollout_ids),
            tuple(receipts),
            rewards,
            tuple(rng.random() < 0.5 for _ in rollout_ids),
            fallback_weight_version=9,
            prompt_idx=3,
            loss_multiplier=rng.choice([1.0, 0.0, -0.0, 2, 0.1]),
        )
        config = ReassemblerConfig(
            pad_token_id=7, max_seq_len=rng.choice([1, 4, 4096]), vocab_size=rng.choice([None, 2**62])
        )
        faults = Faults(failing_get=rng.choice([None] * 8 + [0, 1]), put=rng.random() < 0.1, clear=rng.random() < 0.1)
        staging = Staging(staged, on_miss=rng.choice(list(OnMiss)))
        steps = (GroupStep(request, faults), GroupStep(request))
        assert complaints(FinalizeGroups(config, steps, staging)) == []
        single = FinalizeRollout(config, rollout_ids[0], receipts[0], rewards[0], evolve(staging, faults=faults))
        assert complaints(single) == []
        rollout = getattr(answer(single).value, "rollout", None)
        reasons[rollout and rollout.rejection_reason and rollout.rejection_reason.partition(":")[0]] += 1
    assert len(reasons) >= 7


@pytest.mark.parametrize("config", [ReassemblerConfig(), DIRECT, DEFERRED], ids=["plain", "direct", "deferred"])
def test_rows_whose_engine_stopped_for_length_are_truncated(config):
    if config.router_replay_enabled:
        config = evolve(config, routed_dims=DIMS)
    truncated = Counter()

    @HYPOTHESIS
    @given(finished(config))
    def check(request):
        assert complaints(request) == []
        (outcome,) = answer(request).value
        truncated.update(row.columns["truncated"].values()[0] for row in outcome.rows)

    check()
    assert set(truncated) == {False, True}


# ── after the put ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", MODES)
def test_nothing_after_the_put_can_fail_the_group(make, monkeypatch, mode):
    """Whatever makes the result is broken from the put on (D27): the group is finalized all the same."""
    plane, put = MemoryDataPlane(), []

    class Breaking(MemoryDataPlane):
        def put_samples(self, *arguments, **named):
            plane.put_samples(*arguments, **named)
            put.append(True)

        def get_samples(self, *arguments, **named):
            return plane.get_samples(*arguments, **named)

        def clear_samples(self, *arguments, **named):
            plane.clear_samples(*arguments, **named)

    def breaking(function):
        def run(*arguments, **named):
            assert not put, f"{function} after the put"
            return function(*arguments, **named)

        return run

    for name in ("describe", "build", "batch_meta", "replace", "sample_ids", "cleanup_keys", "route_plans"):
        monkeypatch.setattr(module, name, breaking(getattr(module, name)))
    rollout_ids, receipts = staged_group(make, plane, media=False)
    finalizer = make.reassembler(Breaking(), **MODES[mode])
    group = finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS)
    assert (put, group.valid_row_count) == ([True], 2)
    assert bool(plane.sample_ids("staging")) == (mode == "deferred")


class Planted(Exception):
    """The fault that a test plants."""


NO_MEASUREMENTS = {"call_plane", "_clear_staging", "acting_on"}
"""What comes after the put besides measurements: the clear, and letting go of the group."""


@pytest.mark.parametrize("mode", MODES)
def test_every_function_called_after_the_put_can_fail(make, mode):
    """Each measurement in turn raises as it is called after the put (D27): the group is finalized all the same."""
    group, called = finalized_with_a_fault_in(None, make, mode)
    measurements = {function for function in called if function.co_name not in NO_MEASUREMENTS}
    assert {function.co_name for function in measurements} == {"lap"}
    for function in measurements:
        again, raised = finalized_with_a_fault_in(function, make, mode)
        assert raised
        assert again.valid_row_count == group.valid_row_count == 2
        assert set(group.metrics) - set(again.metrics) <= set(STEP_TIMES)


def finalized_with_a_fault_in(function: CodeType | None, make: Any, mode: str) -> tuple[Any, set[CodeType]]:
    """Finalize a group; return it, and the functions of ours called after the put, or the one that raised there."""
    called: set[CodeType] = set()

    class Watching(MemoryDataPlane):
        def put_samples(self, *arguments, **named):
            answer = super().put_samples(*arguments, **named)
            if arguments[1:2] == ("train",) or named.get("partition_id") == "train":
                sys.setprofile(watch)
            return answer

    def watch(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/rollproof/impl/" in code.co_filename and "/dataplane/" not in code.co_filename:
            if code is function:
                called.add(code)
                sys.setprofile(watch)
                raise Planted(code.co_name)
            if function is None:
                called.add(code)

    plane = Watching()
    rollout_ids, receipts = staged_group(make, plane, media=False)
    try:
        group = make.reassembler(plane, **MODES[mode]).finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS)
    finally:
        sys.setprofile(None)
    return group, called


@pytest.mark.parametrize("mode", MODES)
def test_a_group_reports_how_long_its_steps_took(make, mode):
    group, _ = finalize(make, mode, media=False)
    named = {name for name in group.metrics if name.startswith("row_assembly/")}
    assert named == set(STEP_TIMES[:3] if mode == "deferred" else STEP_TIMES)
    assert all(0.0 <= group.metrics[name] < 1e6 for name in named)


REQUEST = GroupRequest("g", ("g_g0", "g_g1"), ({}, {}), (0.0, 1.0), (False, True))


@pytest.mark.parametrize("field", ["rollout_ids", "receipts", "rewards", "mask_sample"])
@pytest.mark.parametrize("longer", [False, True])
def test_one_argument_per_rollout(field: str, longer: bool) -> None:
    value: tuple[Any, ...] = getattr(REQUEST, field)
    other = (*value, "g_g2" if field == "rollout_ids" else value[0]) if longer else value[:1]
    assert argument_error(REQUEST) is None
    assert "differ in length" in str(argument_error(evolve(REQUEST, **{field: other})))
