"""The policy's side of deferred replay: one read for a batch, and routes as the spec assembles them."""

from __future__ import annotations

import pytest
from cases import HYPOTHESIS
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.recording import RecordingPlane
from rollproof.properties.adapters.tensors import from_torch
from rollproof.properties.strategies.rollouts.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    broken_routed_rollouts,
    routed_rollouts,
    stage,
)
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.group import finalize_group
from rollproof.spec.judge.requests import FinalizeRollout
from rollproof.spec.judge.staging import NO_FAULTS, Faults, Staging
from rollproof.spec.plan import encode_plan
from rollproof.spec.plane import DataPlane, Get
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.replay import execute_published_plan
from rollproof.spec.rollout import finalize_rollout

DIRECT = ReassemblerConfig(router_replay_enabled=True)
DEFERRED = ReassemblerConfig(router_replay_enabled=True, defer_routed_experts_to_policy=True)


def finalize(config, rollout):
    return FinalizeRollout(config, rollout.rollout_id, rollout.receipt, 1.0, Staging(rollout.rows))


def recorded(rows, faults=NO_FAULTS):
    return RecordingPlane.over(MemoryDataPlane(), Staging(rows, faults), "staging")


@st.composite
def published_batches(draw):
    """Draw published plans and the staged rows of several rollouts, some of them forged; one (L, K)."""
    plans_, lengths, rows = [], [], {}
    for index in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            rollout = draw(routed_rollouts(rollout_id=f"g_g{index}", dims=(1, 2)))
        else:
            reason = draw(st.sampled_from([name for name in ROLLOUT_BREAKS if name.startswith("route_assembly:")]))
            rollout = draw(broken_routed_rollouts(reason))
            if rollout.dims != (1, 2) or rollout.rollout_id in {key.partition("/")[0] for key in rows}:
                continue
        finalized = finalize_rollout(DEFERRED, rollout.rollout_id, rollout.receipt, 1.0, DataPlane(rollout.rows))
        if finalized.rollout.valid:
            rows |= rollout.rows
            plans_.append(encode_plan(finalized.rollout.route_plan))
            lengths.append(len(finalized.rollout.token_ids))
    if draw(st.booleans()):
        plans_.append(draw(st.sampled_from([None, {"schema_version": 3}, 7])))
        lengths.append(draw(st.integers(0, 3)))
    lost = draw(st.sampled_from([None, *sorted(rows)]))
    return plans_, lengths, {key: row for key, row in rows.items() if key != lost}


@settings(HYPOTHESIS, max_examples=100)
@given(published_batches(), st.booleans())
def test_published_plans_replay_alike(batch, padded):
    published, lengths, rows = batch
    expected = [
        execute_published_plan(plan_, rows, (1, 2), length) for plan_, length in zip(published, lengths, strict=True)
    ]
    executor = RoutePlanExecutor(recorded(rows), dims=(1, 2))
    width = max(lengths, default=0) + 1 if padded else None
    replayed = executor.replay(published, lengths, padded_length=width)
    assert replayed.failures == [row.failure for row in expected]
    assert dict(executor.failures) == {
        code: replayed.failures.count(code) for code in set(replayed.failures) if code is not None
    }
    for index, (row, length) in enumerate(zip(expected, lengths, strict=True)):
        found = replayed.routes[index] if padded else replayed.routes.unbind()[index]
        assert from_torch(found[:length]) == row.routes
        assert (found[length:] == -1).all()


def two_routed(**changes):
    rollout = stage(
        "g_g0",
        [
            RoutedCall("c0", None, 1, 1, {ROUTED_EXPERTS: [[[0, 1]], [[2, 3]]]}),
            RoutedCall("c1", "c0", 0, 1, {ROUTED_EXPERTS: "nrlre1:int8:1x1x2:BAU="}),
        ],
        "c1",
    )
    value = finalize_rollout(DEFERRED, "g_g0", rollout.receipt, 1.0, DataPlane(rollout.rows)).rollout
    return rollout, encode_plan(value.route_plan), len(value.token_ids)


def test_replay_reads_once_for_a_whole_batch():
    rollout, published, length = two_routed()
    plane = recorded(rollout.rows)
    replayed = RoutePlanExecutor(plane, dims=(1, 2)).replay([published] * 3, [length] * 3, padded_length=4)
    assert len(plane.effects) == 1
    assert replayed.routes[2].tolist() == [[[0, 1]], [[2, 3]], [[4, 5]], [[-1, -1]]]
    assert replayed.failures == [None] * 3


def test_deferred_reads_no_route_bytes_before():
    rollout, _, _ = two_routed()
    found = ask(Ours(), finalize(DEFERRED, rollout)).value
    assert all(ROUTED_EXPERTS not in effect.columns for effect in found.effects if isinstance(effect, Get))


def test_replay_raises_an_outage():
    rollout, published, length = two_routed()
    plane = recorded(rollout.rows, Faults(failing_get=0))
    with pytest.raises((ConnectionError, TimeoutError, RuntimeError, OSError, ValueError), match="injected"):
        RoutePlanExecutor(plane, dims=(1, 2)).replay([published], [length])


def test_replay_refuses_wrong_arguments():
    _, published, length = two_routed()
    executor = RoutePlanExecutor(MemoryDataPlane(), dims=(1, 2))
    with pytest.raises(ValueError, match="published: got 1, expected 2"):
        executor.replay([published], [length, 1])
    with pytest.raises(ValueError, match="expected at most padded_length"):
        executor.replay([published], [length], padded_length=length - 1)
    empty = executor.replay([], [])
    assert (empty.failures, empty.routes.shape[0]) == ([], 0)


def test_the_same_group_direct_and_deferred():
    """Deferred execution equals direct execution, bit for bit, padding and placeholders included."""
    rollout, _, _ = two_routed()
    request = GroupRequest("g", ("g_g0", "g_g1"), (rollout.receipt, None), (1.0, 1.0), (False, False))
    direct = finalize_group(DIRECT, request, DataPlane(rollout.rows))
    deferred = finalize_group(DEFERRED, request, DataPlane(rollout.rows))
    executor = RoutePlanExecutor(recorded(rollout.rows), dims=(1, 2))
    replayed = executor.replay([row.tags["route_assembly_plan"] for row in deferred.rows], [3, 1])
    assert [from_torch(row) for row in replayed.routes.unbind()] == [
        row.columns["routed_experts"] for row in direct.rows
    ]
