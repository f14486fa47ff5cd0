"""``subprocess:COMMAND``: our own oracle behind a pipe holds, and every way to fail is told apart."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import offers
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError, LeftOut
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.strategies.rollouts.recipes import Nest, realize
from rollproof.properties.wire.program import Program
from rollproof.spec.judge.requests import (
    CAPABILITIES,
    Accepted,
    Area,
    ChainDigest,
    Crashed,
    ExtrasDigest,
    Linearize,
    LinearizeGrowth,
    PrefixDigest,
    Refused,
)

ORACLE = shlex.join([str(Path(sys.executable).with_name("rollproof")), "oracle"])
LISTED = json.dumps(["prefix_digest", "chain_digest", "unheard_of"])
PROGRAM = f"""
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    answer = {{"id": asked["id"]}}
    if asked["operation"] == "describe":
        answer["description"] = dict(
            name="p", protocol="rollproof-oracle-1", areas=["digest"], operations={LISTED})
    else:
        ACT
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def program(tmp_path):
    """Return a program with a valid handshake that then acts as told."""

    def written(act, patience=30.0):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.replace("ACT", act), encoding="utf-8")
        return Program(shlex.join([sys.executable, str(path)]), patience)

    return written


@pytest.mark.parametrize("examples", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_our_oracle_behind_a_pipe_holds(examples):
    mirrored = load_implementation(f"subprocess:{ORACLE}")
    assert pick_areas(mirrored, ()) == tuple(area for area in Area if area not in CAPABILITIES)
    assert pick_areas(mirrored, CAPABILITIES) == CAPABILITIES
    assert offers(mirrored, Linearize)
    assert not offers(mirrored, LinearizeGrowth), "lines of Python are counted in one process"
    report = Check(mirrored, tuple(Area), PROFILES["quick"], seed=0, max_examples=examples).run()
    assert report.falsified == []
    assert report.not_exercised == []
    assert all(tally.right == tally.driven for tally in report.codes.values())
    assert 0 < report.left_out < report.requests / 20
    assert [name for name, tally in report.invariants.items() if tally.examples == 0] == ["LINEAGE-5", "MERGE-6"]


def test_what_is_too_deep_is_left_out_and_said(run):
    mirrored = load_implementation(f"subprocess:{ORACLE}")
    with pytest.raises(LeftOut, match="deep"):
        ask(mirrored, ExtrasDigest(realize(Nest("dict", 1000))))
    output = run("check", f"subprocess:{ORACLE}", "--area", "receipt", "--profile", "quick", "--jobs", "1").output
    assert "skipped: not supported" in " ".join(output.split())


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("act", "expected", "says"),
    [
        ('answer["accepted"] = "a" * 64', Accepted("a" * 64), ""),
        ('answer["refused"] = "no: why"', Refused("no: why"), ""),
        ('answer["crashed"] = {"error": "Oops", "message": "m"}', Crashed("ProgramCrashed"), "Oops"),
        ('answer["error"] = {"code": "bad_request", "message": "m"}', Crashed("ProgramCrashed"), "bad_request"),
        ('answer["accepted"] = {"$nope": 1}', Crashed("MalformedAnswer"), "$nope"),
        ('answer["nonsense"] = 1', Crashed("MalformedAnswer"), "nonsense"),
        ('answer = {"id": 0, "accepted": "a"}', Crashed("MalformedAnswer"), "another id"),
        ('print("debug")', Crashed("MalformedAnswer"), "debug"),
        ('raise ValueError("the last words")', Crashed("ProgramDied"), "the last words"),
        ("os._exit(3)", Crashed("ProgramDied"), "exit code 3"),
        ('os.write(1, b"{")\n        os._exit(0)', Crashed("MalformedAnswer"), "no"),
    ],
)
def test_answers_and_crashes(program, act, expected, says):
    implementation = program(act)
    answer = ask(implementation, PrefixDigest((1,)))
    assert answer == expected
    assert says in getattr(answer, "message", "")
    assert ask(implementation, PrefixDigest((1,))) == expected, "it is started again"


def test_a_program_that_takes_too_long_is_ended_and_started_again(program):
    implementation = program(
        'time.sleep(0 if asked["token_ids"] else 60)\n        answer["accepted"] = "a"', patience=2.0
    )
    assert ask(implementation, PrefixDigest(())) == Crashed("TimedOut")
    assert ask(implementation, PrefixDigest((1,))) == Accepted("a")


def test_program_is_asked_what_it_offers_and_nothing_else(program):
    implementation = program('answer["accepted"] = "a"')
    assert implementation.areas == {Area.DIGEST}
    assert [offers(implementation, kind) for kind in (PrefixDigest, ChainDigest, ExtrasDigest)] == [True, True, False]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "no valid handshake"),
        ("no-such-program", "No such file"),
        (f"{sys.executable} -c 1", "exit code 0"),
        (f"{sys.executable} -c 'raise SystemExit(\"sorry\")'", "sorry"),
        (f"{sys.executable} -c 'print(1)'", "expected an object"),
        (f"{sys.executable} -c 'print({{}})'", "another id"),
        (f"{sys.executable} -c 'print({{\"id\": 1}})'", "JSON"),
        ('echo \'{"id": 1, "description": 5}\'', "not a description"),
        ('echo \'{"id": 1, "description": {"name": "x", "areas": ["nonsense"], "operations": []}}\'', "unknown area"),
        (
            'echo \'{"id": 1, "description": {"name": "x", "areas": [], "operations": [], "protocol": "2"}}\'',
            "it speaks '2'",
        ),
    ],
)
def test_a_program_without_a_valid_handshake(run, command, says):
    result = run("check", f"subprocess:{command}")
    assert result.exit_code == 2
    assert says in result.output
    with pytest.raises(InputError):
        load_implementation(f"subprocess:{command}")


# ── what a program leaves behind ────────────────────────────────────────────────────────────────────────────────────

DAEMON = (
    "__import__('subprocess').Popen([sys.executable, '-c', "
    '\'import os, time; open("pid-%d" % os.getpid(), "w"); time.sleep(600)\'], start_new_session=True)'
)
"""A descendant in a session of its own, which inherits the program's output and leaves a file with its id."""


@pytest.fixture
def descendants(tmp_path, monkeypatch):
    """Yield the ids of the daemons that were started here; kill what is left of them in the end."""
    monkeypatch.chdir(tmp_path)

    def found(count):
        until(lambda: len([*tmp_path.glob("pid-*")]) >= count)
        return [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]

    yield found
    for path in tmp_path.glob("pid-*"):
        with suppress(ProcessLookupError):
            os.kill(int(path.name.removeprefix("pid-")), signal.SIGKILL)


def until(holds):
    """Wait for what happens elsewhere, for as long as a busy machine may need."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux hands a descendant's descendants over")


@LINUX
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (f"{DAEMON}\n        time.sleep(600)", "TimedOut"),
        (f"{DAEMON}\n        time.sleep(1)\n        os._exit(3)", "ProgramDied"),
        (
            f"{DAEMON}\n        time.sleep(1)\n        sys.stdout.close()\n        os.close(1)\n        os._exit(0)",
            "ProgramDied",
        ),
    ],
)
def test_a_descendant_that_holds_the_output_does_not_hold_the_gate(program, descendants, act, error):
    implementation = program(act, patience=4.0 if error == "TimedOut" else 8.0)
    started = time.monotonic()
    assert ask(implementation, PrefixDigest((1,))).error == error
    assert time.monotonic() - started < 60, "the daemon sleeps for 600 s"
    (pid,) = descendants(1)
    until(lambda: gone(pid))


def test_a_program_that_does_not_read_is_ended(program):
    implementation = program(
        'answer["accepted"] = "a" * 64\n        print(json.dumps(answer), flush=True)\n        time.sleep(600)'
    )
    assert ask(implementation, PrefixDigest((1,))) == Accepted("a" * 64)
    implementation.patience = 2.0
    assert ask(implementation, PrefixDigest((1,) * 100_000)).error == "TimedOut"


ASKER = """
import sys, time
from rollproof.properties.adapters.asking import ask
from rollproof.properties.wire.program import Program
from rollproof.spec.judge.requests import PrefixDigest

implementation = Program(sys.argv[1])
print(ask(implementation, PrefixDigest((1,))), flush=True)
time.sleep(600)
"""


@LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_the_one_that_asked(descendants, tmp_path, number):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("ACT", f'{DAEMON}\n        answer["accepted"] = "a"'), encoding="utf-8")
    command = [sys.executable, "-c", ASKER, shlex.join([sys.executable, str(path)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asker:
        try:
            assert "Accepted" in asker.stdout.readline()
            (pid,) = descendants(1)
            assert not gone(pid)
            asker.send_signal(number)
            asker.wait()
            until(lambda: gone(pid))
        finally:
            asker.kill()


@LINUX
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.deep), signal.SIGHUP])
def test_no_worker_outlives_a_check(descendants, tmp_path, number):
    path = tmp_path / "program.py"
    act = f'answer["accepted"] = "a"\n        {DAEMON}\n        time.sleep(0.5)'
    path.write_text(
        PROGRAM.replace("ACT", act).replace('areas=["digest"]', 'areas=["digest", "receipt"]'), encoding="utf-8"
    )
    name = f"subprocess:{shlex.join([sys.executable, str(path)])}"
    rollproof = str(Path(sys.executable).with_name("rollproof"))
    with subprocess.Popen(
        [rollproof, "check", name, "--jobs", "2"], stdout=subprocess.DEVNULL, start_new_session=True
    ) as check:
        try:
            pids = descendants(1)
            group = [int(one.parent.name) for one in Path("/proc").glob("[0-9]*/stat") if session(one) == check.pid]
            assert len(group) > 2, "workers"
            check.send_signal(number)
            check.wait()
            until(
                lambda: all(
                    gone(pid) or session(Path(f"/proc/{pid}/stat")) is None for pid in [*group, *pids, *descendants(1)]
                )
            )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(check.pid, signal.SIGKILL)


def session(status):
    """Return the session of a process, None for one that has ended."""
    try:
        state, _, _, found = status.read_bytes().rpartition(b")")[2].split()[:4]
    except OSError:
        return None
    return None if state == b"Z" else int(found)
