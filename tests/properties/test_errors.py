"""A plain installation, without torch and the rest of the extras: what it does, and what it says it cannot do."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from recordings import NAMES, group

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.errors import EXTRAS, extra_hint

ROOT = Path(__file__).parents[2]
ABSENT = sorted({module for modules in EXTRAS.values() for module in modules})
HIDE = f"""
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""
CHECK = ("check", "--profile", "quick", "--max-examples", 1, "--jobs", 1)
PROGRAM = "from rollproof.properties.cli import main; main()"
SESSION = """
import json, sys
from click.testing import CliRunner
from rollproof.properties.cli import main
results = []
for line in sys.stdin:
    result = CliRunner().invoke(main, json.loads(line))
    results.append((result.exit_code, result.output, repr(result.exception)))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a function that runs commands in one process that has only what the plain installation has."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(HIDE, encoding="utf-8")

    def run(*commands):
        session = subprocess.run(
            [sys.executable, "-c", SESSION],
            input="".join(json.dumps([str(word) for word in command]) + "\n" for command in commands),
            env={**os.environ, "PYTHONPATH": str(folder)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert session.returncode == 0, session.stderr
        return json.loads(session.stdout)

    return run


@pytest.fixture
def recorded(tmp_path):
    """Return a file of two recorded groups, whose tensors are in shards."""
    path, plane = tmp_path / "run.jsonl", MemoryDataPlane()
    with Recorder(path, plane, inline_bytes=16) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        for group_id in ("g1", "g2"):
            positional, named = group(plane, group_id)
            reassembler.finalize_group(*positional, **named)
    return path


def test_all_that_needs_no_extra_runs_without_one(bare, recorded, tmp_path):
    program = "subprocess:" + shlex.join([sys.executable, "-c", PROGRAM, "oracle"])
    commands = [
        (*CHECK, "spec", "--area", "rollout", "--area", "retained", "--report", tmp_path / "report"),
        (*CHECK, program, "--area", "terminal"),
        ("oracle", "--schema"),
        ("vectors", "verify", ROOT / "vectors", "spec"),
        ("rules", "GROUP-4"),
        ("rules", "--evidence"),
        ("audit", recorded, "--jobs", 1),
        ("mutants", "clears-listed-keys", "--jobs", 1),
    ]
    for command, (code, output, error) in zip(commands, bare(*commands), strict=True):
        assert code == 0, (command, output, error)


@pytest.mark.deep
def test_every_area_is_checked_without_an_extra(bare):
    ((code, output, error),) = bare((*CHECK, "spec"))
    assert code == 0, (output, error)


def test_every_command_explains_itself_without_an_extra(bare):
    (found,) = bare(("--help",))
    names = [line.split()[0] for line in found[1].partition("Commands:")[2].splitlines() if line.strip()]
    assert {"check", "check-plane", "fuzz", "prove"} <= set(names)
    assert [code for code, _, _ in bare(*((name, "--help") for name in names))] == [0] * len(names)


def test_what_needs_an_extra_names_it_in_one_line(bare):
    commands = {
        ("check", "impl"): "impl: needs torch: pip install 'rollproof[torch]'",
        ("check", "sketch"): "sketch: needs torch: pip install 'rollproof[torch]'",
        ("check-plane", "memory"): "check-plane needs torch: pip install 'rollproof[torch]'",
        ("mutants", "--right"): "mutants needs torch: pip install 'rollproof[torch]'",
        ("prove", "values"): "prove needs crosshair: pip install 'rollproof[prove]'",
    }
    found = bare(*commands)
    assert [(code, output) for code, output, _ in found] == [(2, f"rollproof: {line}\n") for line in commands.values()]


def test_every_extra_that_a_hint_names_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert EXTRAS.keys() <= project["optional-dependencies"].keys()
    assert extra_hint(ModuleNotFoundError("", name="torch.nn")) == "needs torch: pip install 'rollproof[torch]'"
    assert extra_hint(ModuleNotFoundError("", name="torchvision")) is None
    assert extra_hint(ImportError("", name="torch")) is None
