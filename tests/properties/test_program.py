"""``subprocess:COMMAND``: our own oracle behind a pipe holds, and every way to fail is told apart."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.program import Program
from rollproof.properties.asking import ask
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.protocol import LeftOut, offers
from rollproof.properties.strategies.recipes import Nest, realize
from rollproof.spec.requests import (
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
    """A program that introduces itself and then acts as told."""

    def written(act, patience=30.0):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.replace("ACT", act), encoding="utf-8")
        return Program(shlex.join([sys.executable, str(path)]), patience)

    return written


def test_our_oracle_behind_a_pipe_holds():
    mirrored = load_implementation(f"subprocess:{ORACLE}")
    assert pick_areas(mirrored, ()) == tuple(Area)
    assert offers(mirrored, Linearize)
    assert not offers(mirrored, LinearizeGrowth), "lines of Python are counted in one process"
    report = Check(mirrored, tuple(Area), PROFILES["quick"], seed=0, max_examples=3).run()
    assert report.falsified == []
    assert report.undriven == []
    assert all(tally.right == tally.driven for tally in report.codes.values())
    assert 0 < report.left_out < report.requests / 20
    assert [name for name, tally in report.invariants.items() if tally.examples == 0] == ["LINEAGE-5"]


def test_what_is_too_deep_is_left_out_and_said(run):
    mirrored = load_implementation(f"subprocess:{ORACLE}")
    with pytest.raises(LeftOut, match="deep"):
        ask(mirrored, ExtrasDigest(realize(Nest("dict", 1000))))
    output = run("check", f"subprocess:{ORACLE}", "--area", "receipt", "--profile", "quick", "--jobs", "1").output
    assert "inputs left out" in " ".join(output.split())


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


def test_it_is_asked_what_it_offers_and_nothing_else(program):
    implementation = program('answer["accepted"] = "a"')
    assert implementation.areas == {Area.DIGEST}
    assert [offers(implementation, kind) for kind in (PrefixDigest, ChainDigest, ExtrasDigest)] == [True, True, False]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "does not introduce itself"),
        ("no-such-program", "No such file"),
        (f"{sys.executable} -c 1", "exit code 0"),
        (f"{sys.executable} -c 'raise SystemExit(\"sorry\")'", "sorry"),
        (f"{sys.executable} -c 'print(1)'", "expected an object"),
        (f"{sys.executable} -c 'print({{}})'", "another id"),
        (f"{sys.executable} -c 'print({{\"id\": 1}})'", "JSON"),
        ('echo \'{"id": 1, "description": 5}\'', "no description"),
        ('echo \'{"id": 1, "description": {"name": "x", "areas": ["nonsense"], "operations": []}}\'', "unknown area"),
        (
            'echo \'{"id": 1, "description": {"name": "x", "areas": [], "operations": [], "protocol": "2"}}\'',
            "it speaks '2'",
        ),
    ],
)
def test_a_program_that_does_not_introduce_itself(run, command, says):
    result = run("check", f"subprocess:{command}")
    assert result.exit_code == 2
    assert says in result.output
    with pytest.raises(InputError):
        load_implementation(f"subprocess:{command}")
