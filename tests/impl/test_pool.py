"""A pool publishes what one process would, and a finalizer that dies between put and clear costs nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from rollproof.impl.actor import create_rollout_reassembler_actors
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.reassembler import PublishError
from rollproof.impl.recovery import Undecidable, run
from rollproof.properties.adapters.recording import published_rows
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.chaos import DyingPlane, JournalPlane
from rollproof.properties.machine.faults import Armed, Fault, FaultyPlane
from rollproof.properties.machine.model import RolloutPlan, group_of
from rollproof.spec.constants import STEP_TIMES

pytestmark = pytest.mark.xdist_group("ray")

PLANS = [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((0, 1),), "poisoned"), RolloutPlan(((2, 2), (1, 1), (1, 3)))]
GROUPS = [group_of(number, PLANS[: 1 + number % 3], []) for number in range(5)]


def settings(plane: Any, name: str, **changes: Any) -> FinalizerSettings:
    partitions = {"partition_id": f"{name}/train", "staging_partition": f"{name}/staging"}
    return FinalizerSettings(plane, partitions | {"pad_token_id": 0, "max_seq_len": 8} | changes)


def stage(plane: Any, name: str) -> None:
    for group in GROUPS:
        stage_rows(plane, f"{name}/staging", group.rows)


def published(plane: Any, name: str, groups: Any = GROUPS) -> Any:
    """Return all rows of groups, and what is still staged."""
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
        for group in groups
    ]
    return rows, sorted(plane.sample_ids(f"{name}/staging"))


@pytest.fixture(scope="module")
def alone() -> Any:
    """Return what one process publishes, in memory."""
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


def counts(group: Any) -> dict[str, float]:
    """Return the metrics that are not measurements."""
    return {name: value for name, value in group.metrics.items() if name not in STEP_TIMES}


def test_pool_publishes_what_one_process_does(queue, name, alone):
    stage(queue, name)
    found = outcomes(FinalizerPool(settings(queue, name), size=2))
    groups, rows, left = alone
    assert {key: (outcome.error, outcome.recoveries) for key, outcome in found.items()} == dict.fromkeys(
        groups, (None, 0)
    )
    for key, outcome in found.items():
        assert counts(outcome.group) == counts(groups[key])
        assert outcome.group.meta.tags == groups[key].meta.tags
    assert published(queue, name) == (rows, left)


# ── actors that somebody kills ──────────────────────────────────────────────────────────────────────────────────────

MOMENTS = {
    "before the put": ("put", Fault.CRASH_BEFORE, [3]),
    "during the put": ("put", Fault.CRASH_HALF, [1, 3]),
    "after the put": ("put", Fault.CRASH_AFTER, [3]),
    "during the clear": ("clear", Fault.CRASH_HALF, [3]),
    "after the clear": ("clear", Fault.CRASH_AFTER, [3]),
}
"""By the moment at which an actor is killed: the rows of each put that then began."""


def killed(plane: DyingPlane, name: str, call: str, how: Any) -> None:
    """Let an actor hang at the plane's moment, and kill it there."""
    (actor,) = create_rollout_reassembler_actors(plane, settings(plane, name).config, num_workers=1)
    pending = getattr(actor, call).remote(WIDE.request)
    marker = Path(plane.marker)
    while not marker.exists():
        assert ray.wait([pending], timeout=0.2) == ([], [pending]), "the call ended"
    how(actor, int(marker.read_text()))
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(pending)


def from_outside(_: Any, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


WIDE = GROUPS[2]


@pytest.fixture(scope="module")
def undisturbed() -> Any:
    """Return what one process publishes of one group, in memory."""
    plane = MemoryDataPlane()
    stage(plane, "alone")
    group = run(settings(plane, "alone").reassembler(), WIDE.request)
    return group, published(plane, "alone", [WIDE])


@pytest.mark.parametrize(
    "moment", [pytest.param(one, marks=[] if one == "during the put" else pytest.mark.deep) for one in MOMENTS]
)
def test_a_killed_actors_group_is_recovered_by_a_fresh_one(queue, name, undisturbed, moment, tmp_path):
    """Whenever it dies, the rows are those of an undisturbed run, and none of them is put a second time."""
    stage(queue, name)
    operation, fault, puts = MOMENTS[moment]
    journal = JournalPlane(queue, str(tmp_path / "puts"))
    plane = DyingPlane(journal, operation, str(tmp_path / "pid"), hangs=True, fault=fault)
    killed(plane, name, "finalize", (lambda actor, _: ray.kill(actor)) if operation == "clear" else from_outside)
    (fresh,) = create_rollout_reassembler_actors(journal, settings(queue, name).config, num_workers=1)
    for _ in range(2):
        group = ray.get(fresh.recover.remote(WIDE.request))
        assert published(queue, name, [WIDE]) == undisturbed[1]
        assert (group.valid_row_count, group.meta.tags) == (undisturbed[0].valid_row_count, undisturbed[0].meta.tags)
    ray.kill(fresh)
    assert Path(journal.file).read_text().splitlines() == [f"{count} into {name}/train" for count in puts]


@pytest.mark.deep
def test_an_actor_that_is_killed_while_it_recovers_costs_nothing_either(queue, name, undisturbed, tmp_path):
    stage(queue, name)
    journal = JournalPlane(queue, str(tmp_path / "puts"))
    for index, (call, fault) in enumerate((("finalize", Fault.CRASH_HALF), ("recover", Fault.CRASH_AFTER))):
        plane = DyingPlane(journal, "put", str(tmp_path / f"pid{index}"), hangs=True, fault=fault)
        killed(plane, name, call, from_outside)
    (fresh,) = create_rollout_reassembler_actors(journal, settings(queue, name).config, num_workers=1)
    group = ray.get(fresh.recover.remote(WIDE.request))
    ray.kill(fresh)
    assert published(queue, name, [WIDE]) == undisturbed[1]
    assert (group.valid_row_count, group.meta.tags) == (undisturbed[0].valid_row_count, undisturbed[0].meta.tags)
    assert Path(journal.file).read_text().splitlines() == [f"{count} into {name}/train" for count in (1, 3)]


@pytest.mark.parametrize("operation", ["put", pytest.param("clear", marks=pytest.mark.deep)])
def test_a_finalizer_that_dies_is_recovered(queue, name, alone, operation, tmp_path):
    """Run blindly again after its put and a clear, the groups would be placeholders."""
    stage(queue, name)
    plane = DyingPlane(queue, operation, str(tmp_path / "died"))
    found = outcomes(FinalizerPool(settings(plane, name), size=2))
    assert (tmp_path / "died").exists()
    assert [outcome.error for outcome in found.values()] == [None] * len(GROUPS)
    assert any(outcome.recoveries for outcome in found.values())
    assert published(queue, name) == alone[1:]


@pytest.mark.deep
def test_a_finalizer_that_hangs_is_recovered_while_others_work(queue, name, alone, tmp_path):
    """Its group, whose rows are published, is finished although the other finalizer never runs out of work."""
    marker = tmp_path / "hung"
    plane = DyingPlane(queue, "clear", str(marker), hangs=True)
    pool = FinalizerPool(settings(plane, name), size=2, in_flight=3, timeout_s=3.0)
    stage(queue, name)
    found = {}

    def requests():
        yield from (group.request for group in GROUPS)
        for number in range(len(GROUPS), 5_000):
            if named <= found.keys():
                return
            yield group_of(number, [RolloutPlan(((0, 1),), "no receipt")], []).request

    named = {group.request.group_id for group in GROUPS}
    try:
        for outcome in pool.finalize(requests()):
            found[outcome.request.group_id] = outcome
    finally:
        pool.close()
    assert marker.exists()
    assert [outcome.error for outcome in found.values()] == [None] * len(found)
    recovered = [one for one, outcome in found.items() if outcome.recoveries]
    assert 1 <= len(recovered) < len(found)
    assert len(GROUPS) < len(found) < 5_000
    assert published(queue, name) == alone[1:]


def faulty(queue, *armed):
    plane = FaultyPlane(queue)
    plane.arm(list(armed))
    return plane


@pytest.mark.deep
def test_a_group_that_is_given_up_can_still_be_recovered(queue, name, alone):
    """Every put breaks off half-way: what is left is whole staging and a part of the rows."""
    stage(queue, name)
    plane = faulty(queue, *(Armed("put", index, Fault.HALF, 1) for index in range(10)))
    wide = next(group for group in GROUPS if len(group.sample_ids) > 1)
    pool = FinalizerPool(settings(plane, name), size=1, in_flight=1, max_recoveries=2)
    (outcome,) = pool.finalize([wide.request])
    pool.close()
    assert (outcome.request, outcome.group, outcome.recoveries) == (wide.request, None, 2)
    assert type(outcome.error) is PublishError
    assert "injected break-off" in str(outcome.error.__cause__)
    recovery = settings(queue, name).recovery()
    holding = recovery.holding(wide.request)
    assert 0 < holding.rows < holding.of_rows
    assert holding.staged == holding.of_staged > 0
    finalizer = settings(queue, name).reassembler()
    for group in GROUPS:
        recovery.recover(group.request, finalizer)
    assert published(queue, name) == alone[1:]


@pytest.mark.deep
def test_a_recovery_whose_read_fails_is_tried_again(queue, name, alone):
    """Its group's fate is as unknown as before, whatever the error: it must not be finalized blindly."""
    stage(queue, name)
    group = GROUPS[0]
    reads = len(group.sample_ids)
    plane = faulty(queue, Armed("put", 0, Fault.TIME_OUT, 0), Armed("get", reads, Fault.REFUSE, 0))
    pool = FinalizerPool(settings(plane, name), size=1, in_flight=1)
    (outcome,) = pool.finalize([group.request])
    pool.close()
    assert (outcome.error, outcome.recoveries) == (None, 2)
    plane = faulty(queue, *(Armed("get", index, Fault.REFUSE, 0) for index in range(10)))
    pool = FinalizerPool(settings(plane, name), size=1, in_flight=1)
    (outcome,) = pool.finalize([GROUPS[1].request])
    pool.close()
    assert (type(outcome.error), outcome.recoveries) == (ConnectionError, 0), "nothing was written: no recovery"


@pytest.mark.deep
def test_what_nobody_can_decide_is_given_up_at_once(queue, name):
    """The put was half done, and staging is gone."""
    stage(queue, name)
    wide = next(group for group in GROUPS if len(group.sample_ids) > 1)
    queue.clear_samples(sorted(wide.rows), f"{name}/staging")
    plane = faulty(queue, Armed("put", 0, Fault.REFUSE, 0))
    pool = FinalizerPool(settings(plane, name), size=1, in_flight=1)
    (outcome,) = pool.finalize([wide.request])
    pool.close()
    assert (type(outcome.error), outcome.recoveries) == (Undecidable, 1)


def test_what_a_pool_refuses(queue):
    with pytest.raises(ValueError, match="pass routed_dims"):
        settings(queue, "p", router_replay_enabled=True)
    settings(queue, "p", router_replay_enabled=True, routed_dims=(2, 1))
    settings(queue, "p", router_replay_enabled=True, defer_routed_experts_to_policy=True)
    with pytest.raises(ValueError, match="in_flight=1"):
        FinalizerPool(settings(queue, "p"), size=2, in_flight=1)
