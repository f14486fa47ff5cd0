"""Real faults on a real TransferQueue, one after the other: what a caller sees, what survives, how to continue.

``python -m reliability.outages [--json] [NAME …]`` prints what it sees; docs/operations.md is written from it, and
``tests/reliability/test_outages.py`` holds it to what must be seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import psutil
from attrs import asdict, define, frozen

from reliability.soak import rows_published
from rollproof.impl.dataplane.transfer_queue import CONTROLLER, TransferQueueDataPlane, local_queue
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.recovery import run
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.chaos import DyingPlane
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, Group, RolloutPlan, group_of

TIMEOUT_S = 8.0
STALL_S = 2.0
SOUND_S = 60.0
"""For operations that must end, however busy the machine is."""
ARGUMENTS = {
    "partition_id": TRAIN,
    "staging_partition": STAGING,
    "pad_token_id": CONFIG.pad_token_id,
    "max_seq_len": CONFIG.max_seq_len,
}


def a_group(number: int) -> Group:
    """Return two rollouts of two calls each."""
    return group_of(number, [RolloutPlan(((2, 3), (1, 2)))] * 2, [])


def stage(plane: Any, group: Group) -> None:
    stage_rows(plane, STAGING, group.rows)


@frozen
class Sight:
    """How something that was done in a scene ended: with a value, or with an error."""

    what: str
    value: str
    error: str
    """The names of the exception's type and of its cause's; empty where there was none."""
    seconds: float


Scene: TypeAlias = Iterator[Sight]


def see(what: str, act: Callable[..., Any], *arguments: Any) -> Sight:
    """Do something, and return how it ends and after how long."""
    started = time.monotonic()
    try:
        value, error = f"{act(*arguments)}", ""
    except Exception as found:
        value, error = f"{found}".replace("\n", " "), type(found).__name__
        if found.__cause__ is not None:
            value, error = f"{value} from {found.__cause__}", f"{error} from {type(found.__cause__).__name__}"
    return Sight(what, value, error, time.monotonic() - started)


def rows_there(plane: TransferQueueDataPlane, group: Group) -> str:
    """Describe how much of a group can be read, row by row."""

    def there(key: str, partition: str, column: str) -> str:
        try:
            return str(plane.get_samples([key], partition, [column]).batch_size[0])
        except Exception as error:
            return type(error).__name__

    staged = [there(key, STAGING, "delta_len") for key in sorted(group.rows)]
    return f"staged {staged}, published {[there(key, TRAIN, 'input_lengths') for key in group.sample_ids]}"


def finalize(settings: FinalizerSettings, group: Group) -> int:
    """Return how many valid rows are published."""
    return run(settings.reassembler(), group.request).valid_row_count


def recover(settings: FinalizerSettings, group: Group) -> int:
    """Return how many valid rows are published after a recovery."""
    return settings.recovery().recover(group.request, settings.reassembler()).valid_row_count


def judged(plane: TransferQueueDataPlane, group: Group) -> str:
    """Say whether all rows of a group are published as the spec has them, and nothing of it is staged."""
    rows = rows_published(plane, group)
    if rows != group.published(frozenset(range(len(group.sample_ids))), dict(group.rows)):
        return "other rows"
    return "left in staging" if set(group.rows) & set(plane.sample_ids(STAGING)) else "right"


@contextmanager
def stopped(name: str) -> Iterator[None]:
    """Stop the processes of this machine's queue whose command has this in it; let them go on afterwards."""
    children = psutil.Process().children(recursive=True)
    found = [child for child in children if any(name in word for word in child.cmdline()[:1])]
    assert found, f"no process {name}"
    for one in found:
        one.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for one in found:
            one.send_signal(signal.SIGCONT)


@define(eq=False)
class StopsAt:
    """A data plane of which one operation meets a stopped queue, once, and gives up after ``STALL_S``."""

    inner: TransferQueueDataPlane
    operation: str
    process: str

    def __getattr__(self, name: str) -> Any:
        if name != self.operation:
            return getattr(self.inner, name)
        hasty = TransferQueueDataPlane(SOUND_S)
        hasty.tags(STAGING)
        hasty.timeout_s = STALL_S

        def stalled(*arguments: Any, **options: Any) -> Any:
            self.operation = ""
            with stopped(self.process):
                return getattr(hasty, name)(*arguments, **options)

        return stalled


def storage_unit() -> Scene:
    """A storage unit dies with staged rows in it."""
    import ray
    import transfer_queue

    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    done, waiting = a_group(0), a_group(1)
    stage(plane, done)
    yield see("a group before", finalize, settings, done)
    stage(plane, waiting)
    ray.kill(ray.get_actor("TransferQueueStorageUnit#0"))
    time.sleep(1)
    yield see("what is left of both", lambda: rows_there(plane, done) + "; " + rows_there(plane, waiting))
    yield see("finalize", finalize, settings, waiting)
    yield see("recover", recover, settings, waiting)
    yield see("stage another", stage, plane, a_group(2))
    yield see("keys listed as staged", plane.sample_ids, STAGING)
    yield see("discard", settings.recovery().discard, waiting.request)
    plane.close()
    transfer_queue.close()
    transfer_queue.init()
    stage(plane, waiting)
    yield see("after close, init and staging it again", finalize, settings, waiting)
    yield see("its rows", judged, plane, waiting)


def controller() -> Scene:
    """The controller dies."""
    import ray
    import transfer_queue

    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    group = a_group(0)
    stage(plane, group)
    ray.kill(ray.get_actor(**CONTROLLER))
    time.sleep(1)
    yield see("finalize", finalize, settings, group)
    yield see("recover", recover, settings, group)
    yield see("stage another", stage, plane, a_group(1))
    plane.close()
    transfer_queue.close()
    transfer_queue.init()
    yield see("after close and init, what is left", rows_there, plane, group)
    yield see("recover then", recover, settings, group)
    stage(plane, group)
    yield see("after staging it again", finalize, settings, group)
    yield see("its rows", judged, plane, group)


def stall() -> Scene:
    """The controller, or all storage units, stop for a while: in a read, in a put, and in a clear."""
    plane = TransferQueueDataPlane(SOUND_S)
    sound = FinalizerSettings(plane, ARGUMENTS)
    places = [(operation, process) for process in PROCESSES for operation in ("get", "put", "clear")]
    for number, (operation, process) in enumerate(places):
        group = a_group(number)
        stage(plane, group)
        settings = FinalizerSettings(StopsAt(plane, f"{operation}_samples", process), ARGUMENTS)
        where = f"{process} in a {operation}"
        yield see(where, finalize, settings, group)
        yield see(f"recovered: {where}", recover, sound, group)
        yield see(f"its rows: {where}", judged, plane, group)


def closing() -> Scene:
    """The client is closed while an operation of another thread waits; another one attaches; it is used again."""
    plane = TransferQueueDataPlane(TIMEOUT_S)
    group = a_group(0)
    stage(plane, group)
    settings = FinalizerSettings(plane, ARGUMENTS)
    sights: list[Sight] = []
    with stopped(PROCESSES[0]):
        thread = threading.Thread(target=lambda: sights.append(see("finalize", finalize, settings, group)))
        thread.start()
        time.sleep(1)
        plane.close()
        thread.join(TIMEOUT_S)
    yield from sights
    with stopped(PROCESSES[0]):
        yield see("attach anew", TransferQueueDataPlane(STALL_S).tags, STAGING)
    yield see("used again", finalize, settings, group)
    yield see("its rows", judged, plane, group)


def forking() -> Scene:
    """The process forks: its client, and one that is made in the child, are used there."""
    plane = TransferQueueDataPlane(TIMEOUT_S)
    group = a_group(0)
    stage(plane, group)
    settings = FinalizerSettings(plane, ARGUMENTS)
    yield in_a_fork("the parent's client", finalize, settings, group)
    yield in_a_fork("a new client", TransferQueueDataPlane(TIMEOUT_S).tags, STAGING)
    yield see("the parent afterwards", finalize, settings, group)
    yield see("its rows", judged, plane, group)


def in_a_fork(what: str, act: Callable[..., Any], *arguments: Any) -> Sight:
    """Return what is seen in a forked child, which is killed where it hangs."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        os.write(sending, json.dumps(asdict(see(what, act, *arguments))).encode())
        os._exit(0)
    os.close(sending)
    deadline = time.monotonic() + 3 * TIMEOUT_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Sight(what, "no answer", "Hangs", 3 * TIMEOUT_S)
        time.sleep(0.1)
    with os.fdopen(receiving, "rb") as pipe:
        return Sight(**json.loads(pipe.read()))


def finalizer() -> Scene:
    """A finalizer dies between its put and its clear."""
    plane = TransferQueueDataPlane(TIMEOUT_S)
    with tempfile.TemporaryDirectory() as folder:
        settings = FinalizerSettings(DyingPlane(plane, "clear", str(Path(folder) / "died")), ARGUMENTS)
        group = a_group(0)
        stage(plane, group)
        pool = FinalizerPool(settings, size=1, in_flight=1, timeout_s=120.0)
        try:
            (outcome,) = pool.finalize([group.request])
        finally:
            pool.close()
    yield see(
        "the pool's outcome",
        lambda: (outcome.error, outcome.recoveries, outcome.group and outcome.group.valid_row_count),
    )
    yield see("what is there", rows_there, plane, group)
    alone = FinalizerSettings(plane, ARGUMENTS).reassembler()
    yield see("valid rows that a blind second run publishes", lambda: run(alone, group.request).valid_row_count)


def full() -> Scene:
    """The queue is full: room for eight rows, four in each of two storage units."""
    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    one, two = a_group(0), a_group(1)
    stage(plane, one)
    yield see("stage a second group", stage, plane, two)
    yield see("stage a third group", stage, plane, a_group(2))
    yield see("finalize the first", finalize, settings, one)
    yield see("what is there of it", rows_there, plane, one)
    yield see("keys listed as published", plane.sample_ids, TRAIN)
    settings.recovery().discard(two.request)
    yield see(
        "recover it after room was made",
        recover,
        settings,
        one,
    )
    yield see("what is there of it then", rows_there, plane, one)
    yield see("its rows", judged, plane, one)


PROCESSES = ("TransferQueueController", "SimpleStorageUnit")
SCENES: dict[str, tuple[Callable[[], Scene], dict[str, Any]]] = {
    "storage-unit": (storage_unit, {}),
    "controller": (controller, {}),
    "stall": (stall, {}),
    "closing": (closing, {}),
    "forking": (forking, {}),
    "finalizer": (finalizer, {}),
    "full": (full, {"backend": {"SimpleStorage": {"total_storage_size": 8}}}),
}


def command(arguments: list[str]) -> int:
    """Play the scenes of these names, all without names."""
    as_json = "--json" in arguments
    for name in [one for one in arguments if one != "--json"] or SCENES:
        scene, settings = SCENES[name]
        if not as_json:
            print(f"{name}: {scene.__doc__}", flush=True)
        with local_queue(settings):
            for sight in scene():
                if as_json:
                    print(json.dumps({"scene": name, **asdict(sight)}), flush=True)
                    continue
                text = f"{sight.error}: {sight.value}" if sight.error else sight.value
                print(f"  {sight.what}: {text[:260]} ({sight.seconds:.1f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
