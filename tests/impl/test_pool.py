"""A pool publishes what one process would, and a finalizer that dies between put and clear costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.recovery import run
from rollproof.properties.machine.chaos import DyingPlane
from rollproof.properties.machine.model import RolloutPlan, group_of
from rollproof.properties.recording import published_rows
from rollproof.properties.tensors import row_fields

pytestmark = pytest.mark.xdist_group("ray")

PLANS = [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((0, 1),), "poisoned"), RolloutPlan(((2, 2), (1, 1), (1, 3)))]
GROUPS = [group_of(number, PLANS[: 1 + number % 3], []) for number in range(5)]


def settings(plane: Any, name: str, **changes: Any) -> FinalizerSettings:
    partitions = {"partition_id": f"{name}/train", "staging_partition": f"{name}/staging"}
    return FinalizerSettings(plane, partitions | {"pad_token_id": 0, "max_seq_len": 8} | changes)


def stage(plane: Any, name: str) -> None:
    for group in GROUPS:
        for key, row in group.rows.items():
            plane.put_samples([key], f"{name}/staging", row_fields(dict(row)), [{}])


def published(plane: Any, name: str) -> Any:
    """All rows of the groups, and what is still staged."""
    tags = plane.tags(f"{name}/train")
    columns = [
        "input_ids",
        "input_lengths",
        "token_mask",
        "generation_logprobs",
        "sample_mask",
        "prompt_ids_for_adv",
        "total_reward",
    ]
    rows = [
        published_rows(
            plane.get_samples(list(group.sample_ids), f"{name}/train", columns),
            [dict(tags[key]) for key in group.sample_ids],
            0,
        )
        for group in GROUPS
    ]
    return rows, sorted(plane.sample_ids(f"{name}/staging"))


@pytest.fixture(scope="module")
def alone() -> Any:
    """What one process publishes, in memory."""
    plane = MemoryDataPlane()
    stage(plane, "alone")
    finalizer = settings(plane, "alone").reassembler()
    groups = {group.request.group_id: run(finalizer, group.request) for group in GROUPS}
    return groups, *published(plane, "alone")


@pytest.fixture
def name(queue, request):
    yield request.node.name
    for part in ("train", "staging"):
        queue.clear_samples(None, f"{request.node.name}/{part}")


def outcomes(pool: FinalizerPool) -> dict[str, Any]:
    try:
        return {outcome.request.group_id: outcome for outcome in pool.finalize(group.request for group in GROUPS)}
    finally:
        pool.close()


def test_it_publishes_what_one_process_does(queue, name, alone):
    stage(queue, name)
    found = outcomes(FinalizerPool(settings(queue, name), size=2))
    groups, rows, left = alone
    assert {key: (outcome.error, outcome.recoveries) for key, outcome in found.items()} == dict.fromkeys(
        groups, (None, 0)
    )
    for key, outcome in found.items():
        assert outcome.group.metrics == groups[key].metrics
        assert outcome.group.meta.tags == groups[key].meta.tags
    assert published(queue, name) == (rows, left)


@pytest.mark.parametrize("operation", ["put", "clear"])
def test_a_finalizer_that_dies_is_recovered(queue, name, alone, operation, tmp_path):
    """Run blindly again after its put and a clear, the groups would be placeholders."""
    stage(queue, name)
    plane = DyingPlane(queue, operation, str(tmp_path / "died"))
    found = outcomes(FinalizerPool(settings(plane, name), size=2))
    assert (tmp_path / "died").exists()
    assert [outcome.error for outcome in found.values()] == [None] * len(GROUPS)
    assert any(outcome.recoveries for outcome in found.values())
    assert published(queue, name) == alone[1:]


def test_what_a_pool_refuses(queue):
    with pytest.raises(ValueError, match="pass routed_dims"):
        settings(queue, "p", router_replay_enabled=True)
    settings(queue, "p", router_replay_enabled=True, routed_dims=(2, 1))
    settings(queue, "p", router_replay_enabled=True, defer_routed_experts_to_policy=True)
    with pytest.raises(ValueError, match="at least one"):
        FinalizerPool(settings(queue, "p"), size=2, in_flight=1)
