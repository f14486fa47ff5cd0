"""Worker processes: results in order, every message heard, and no worker left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollproof.properties.processes import processes, tell

PATIENCE = 120
"""Seconds until something that never ends counts as a failure."""


def square(number):
    for step in range(number):
        tell((number, step))
    return number * number


def fail(number):
    raise ValueError(f"cannot do {number}")


def unprepared(_):
    raise LookupError("nothing here")


HERE = []


def keep(bell):
    HERE.append(bell)


def until_bell():
    HERE[-1].wait()
    return "stopped"


def endless(folder):
    (Path(folder) / f"{os.getpid()}").touch()
    time.sleep(3600)


def test_run_returns_results_in_order_after_all_messages():
    heard = []
    with processes(2) as workers:
        results = workers.run(square, [(number,) for number in (3, 0, 40, 1)], heard.append)
        assert len(heard) == 44
    assert results == [9, 0, 1600, 1]
    assert sorted(heard) == sorted((number, step) for number in (3, 40, 1) for step in range(number))


def test_run_and_submit_raise_the_error_of_a_task():
    with processes(2) as workers, pytest.raises(ValueError, match="cannot do 7"):
        workers.submit(fail, 7)()
    with processes(2) as workers, pytest.raises(ValueError, match="cannot do 7"):
        workers.run(fail, [(7,)])


def test_a_worker_that_cannot_begin_raises_why():
    with processes(1, unprepared) as workers, pytest.raises(LookupError, match="nothing here"):
        workers.submit(square, 1)()


def test_workers_are_told_to_stop_while_a_result_is_awaited():
    with processes(1, keep, lambda: True) as workers:
        assert workers.submit(until_bell)() == "stopped"


def test_workers_are_told_to_stop_when_the_context_ends():
    with processes(1, keep) as workers:
        result = workers.submit(until_bell)
    assert result() == "stopped"


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
from test_processes import endless
from rollproof.properties.processes import processes
if __name__ == "__main__":
    with processes(2) as workers:
        workers.run(endless, [(sys.argv[1],)] * 2)
"""


def started(command, ready, stdout=subprocess.DEVNULL):
    """Start a process in a group of its own, as a terminal does; return it and its workers once ``ready`` holds."""
    process = subprocess.Popen(
        command, start_new_session=True, stdout=stdout, stderr=subprocess.DEVNULL, cwd=Path(__file__).parent
    )
    deadline = time.monotonic() + PATIENCE
    while not ready(process) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_a_process_that_is_interrupted_or_killed(tmp_path, end):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)), encoding="utf-8")
    folder = tmp_path / "workers"
    folder.mkdir()
    process, children = started([sys.executable, str(script), str(folder)], lambda _: len(list(folder.iterdir())) == 2)
    assert {int(path.name) for path in folder.iterdir()} <= {child.pid for child in children}
    if end is signal.SIGINT:
        os.killpg(process.pid, end)
    else:
        process.kill()
    assert process.wait(PATIENCE) != 0
    assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []


def test_interrupting_a_check_says_what_was_checked_and_leaves_no_process(tmp_path):
    command = [Path(sys.executable).with_name("rollproof"), "check", "spec", "--profile", "deep", "--jobs", "2"]
    output = tmp_path / "output"

    def busy(process):
        return len(psutil.Process(process.pid).children(recursive=True)) >= 4

    with output.open("w", encoding="utf-8") as file:
        process, children = started(command, busy, stdout=file)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert re.search(r"spec: interrupted after [\d,]+ of [\d,]+ examples", output.read_text(encoding="utf-8"))
    assert psutil.wait_procs(children, timeout=PATIENCE)[1] == []
