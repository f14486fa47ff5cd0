"""Where NeMo RL calls us: the actor on Ray over a real queue, and results that pass a guard and travel.

What planes raise is in test_misses.py, what the sink stages in test_staging.py, reads by group in test_group_reads.py.
"""

from __future__ import annotations

import dataclasses
import gc
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import ray
from groups import MODES, REWARDS, finalize, guard, staged_group

from rollproof.impl.actor import (
    LocalReassembler,
    ReassemblyRequest,
    RolloutReassemblerActorConfig,
    client_of,
    create_rollout_reassembler_actors,
)
from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.outcomes import FinalizedGroup

pytestmark = pytest.mark.xdist_group("ray")


def config(name: str, mode: str = "plain", **changes: Any) -> RolloutReassemblerActorConfig:
    off = {"router_replay_enabled": False, "defer_routed_experts_to_policy": False}
    return RolloutReassemblerActorConfig(
        partition_id=f"{name}/train",
        staging_partition=f"{name}/staging",
        pad_token_id=7,
        max_seq_len=4096,
        **(off | MODES[mode] | changes),
    )


def request_of(rollout_ids: list[str], receipts: list[Any], **changes: Any) -> ReassemblyRequest:
    return ReassemblyRequest(
        group_id="g",
        rollout_ids=tuple(rollout_ids),
        canonical_sample_ids=tuple(rollout_ids),
        receipts=tuple(receipts),
        rewards=tuple(REWARDS),
        fallback_weight_version=9,
        prompt_idx=3,
        mask_sample=(True, False, True),
        **changes,
    )


@pytest.fixture
def name(queue, request):
    yield request.node.name
    for part in ("train", "staging"):
        queue.clear_samples(None, f"{request.node.name}/{part}")


@pytest.mark.parametrize("media", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.parametrize("mode", MODES)
def test_the_actor_finalizes_over_a_real_queue(make, queue, name, mode, media):
    """What comes back through Ray is what one process returns, and passes the guard on the caller's side."""
    rollout_ids, receipts = staged_group(make, queue, media=media, partition=f"{name}/staging")
    (actor,) = create_rollout_reassembler_actors(queue, config(name, mode, capture_media=media), num_workers=1)
    group = ray.get(actor.finalize.remote(request_of(rollout_ids, receipts, group_labels="a", result_stats={"n": 1})))
    assert ray.get(actor.__ray_call__.remote(lambda _: gc.get_freeze_count())) > 0
    ray.kill(actor)
    guard(group)
    alone, _ = finalize(make, mode, media)
    assert isinstance(group, FinalizedGroup)
    assert group.metrics.pop("group_stats/a/n") == 1.0
    assert set(group.metrics) == set(alone.metrics)
    assert (group.valid_row_count, group.total_row_count, group.canonical_output_tokens) == (2, 3, 6)
    assert (sorted(group.meta.fields), group.meta.sequence_lengths) == (sorted(alone.meta.fields), [6, 1, 6])
    left = sorted(queue.sample_ids(f"{name}/staging"))
    assert left == (sorted(group.staging_keys) if mode == "deferred" else [])
    columns = ["input_ids", "input_lengths", "sample_mask", "total_reward"]
    rows = queue.get_samples([f"g_g{index}" for index in range(3)], f"{name}/train", columns)
    assert [row.tolist() for row in column_rows(rows.get("input_ids"))] == [
        [10, 11, 12, 13, 20, 21],
        [7],
        [10, 11, 12, 13, 20, 21],
    ]


def test_actors_raise_what_the_class_raises(queue, name):
    (actor,) = create_rollout_reassembler_actors(queue, config(name), num_workers=1)
    with pytest.raises(ValueError, match="canonical sample ids"):
        ray.get(actor.finalize.remote(dataclasses.replace(request_of(["x"] * 3, [None] * 3), rollout_ids=tuple("abc"))))
    ray.kill(actor)
    with pytest.raises(ValueError, match="num_workers: got 0"):
        create_rollout_reassembler_actors(queue, config(name), num_workers=0)


def test_an_actor_makes_its_client_where_it_is_given_the_means(make, monkeypatch):
    """A function, or NeMo RL's configuration of a data plane where NeMo RL is installed."""
    plane = MemoryDataPlane()
    rollout_ids, receipts = staged_group(make, plane, media=False)
    made = LocalReassembler(lambda: plane, dataclasses.replace(config("g"), staging_partition="staging"))
    assert made.finalize(request_of(rollout_ids, receipts)).valid_row_count == 2
    again = made.recover(request_of(rollout_ids, receipts))
    assert (again.valid_row_count, again.total_row_count) == (2, 3)
    theirs = SimpleNamespace(build_data_plane_client=lambda settings, *, bootstrap: (settings, bootstrap))
    monkeypatch.setitem(sys.modules, "nemo_rl", SimpleNamespace(data_plane=theirs))
    monkeypatch.setitem(sys.modules, "nemo_rl.data_plane", theirs)
    assert client_of({"impl": "transfer_queue"}) == ({"impl": "transfer_queue"}, False)


@pytest.mark.parametrize("media", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_every_result_passes_a_guard_and_travels(make, mode, media):
    group, rollouts = finalize(make, mode, media)
    assert [rollout.valid for rollout in rollouts] == [True, False, True]
    assert (rollouts[0].routed_experts is not None, rollouts[0].route_plan is not None) == (
        mode == "direct",
        mode != "plain",
    )
    assert (rollouts[0].media is not None) == media
    assert (group.valid_row_count, group.total_row_count) == (2, 3)
    for result in (group, group.meta, *rollouts):
        guard(result)
        assert pickle.loads(pickle.dumps(result)) == result
        assert cloudpickle.loads(cloudpickle.dumps(result)) == result
        assert dataclasses.replace(result) == result


def test_the_guard_refuses_what_is_no_dataclass(make):
    group, _ = finalize(make, "plain", media=False)
    with pytest.raises(TypeError, match="SimpleNamespace"):
        guard(dataclasses.replace(group, meta=SimpleNamespace()))
