"""The files that the gate writes and reads: hostile text gets into them, and nothing that they name is run."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.reference import Reference
from rollproof.properties.cli import main
from rollproof.properties.gate.text import LONGEST_NAME, repeated, safe
from rollproof.properties.wire.codec import dump
from rollproof.spec.judge.requests import FinalizeRollout, PrefixDigest
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig

ADAPTER = """
from pathlib import Path

Path("ran").touch()

from rollproof.properties.adapters.protocol import Adapter, Refusal
from rollproof.spec.judge.requests import Area


class Mine(Adapter):
    name = "mine"
    areas = frozenset({Area.DIGEST})

    def prefix_digest(self, token_ids):
        ANSWER
"""
COMMAND = f"subprocess:{shlex.join([sys.executable, '-c', 'open(chr(114), chr(119))'])}"
"""Leaves a file ``r``."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, list(arguments))


@pytest.fixture
def adapter(tmp_path, monkeypatch, request):
    """Write an adapter of the test's own, which leaves a file ``ran`` where it is imported; return its name."""

    def written(answer):
        name = f"adapter_{abs(hash(request.node.nodeid))}"
        (tmp_path / f"{name}.py").write_text(ADAPTER.replace("ANSWER", answer), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return f"{name}:Mine"

    return written


def recorded(implementation, **more):
    """Write a file with a request, for ``replay`` or for ``fuzz --measure``, that names an implementation."""
    content = {"implementation": implementation, "invariant": "DIGEST-3", "request": dump(PrefixDigest((True,)))}
    Path("file.json").write_text(json.dumps(content | more), encoding="utf-8")
    return "file.json"


REPLAY = ("replay", {"format": "rollproof-replay-1"})
MEASURE = ("fuzz --measure", {"format": "rollproof-limit-1"})


@pytest.mark.parametrize(("command", "more"), [REPLAY, MEASURE])
@pytest.mark.parametrize("named", [COMMAND, "adapter", "no-such", None, 7, ["spec"], {"a": 1}])
def test_a_file_cannot_name_what_is_not_installed(run, adapter, named, command, more):
    name = adapter("return 'a'") if named == "adapter" else named
    result = run(*command.split(), recorded(name, **more))
    assert {path.name for path in Path().iterdir()} <= {"file.json", f"{name}".replace(":Mine", ".py")}, "it was run"
    assert result.exit_code == 2
    assert "a file can only name an installed one" in result.output
    assert f"rollproof {command} file.json IMPLEMENTATION" in result.output
    assert "Traceback" not in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(("command", "more"), [REPLAY, MEASURE])
def test_a_file_names_what_is_installed(run, command, more):
    assert run(*command.split(), recorded("spec", **more)).exit_code == 0


@pytest.mark.parametrize(("command", "more"), [REPLAY, MEASURE])
def test_the_command_line_names_anything(run, adapter, command, more):
    answer = "return 'a'" if command == "replay" else "raise KeyError(token_ids)"
    result = run(*command.split(), recorded(COMMAND, **more), adapter(answer))
    assert result.exit_code == 1
    assert Path("ran").exists()
    assert not Path("r").exists()


def test_files_hold_no_name_that_they_must_not_hold_and_the_command_does(run, adapter):
    name = adapter("return 'a'")
    output = run("check", name, "--profile", "quick", "--jobs", "1", "--report", "out").output
    (path, *_) = Path("out/replays").glob("*.json")
    assert json.loads(path.read_text(encoding="utf-8"))["implementation"] is None
    assert f"rollproof replay {path} {name}" in output
    assert run("replay", str(path), name).exit_code == 1


# ── hostile text ────────────────────────────────────────────────────────────────────────────────────────────────────

HOSTILE = r"'\ud800 \x00 \x1b[31m </pre>'"


@pytest.mark.parametrize("answer", [f"raise KeyError({HOSTILE})", f"return {HOSTILE}"])
def test_every_format_holds_a_surrogate(run, adapter, monkeypatch, answer):
    result = run("check", adapter(answer), "--profile", "quick", "--jobs", "1", "--report", "out")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    result.output.encode("utf-8")
    assert "\x1b[31m" not in result.output
    for name in ("report.html", "report.json", "report.sarif", "junit.xml"):
        assert Path("out", name).read_bytes().decode("utf-8")
    ElementTree.parse("out/junit.xml")


UNKIND = {
    "an error without a message": "raise type('Mute', (KeyError,), {'__str__': lambda self: 1 / 0})('x')",
    "the end of the program": "raise SystemExit(0)",
    "a refusal that is not a string": "raise Refusal(5)",
    "an answer that cannot be shown": "return type('Mute', (), {'__repr__': lambda self: 1 / 0})()",
    "an answer that cannot be compared": "return type('Mute', (str,), {'__eq__': lambda self, other: 1 / 0})('x')",
}


@pytest.mark.parametrize("answer", UNKIND.values(), ids=list(UNKIND))
def test_the_gate_reports_whatever_an_implementation_does(run, adapter, answer):
    result = run("check", adapter(answer), "--profile", "quick", "--jobs", "1", "--report", "out")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    assert Path("out/report.html").exists()


def test_an_adapter_that_ends_the_program_while_it_is_loaded_has_not_passed(run, adapter):
    name = adapter("return 'a'\n\n\nraise SystemExit(0)")
    result = run("check", name, "--profile", "quick", "--jobs", "1")
    assert (result.exit_code, "could not be loaded: SystemExit: 0" in result.output) == (2, True)


def test_a_long_command_has_files(run):
    program = "import json,sys\nfor line in sys.stdin: print(json.dumps(ANSWER), flush=True)"
    described = "{'id': json.loads(line)['id'], 'description': dict(name='p', protocol='rollproof-oracle-1', "
    described += "areas=['digest'], operations=['prefix_digest']), 'accepted': 'a'}"
    answer = f"{described} if 'describe' in line else {{'id': json.loads(line)['id'], 'accepted': 'a'}}"
    words = [sys.executable, "-c", program.replace("ANSWER", answer), "x" * 300]
    name = f"subprocess:{shlex.join(words)}"
    result = run("check", name, "--profile", "quick", "--jobs", "1", "--report", "out")
    assert result.exit_code == 1, result.output
    assert Path("out/report.html").exists()
    (path, *_) = Path("out/replays").glob("*.json")
    assert run("replay", str(path), name).exit_code == 1


@pytest.mark.parametrize("name", ["a" * 1000, "a/" * 500, "\ud800" * 300, "ä" * 300])
def test_names_of_files_are_bounded_and_distinct(name, tmp_path):
    assert len(safe(name)) <= LONGEST_NAME
    assert safe(name + "b" * 100) != safe(name + "c" * 100)
    (tmp_path / f"{safe(name + 'b' * 100)}-{safe(name)}.json").touch()


def test_a_repeated_command_can_be_pasted():
    assert repeated("rollproof replay", "a b.json", "impl") == "rollproof replay 'a b.json'"
    assert shlex.split(repeated("rollproof replay", "f", "subprocess:x --y")) == [
        "rollproof",
        "replay",
        "f",
        "subprocess:x --y",
    ]


def test_replay_of_an_answer_that_no_check_can_read_is_a_finding(run, adapter, monkeypatch):
    monkeypatch.setattr(Reference, "finalize_rollout", lambda *_: 5)
    request = FinalizeRollout(ReassemblerConfig(), "r", None, 1.0, Staging())
    more = {"invariant": "ROLLOUT-1", "request": dump(request), "format": "rollproof-replay-1"}
    result = run("replay", recorded("spec", **more))
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert "type the contract does not allow (AttributeError" in result.output


# ── declared deviations ─────────────────────────────────────────────────────────────────────────────────────────────

DEVIATING = """
from rollproof.properties.adapters.protocol import Deviation
from rollproof.properties.adapters.reference import Reference
from rollproof.spec.judge.requests import Accepted, Area, PrefixDigest

ZEROS = "0" * 64


class Mine(Reference):
    name = "mine"
    areas = frozenset({Area.DIGEST})
    deviations = (
        Deviation(
            "EMPTY", Area.DIGEST, "2", "The prefix of nothing is zeros.",
            lambda request, _: (Accepted(ZEROS),) if request == PrefixDigest(()) else (), (PrefixDigest(()),)
        ),
    )

    def prefix_digest(self, token_ids):
        return super().prefix_digest(token_ids) if token_ids else ZEROS
"""


def test_a_deviation_is_no_held_invariant_and_strict_makes_it_a_failure(run, tmp_path, monkeypatch):
    (tmp_path / "deviating_adapter.py").write_text(DEVIATING, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ("check", "deviating_adapter:Mine", "--profile", "quick", "--jobs", "1", "--report", "out")

    def page():
        return Path("out/report.html").read_text(encoding="utf-8")

    def log():
        (result,) = json.loads(Path("out/report.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
        return result["level"]

    def failures():
        return len(ElementTree.parse("out/junit.xml").findall(".//failure"))

    mild = run(*arguments)
    assert mild.exit_code == 0
    assert "held, except for declared deviations: EMPTY" in mild.output
    assert "all invariants held" not in mild.output + page()
    assert (log(), failures()) == ("note", 0)
    strict = run(*arguments, "--strict")
    assert strict.exit_code == 1
    assert "deviates: EMPTY" in strict.output
    assert "the check is strict" in page()
    assert (log(), failures()) == ("error", 1)


def test_strict_changes_nothing_without_a_deviation(run):
    result = run("check", "spec", "--area", "digest", "--profile", "quick", "--jobs", "1", "--strict")
    assert result.exit_code == 0
    assert "all invariants held" in result.output
