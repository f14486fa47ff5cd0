"""Real faults on a real TransferQueue, one after the other: what a caller sees, what survives, how to go on.

``python -m benchmarks.outages [NAME …]`` prints what it sees; docs/operations.md is written from it. It has no
``main``: ``python -m benchmarks`` leaves it out.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollproof.impl.dataplane.transfer_queue import CONTROLLER, TransferQueueDataPlane, local_queue
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.recovery import run
from rollproof.properties.machine.chaos import DyingPlane
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, Group, RolloutPlan, group_of
from rollproof.properties.tensors import row_fields

TIMEOUT_S = 8.0
ARGUMENTS = {
    "partition_id": TRAIN,
    "staging_partition": STAGING,
    "pad_token_id": CONFIG.pad_token_id,
    "max_seq_len": CONFIG.max_seq_len,
}


def a_group(number: int) -> Group:
    """Two rollouts of two calls each."""
    return group_of(number, [RolloutPlan(((2, 3), (1, 2)))] * 2, [])


def stage(plane: Any, group: Group) -> None:
    for key, row in group.rows.items():
        plane.put_samples([key], STAGING, row_fields(dict(row)), [{}])


def see(what: str, act: Callable[[], Any]) -> Any:
    """Do something, and print how it ends and after how long."""
    started = time.monotonic()
    try:
        found = act()
    except Exception as error:
        cause = f" from {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else ""
        text = f"{type(error).__name__}: {error}{cause}".replace("\n", " ")
        found = error
    else:
        text = f"{found}"
    print(f"  {what}: {text[:260]} ({time.monotonic() - started:.1f} s)", flush=True)
    return found


def rows_there(plane: TransferQueueDataPlane, group: Group) -> str:
    """How much of a group can be read, row by row."""

    def there(key: str, partition: str, column: str) -> str:
        try:
            return str(plane.get_samples([key], partition, [column]).batch_size[0])
        except Exception as error:
            return type(error).__name__

    staged = [there(key, STAGING, "delta_len") for key in sorted(group.rows)]
    return f"staged {staged}, published {[there(key, TRAIN, 'input_lengths') for key in group.sample_ids]}"


def valid_rows(group: Any) -> Any:
    return getattr(group, "valid_row_count", group)


def storage_unit() -> None:
    """A storage unit dies with staged rows in it."""
    import ray
    import transfer_queue

    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    done, waiting = a_group(0), a_group(1)
    stage(plane, done)
    see("a group before", lambda: valid_rows(run(settings.reassembler(), done.request)))
    stage(plane, waiting)
    ray.kill(ray.get_actor("TransferQueueStorageUnit#0"))
    time.sleep(1)
    see("what is left of both", lambda: rows_there(plane, done) + "; " + rows_there(plane, waiting))
    see("finalize", lambda: valid_rows(run(settings.reassembler(), waiting.request)))
    see("recover", lambda: valid_rows(settings.recovery().recover(waiting.request, settings.reassembler())))
    see("stage another", lambda: stage(plane, a_group(2)))
    see("keys listed as staged", lambda: sorted(plane.sample_ids(STAGING)))
    see("discard", lambda: settings.recovery().discard(waiting.request))
    plane.close()
    transfer_queue.close()
    transfer_queue.init()
    stage(plane, waiting)
    see("after close, init and staging it again", lambda: valid_rows(run(settings.reassembler(), waiting.request)))


def controller() -> None:
    """The controller dies."""
    import ray
    import transfer_queue

    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    group = a_group(0)
    stage(plane, group)
    ray.kill(ray.get_actor(**CONTROLLER))
    time.sleep(1)
    see("finalize", lambda: valid_rows(run(settings.reassembler(), group.request)))
    see("recover", lambda: valid_rows(settings.recovery().recover(group.request, settings.reassembler())))
    see("stage another", lambda: stage(plane, a_group(1)))
    plane.close()
    transfer_queue.close()
    transfer_queue.init()
    see("after close and init, what is left", lambda: rows_there(plane, group))
    see("recover then", lambda: valid_rows(settings.recovery().recover(group.request, settings.reassembler())))
    stage(plane, group)
    see("after staging it again", lambda: valid_rows(run(settings.reassembler(), group.request)))


def finalizer() -> None:
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
    see("the pool's outcome", lambda: (outcome.error, outcome.recoveries, valid_rows(outcome.group)))
    see("what is there", lambda: rows_there(plane, group))
    alone = FinalizerSettings(plane, ARGUMENTS).reassembler()
    see("valid rows that a blind second run publishes", lambda: valid_rows(run(alone, group.request)))


def full() -> None:
    """The queue is full: room for eight rows, four in each of two storage units."""
    plane = TransferQueueDataPlane(TIMEOUT_S)
    settings = FinalizerSettings(plane, ARGUMENTS)
    one, two = a_group(0), a_group(1)
    stage(plane, one)
    see("stage a second group", lambda: stage(plane, two))
    see("stage a third group", lambda: stage(plane, a_group(2)))
    see("finalize the first", lambda: valid_rows(run(settings.reassembler(), one.request)))
    see("what is there of it", lambda: rows_there(plane, one))
    see("keys listed as published", lambda: plane.sample_ids(TRAIN))
    settings.recovery().discard(two.request)
    see(
        "recover it after room was made",
        lambda: valid_rows(settings.recovery().recover(one.request, settings.reassembler())),
    )
    see("what is there of it", lambda: rows_there(plane, one))


SCENES: dict[str, tuple[Callable[[], None], dict[str, Any]]] = {
    "storage-unit": (storage_unit, {}),
    "controller": (controller, {}),
    "finalizer": (finalizer, {}),
    "full": (full, {"backend": {"SimpleStorage": {"total_storage_size": 8}}}),
}


def command(names: list[str]) -> int:
    """Play the scenes of these names, all without names."""
    for name in names or SCENES:
        scene, settings = SCENES[name]
        print(f"{name}: {scene.__doc__}", flush=True)
        with local_queue(settings):
            scene()
    return 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
