"""A running Ray cluster does the work of fuzz and audit, without any effect on the results."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
import types
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import parent_process
from pathlib import Path

import planted
import psutil
import pytest
from campaigns import outcome
from click.testing import CliRunner
from recordings import damaged

from rollproof.properties.audit.run import check_files
from rollproof.properties.cli import main
from rollproof.properties.cluster import placed
from rollproof.properties.errors import InputError
from rollproof.properties.fuzz.campaign import Campaign, run_campaign
from rollproof.properties.fuzz.corpus import Corpus
from rollproof.spec.judge.requests import Area

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def address(queue, tmp_path, monkeypatch):
    """Return the address of the Ray that tests share."""
    import ray

    monkeypatch.chdir(tmp_path)
    return ray.get_runtime_context().gcs_address


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def swallowed(corpus):
    return Campaign.of("planted:Swallowed", planted.Swallowed(), (Area.RECEIPT,), 0, corpus)


@pytest.mark.deep
def test_a_campaign_finds_what_one_process_finds(address, tmp_path):
    runs = [swallowed(tmp_path / str(index)) for index in range(2)]
    run_campaign(runs[0], 400, None, 1, lambda: None)
    with placed(address, 2, 1) as cluster:
        run_campaign(runs[1], 400, None, cluster, lambda: None)
    assert runs[0].findings
    assert outcome(runs[0]) == outcome(runs[1])
    kept = [{file.name: file.read_bytes() for file in (tmp_path / str(index)).rglob("*-*")} for index in range(2)]
    assert kept[0] == kept[1]


@pytest.mark.deep
def test_an_interrupt_keeps_what_was_found(address, tmp_path):
    pressed = []

    def interrupt():
        if run.findings and not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGINT))

    run = swallowed(tmp_path)
    with placed(address, 1, 1) as cluster:
        run_campaign(run, 100_000, None, cluster, interrupt)
    assert run.findings
    assert run.done < 2000
    assert any(Corpus(tmp_path).of(name) for name in run.states)


@pytest.mark.deep
def test_an_audit_reports_what_one_process_reports(address, tmp_path):
    path = damaged(tmp_path / "run.jsonl")
    reports = []
    for place in (("--jobs", 1), ("--jobs", 2, "--ray", "auto")):
        assert invoke("audit", path.name, *place, "--report", "report.json").exit_code == 2
        report = Path("report.json").read_bytes().splitlines()
        reports.append([line for line in report if not line.startswith(b' "seconds"')])
        assert len(reports[-1]) == len(report) - 1 > 20
    assert reports[0] == reports[1]


# ── the workers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(bell):
    planted.BELL = bell


def work(number):
    if number == 7:
        raise KeyError(number)
    return number, os.getpid(), Path.cwd()


def lose_the_machine(marker):
    """End this process's actor as the loss of its machine would, the first time."""
    if not marker.exists():
        marker.touch()
        os.kill(parent_process().pid, signal.SIGKILL)
        signal.pause()
    return "done"


def wait_for_the_bell():
    return planted.BELL.wait(60)


def runs(process):
    """Return whether there is such a process, and it is not a zombie."""
    return psutil.pid_exists(process) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE


def test_cluster_workers_replace_each_other_and_end(address, tmp_path):
    stop = []
    with (
        placed(address, 2, 1) as cluster,
        cluster.workers(begin, lambda: bool(stop)) as workers,
    ):
        results = [workers.submit(work, number) for number in range(20)]
        found = [result() for result in results[:7] + results[8:]]
        assert [number for number, _, _ in found] == [*range(7), *range(8, 20)]
        processes = {process for _, process, _ in found}
        assert len(processes) == len(workers) == 2
        assert {folder for _, _, folder in found} == {tmp_path}
        with pytest.raises(KeyError, match="7"):
            results[7]()
        lost = workers.submit(lose_the_machine, tmp_path / "lost")
        others = [workers.submit(work, number) for number in range(5)]
        assert lost() == "done"
        assert [other()[0] for other in others] == [*range(5)]
        assert len(workers) == 1
        waiting = workers.submit(wait_for_the_bell)
        stop.append(True)
        assert waiting()
        (tmp_path / "lost").unlink()
        with pytest.raises(InputError, match="all workers were lost"):
            workers.submit(lose_the_machine, tmp_path / "lost")()
    deadline = time.monotonic() + 30
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [process for process in processes if runs(process)]


# ── what a user can get wrong ───────────────────────────────────────────────────────────────────────────────────────


def refused(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    return line


def test_more_workers_than_processors(address):
    assert "10000 workers requested, expected at most its 8" in refused(
        "fuzz", "impl", "--examples", 1, "--workers", 10_000, "--ray", address
    )


def test_an_implementation_that_only_this_process_has(address, monkeypatch):
    here = types.ModuleType("only_here")
    here.Swallowed = planted.Swallowed
    monkeypatch.setitem(sys.modules, "only_here", here)
    line = refused("fuzz", "only_here:Swallowed", "--examples", 1, "--workers", 1, "--ray", address)
    assert "a worker did not start: only_here:Swallowed: could not be loaded: ModuleNotFoundError" in line


def test_workers_of_another_python_are_refused(address, monkeypatch):
    monkeypatch.setattr(platform, "python_version", lambda: "3.0")
    with (
        placed(address, 1, 1) as cluster,
        pytest.raises(InputError, match=r"a worker has Python 3\..*, expected 3\.0, as here"),
        cluster.workers(begin, lambda: False),
    ):
        pass


def test_connecting_to_another_cluster_is_refused(address):
    assert "connected to another cluster" in refused("fuzz", "impl", "--examples", 1, "--ray", "192.0.2.1:6379")


class Silent(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def web_server():
    """Start something that answers, as Ray's dashboard does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_an_address_that_does_not_answer(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with web_server() as port:
        wrong = {
            "127.0.0.1:1": "Connection refused",
            "nonsense": "Invalid address format",
            f"127.0.0.1:{port}": "the server at port",
        }
        lines = {name: refused("fuzz", "impl", "--examples", 1, "--ray", name) for name in wrong}
    for name, line in lines.items():
        assert f"--ray {name}: {wrong[name]}" in line
        assert "; expected the address of a running Ray cluster, as ray.init takes it: auto, or HOST:PORT" in line


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "expected: pip install 'rollproof[ray]'" in refused("fuzz", "impl", "--examples", 1, "--ray", "auto")


def test_what_asks_in_one_process(tmp_path):
    assert "--ray does not apply" in refused("fuzz", "--measure", tmp_path / "input.json", "--ray", "auto")


def test_files_that_a_machine_does_not_have(tmp_path):
    with pytest.raises(InputError, match="expected files that all machines share"):
        partial(check_files, [tmp_path / "run.jsonl"])(None)
