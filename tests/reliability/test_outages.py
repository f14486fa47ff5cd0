"""What a caller sees of a queue that fails in earnest, and that nothing is lost by it: docs/operations.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reliability.outages import (
    ARGUMENTS,
    PROCESSES,
    SCENES,
    StopsAt,
    a_group,
    finalize,
    in_a_fork,
    judged,
    recover,
    stage,
    stopped,
)
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane
from rollproof.impl.pool import FinalizerSettings
from rollproof.impl.reassembler import PublishError
from rollproof.properties.machine.model import STAGING, TRAIN

pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).parents[2]
GONE = {
    "finalize": "TimeoutError from TimeoutError",
    "recover": "TimeoutError from TimeoutError",
    "stage another": "TimeoutError from TimeoutError",
    "its rows": "right",
}
"""While a part of the queue is gone, nothing is decided by what cannot be read."""
STALLED = {
    "get": "TimeoutError from",
    "put": "PublishError from TimeoutError",
    "clear": "CleanupError from TimeoutError",
}
SEEN: dict[str, dict[str, str]] = {
    "storage-unit": GONE
    | {"a group before": "2", "discard": "CleanupError from", "after close, init and staging it again": "2"},
    "controller": GONE | {"recover then": "Undecidable", "after staging it again": "2"},
    "stall": {
        f"{what}{process} in a {operation}": seen
        for process in PROCESSES
        for operation in STALLED
        for what, seen in (("", STALLED[operation]), ("recovered: ", "2"), ("its rows: ", "right"))
    },
    "closing": {"finalize": "ConnectionError", "attach anew": "TimeoutError", "used again": "2", "its rows": "right"},
    "forking": {
        "the parent's client": "RuntimeError",
        "a new client": "RuntimeError",
        "the parent afterwards": "2",
        "its rows": "right",
    },
    "finalizer": {"the pool's outcome": "(None, 1, 2)", "valid rows that a blind second run publishes": "0"},
    "full": {
        "stage a third group": "RuntimeError",
        "finalize the first": "PublishError from RuntimeError",
        "what is there of it": "staged ['1', '1', '1', '1'], published ['MissingRows', 'MissingRows']",
        "recover it after room was made": "2",
        "its rows": "right",
    },
}
"""By scene and by what is done in it: the value, or the beginning of the names of the error and its cause."""


def test_every_scene_has_what_must_be_seen():
    assert SEEN.keys() == SCENES.keys()


@pytest.mark.deep
@pytest.mark.parametrize("scene", SCENES)
def test_a_failing_queue_loses_nothing(scene):
    """In a process and on a Ray of its own: it kills and stops the queue's processes."""
    command = [sys.executable, "-m", "reliability.outages", "--json", scene]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    sights = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = {sight["what"]: sight["error"] or sight["value"] for sight in sights}
    expected = SEEN[scene]
    assert {what: found[what] for what in expected if not found[what].startswith(expected[what])} == {}


# ── small, on the queue that the tests share ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def group(queue):
    group = a_group(900)
    stage(queue, group)
    yield group
    for partition in (STAGING, TRAIN):
        queue.clear_samples(None, partition)


@pytest.mark.parametrize(
    ("operation", "error"),
    [pytest.param("get_samples", TimeoutError, marks=pytest.mark.deep), ("put_samples", PublishError)],
)
def test_a_controller_that_stalls_costs_nothing(queue, group, operation, error):
    with pytest.raises(error):
        finalize(FinalizerSettings(StopsAt(queue, operation, PROCESSES[0]), ARGUMENTS), group)
    assert recover(FinalizerSettings(queue, ARGUMENTS), group) == 2
    assert judged(queue, group) == "right"


def test_attaching_has_a_deadline_too(queue):
    with stopped(PROCESSES[0]), pytest.raises(TimeoutError, match=r"could not be attached to in 0.5 s"):
        TransferQueueDataPlane(0.5).tags(STAGING)
    assert TransferQueueDataPlane(60.0).tags(STAGING) == {}


def test_a_forked_child_is_told_and_its_parent_goes_on(queue, group):
    for plane in (queue, TransferQueueDataPlane(60.0)):
        assert in_a_fork("tags", plane.tags, STAGING).error == "RuntimeError"
    assert finalize(FinalizerSettings(queue, ARGUMENTS), group) == 2
    assert judged(queue, group) == "right"
