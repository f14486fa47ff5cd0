"""Public constructors convert or refuse before anything is read, and one group has one finalizer at a time."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rollproof.impl.actor import RolloutReassemblerActorConfig
from rollproof.impl.dataplane import transfer_queue
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.reassembler import GroupInFlight, RolloutReassembler
from rollproof.impl.recovery import Recovery, run
from rollproof.impl.staging import StagingSource
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.model import STAGING, TRAIN, RolloutPlan, group_of

NAMES = {"partition_id": TRAIN, "staging_partition": STAGING}


def reassembler(plane: Any = None, **changes: Any) -> RolloutReassembler:
    arguments = {**NAMES, "pad_token_id": 0, "max_seq_len": 8, **changes}
    return RolloutReassembler(plane or MemoryDataPlane(), **arguments)


@pytest.mark.parametrize("dims", [[2, 3], (2, 3), np.array([2, 3]), torch.tensor([2, 3]), (np.int64(2), 3)])
def test_a_pair_of_any_kind_is_layers_and_top_k(dims):
    """Kept as the list that a configuration file gives, it is equal to no shape: every routed rollout is rejected."""
    made = reassembler(routed_dims=dims)
    assert made._config.routed_dims == made._dims == (2, 3)
    assert type(made._dims) is tuple
    assert RoutePlanExecutor(MemoryDataPlane(), dims=dims)._dims == (2, 3)


@pytest.mark.parametrize("ids", [[2, 3], (2, 3), np.array([2, 3]), torch.tensor([2, 3]), (np.int64(2), 3)])
def test_stop_tokens_of_any_kind_are_a_tuple(ids):
    """A model's configuration names one, several or none."""
    assert reassembler(stop_token_ids=ids)._config.stop_token_ids == (2, 3)
    assert reassembler(stop_token_ids=2)._config.stop_token_ids == (2,)
    assert reassembler(stop_token_ids=None)._config.stop_token_ids == ()
    assert reassembler(least_plausible_logprob=-5)._config.least_plausible_logprob == -5.0


NO_COUNT = (-1, 0, 1.0, float("nan"), True, "2", 2**63, [2])
NO_DIMS = ((2,), (2, 3, 4), "23", {2, 3}, (0, 2), (2, -1), (True, 2), (2.0, 2), 5, b"23")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("partition_id", value) for value in ("", None, 3, b"train")),
        *(("staging_partition", value) for value in ("", None, TRAIN)),
        *(("pad_token_id", value) for value in (-1, None, 1.0, float("nan"), True, "0", 2**63)),
        *(("max_seq_len", value) for value in (None, *NO_COUNT)),
        *((name, value) for name in ("num_experts", "vocab_size") for value in NO_COUNT),
        *((name, value) for name in ("router_replay_enabled", "capture_media") for value in (None, 0, 1, "false", [])),
        *(("allow_repeated_experts", value) for value in ("no", 1)),
        *(("defer_routed_experts_to_policy", value) for value in ("no", True)),
        *(("routed_dims", value) for value in NO_DIMS),
        *(("patches_per_embedding", value) for value in NO_COUNT),
        *(("publish_group_key", value) for value in (None, 1, "true")),
        *(("least_plausible_logprob", value) for value in (None, 1.0, True, "-60", float("nan"), -float("inf"))),
        *(("stop_token_ids", value) for value in ("2", b"2", [-1], [2.0], [True], 2.0, -1, [[2]])),
    ],
)
def test_a_reassembler_refuses(name, value):
    with pytest.raises(ValueError, match=rf"{name}.*: (got|true)"):
        reassembler(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("max_seq_len", 0), ("routed_dims", "23"), ("capture_media", 1)])
def test_finalizer_settings_refuse_where_they_are_made(name, value):
    """In the actors' processes it would be an error of their start, after Ray has tried."""
    arguments = {**NAMES, "pad_token_id": 0, "max_seq_len": 8, name: value}
    with pytest.raises(ValueError, match=f"{name}: got {value!r}"):
        FinalizerSettings(MemoryDataPlane(), arguments)
    with pytest.raises(ValueError, match=f"{name}: got {value!r}"):
        RolloutReassemblerActorConfig(
            **arguments, router_replay_enabled=False, defer_routed_experts_to_policy=False
        )  # fmt: skip


def test_finalizer_settings_name_what_is_missing_or_unknown():
    for arguments in (NAMES, {**NAMES, "pad_token_id": 0, "max_seq_len": 8, "max_len": 9}):
        with pytest.raises(TypeError, match=r"max_seq_len|max_len"):
            FinalizerSettings(MemoryDataPlane(), arguments)


@pytest.mark.parametrize("client", [None, object(), "plane", SimpleNamespace(get_samples=print)])
def test_finalizer_settings_refuse_what_no_actor_can_use(client):
    with pytest.raises(ValueError, match=r"dp_client: got .*, expected a data plane"):
        FinalizerSettings(client, {**NAMES, "pad_token_id": 0, "max_seq_len": 8})


def test_finalizer_settings_take_a_function_that_makes_the_plane_and_keep_the_arguments():
    arguments = {**NAMES, "pad_token_id": 0, "max_seq_len": 8, "routed_dims": [2, 3]}
    settings = FinalizerSettings(MemoryDataPlane, arguments)
    arguments["max_seq_len"] = 0
    assert settings.config.max_seq_len == 8
    assert settings.reassembler()._dims == (2, 3)
    assert isinstance(settings.recovery().dp_client, MemoryDataPlane)


@pytest.mark.parametrize("plane", [object(), None, "plane"])
@pytest.mark.parametrize(
    "make",
    [
        lambda plane: RolloutReassembler(plane, **NAMES, pad_token_id=0, max_seq_len=8),
        lambda plane: Recovery(plane, **NAMES),
        lambda plane: StagingSource(plane, STAGING),
        lambda plane: RoutePlanExecutor(plane, dims=(1, 1)),
    ],
)
def test_what_is_no_data_plane_is_refused(make, plane):
    with pytest.raises(ValueError, match=r"dp_client: got .* expected a data plane with .*get_samples"):
        make(plane)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StagingSource(MemoryDataPlane(), ""), "partition"),
        (lambda: Recovery(MemoryDataPlane(), "", STAGING), "partition_id"),
        (lambda: Recovery(MemoryDataPlane(), TRAIN, 3), "staging_partition"),
        (lambda: Recovery(MemoryDataPlane(), TRAIN, STAGING, "no"), "deferred"),
        *((lambda value=value: RoutePlanExecutor(MemoryDataPlane(), dims=value), "dims") for value in NO_DIMS),
        (lambda: RoutePlanExecutor(MemoryDataPlane(), dims=None), "dims"),
        (lambda: RoutePlanExecutor(MemoryDataPlane(), dims=(1, 1), num_experts=0), "num_experts"),
        (lambda: RoutePlanExecutor(MemoryDataPlane(), dims=(1, 1), allow_repeated_experts="no"), "allow_repeated"),
        *(
            (lambda value=value: TransferQueueDataPlane(value), "timeout_s")
            for value in (0, -1.0, float("nan"), float("inf"), True, "60", None)
        ),
    ],
)
def test_the_others_refuse(make, name):
    with pytest.raises(ValueError, match=f"{name}.*: got"):
        make()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("size", "in_flight", "max_recoveries") for value in (-1, True, "2", 1.5, None)),
        *(("timeout_s", value) for value in (0, -1.0, float("nan"), True, "60")),
        *(("num_cpus", value) for value in (-1, float("inf"), True, "1", None)),
    ],
)
def test_a_pool_refuses_before_it_starts_an_actor(name, value):
    settings = FinalizerSettings(MemoryDataPlane(), {**NAMES, "pad_token_id": 0, "max_seq_len": 8})
    with pytest.raises(ValueError, match=f"{name}: got"):
        FinalizerPool(settings, **{name: value})


# ── one group, one finalizer ────────────────────────────────────────────────────────────────────────────────────────


class Waits(MemoryDataPlane):
    """The first operation of one kind waits until it is let go."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operation, self.reached, self.go = operation, threading.Event(), threading.Event()

    def _wait(self, operation: str) -> None:
        if operation == self.operation and not self.reached.is_set():
            self.reached.set()
            assert self.go.wait(60)

    def get_samples(self, sample_ids, partition_id, select_fields):
        self._wait("get")
        return super().get_samples(sample_ids, partition_id, select_fields)

    def clear_samples(self, sample_ids, partition_id):
        self._wait("clear")
        super().clear_samples(sample_ids, partition_id)


GROUP = group_of(1, [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((2, 3),))], [])


def staged(plane: MemoryDataPlane) -> Any:
    stage_rows(plane, STAGING, GROUP.rows)
    return plane


@pytest.mark.parametrize("operation", ["get", "clear"])
@pytest.mark.parametrize("again", ["finalize", "recover"])
def test_a_group_that_is_being_finalized_is_refused(operation, again):
    """Without that, the second call reads half of the staging, and puts placeholders over the first one's rows."""
    plane = staged(Waits(operation))
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(run(reassembler(plane), GROUP.request)))
    first.start()
    assert plane.reached.wait(60)
    recover = Recovery(plane, **NAMES).recover
    with pytest.raises(GroupInFlight, match="group g1 is being finalized by another thread"):
        run(reassembler(plane), GROUP.request) if again == "finalize" else recover(GROUP.request, reassembler(plane))
    other = group_of(2, [RolloutPlan(((1, 1),), "no receipt")], []).request
    assert run(reassembler(plane), other).total_row_count == 1
    plane.go.set()
    first.join()
    assert results[0].valid_row_count == 2
    assert Recovery(plane, **NAMES).recover(GROUP.request, reassembler(plane)).valid_row_count == 2


class Interrupted(MemoryDataPlane):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        super().put_samples(sample_ids, partition_id, fields, tags)
        if partition_id == TRAIN and self.at == "put":
            raise KeyboardInterrupt

    def clear_samples(self, sample_ids, partition_id):
        if self.at == "clear":
            raise KeyboardInterrupt

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at


@pytest.mark.parametrize(("at", "says"), [("put", "publishing to partition"), ("clear", "the rows are published")])
def test_an_interrupt_says_on_which_side_of_the_put_it_was(at, says):
    plane = staged(Interrupted(at))
    with pytest.raises(KeyboardInterrupt) as found:
        run(reassembler(plane), GROUP.request)
    assert says in "".join(found.value.__notes__)
    plane.at = ""
    assert Recovery(plane, **NAMES).recover(GROUP.request, reassembler(plane)).valid_row_count == 2


# ── the queue's client, without a queue ─────────────────────────────────────────────────────────────────────────────


class NeverAnswers:
    """A client of a queue that takes requests and answers none."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    async def async_kv_list(self, partition: str) -> Any:
        self.asked.set()
        await asyncio.Event().wait()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> NeverAnswers:
    client = NeverAnswers()
    monkeypatch.setattr(transfer_queue, "attach", lambda: client)
    return client


def test_closing_a_client_ends_what_other_threads_wait_for(silent):
    plane = TransferQueueDataPlane(timeout_s=120.0)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            plane.tags("p")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert silent.asked.wait(60)
    plane.close()
    thread.join(60)
    assert [type(error) for error in errors] == [ConnectionError]
    assert "closed during an operation" in str(errors[0])


def test_an_operation_on_a_loop_that_stands_still_ends_too(silent, monkeypatch):
    monkeypatch.setattr(transfer_queue, "GRACE_S", 0.05)
    plane = TransferQueueDataPlane(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        plane.tags("p")
    assert plane._loop is not None
    plane._loop.call_soon_threadsafe(plane._loop.stop)
    with pytest.raises(TimeoutError, match=r"no answer from TransferQueue in 0.05 s"):
        plane.tags("p")


def test_a_forked_child_is_told_so(silent):
    """Its event loop has no thread there: it would wait forever."""
    plane = TransferQueueDataPlane(timeout_s=0.05)
    with pytest.raises(TimeoutError):
        plane.tags("p")
    told_so_in_a_fork(lambda: plane.tags("p"))


def test_a_client_made_in_a_forked_child_is_told_so(monkeypatch):
    """Ray's own threads are not there either: looking for the queue would wait for ever, before any deadline."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    told_so_in_a_fork(lambda: TransferQueueDataPlane(timeout_s=0.05).tags("p"))


def told_so_in_a_fork(ask):
    child = os.fork()
    if not child:
        try:
            ask()
        except RuntimeError as error:
            os._exit(0 if "before this process was forked" in str(error) else 1)
        os._exit(2)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise AssertionError("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
