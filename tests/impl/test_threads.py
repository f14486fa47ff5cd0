"""Tasks end on some thread, whatever that thread waits for, and the gate holds with every call hashed on another."""

from __future__ import annotations

import multiprocessing
import threading
from functools import partial

import pytest
import torch

from rollproof.impl import digest
from rollproof.impl.threads import Task
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.spec.requests import Area


@pytest.fixture(params=[1, 2], ids=["alone", "shared"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def nested(depth: int) -> int:
    tasks = [Task(partial(nested, depth - 1)) for _ in range(3)] if depth else []
    return 1 + sum(task.result() for task in tasks)


def test_tasks_may_start_tasks(threads):
    assert nested(5) == sum(3**level for level in range(6))


def test_errors_reach_who_asks(threads):
    with pytest.raises(KeyError, match="gone"):
        Task(partial({}.__getitem__, "gone")).result()


@pytest.mark.parametrize("threads", [1], indirect=True)
def test_one_thread_does_everything_itself(threads):
    assert Task(threading.get_ident).result() == threading.get_ident()


def test_a_forked_process_has_threads_of_its_own(threads):
    assert nested(2) == 13
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(nested(2)))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == 13
    process.join()


def test_the_gate_holds_with_every_call_hashed_elsewhere(monkeypatch):
    tasks = []

    def share(call, *, shared: bool) -> Task:
        tasks.append(call)
        return Task(call)

    monkeypatch.setattr(digest, "Task", share)
    report = Check(Ours(), (Area.LINEAGE,), PROFILES["quick"], seed=1).run()
    assert [(found.invariant.id, found.complaint) for found in report.falsified] == []
    assert report.undriven == []
    assert len(tasks) > 100
