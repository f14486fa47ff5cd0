"""``rollproof init``: the skeleton names every method of the areas, is tidy, and fails its first check."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from attrs import fields, resolve_types
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.commands.init import skeleton
from rollproof.properties.gate import run
from rollproof.properties.gate.load import load_implementation
from rollproof.spec.judge.requests import KINDS, Area
from rollproof.spec.records import CAPABILITY


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a fresh folder that is the current one; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_adapter", None)


AREAS = [area.value for area in Area]


def init(*words):
    return CliRunner().invoke(main, ["init", *words])


def test_the_skeleton_of_all_areas_has_every_method_and_is_tidy(here):
    result = init(*AREAS)
    assert result.exit_code == 0, result.output
    assert "rollproof check my_adapter:Mine --profile quick" in result.output
    found = load_implementation("my_adapter:Mine")
    assert found.areas == frozenset(Area)
    tree = ast.parse((here / "my_adapter.py").read_text(encoding="utf-8"))
    arguments = {
        node.name: [argument.arg for argument in node.args.args[1:]]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert arguments == {
        kind.method: [field.name for field in fields(kind.request) if field.metadata != CAPABILITY]
        for kind in KINDS
        if not kind.measured
    }
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "120"]
    for command in (["check", "--select", "E4,E7,E9,F,I,UP"], ["format", "--check"]):
        checked = subprocess.run(
            [*ruff, *command, *options, "my_adapter.py"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout


def test_every_type_that_the_skeleton_names_can_be_resolved(here):
    assert init(*AREAS).exit_code == 0
    namespace = {}
    exec(compile((here / "my_adapter.py").read_text(encoding="utf-8"), "my_adapter.py", "exec"), namespace)
    for kind in KINDS:
        for annotation in getattr(namespace["Mine"], kind.method).__annotations__.values():
            eval(annotation, dict(namespace))


def test_the_first_check_of_a_skeleton_fails_and_names_the_method(here, monkeypatch):
    monkeypatch.setattr(run, "SHRINK_SECONDS", 0.1)
    assert init("terminal").exit_code == 0
    words = ["check", "my_adapter:Mine", "--profile", "quick", "--max-examples", "1", "--jobs", "1"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "NotImplementedError" in result.output


def test_a_skeleton_replaces_no_file(here):
    (here / "my_adapter.py").write_text("mine\n", encoding="utf-8")
    result = init("digest")
    assert result.exit_code == 2
    assert "my_adapter.py: File exists" in result.output
    assert (here / "my_adapter.py").read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing argument"),
        (("group", "--class", "2x"), "expected a name of a Python class"),
        (("weather",), "'weather' is not one of"),
        (("digest", "--file", "nowhere/a.py"), "nowhere/a.py: No such file"),
    ],
)
def test_wrong_words_are_refused(here, words, message):
    result = init(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert list(here.iterdir()) == []


def test_a_skeleton_does_not_depend_on_what_was_read_before():
    kinds = [kind for kind in KINDS if kind.area is Area.DIGEST]
    before = skeleton("Mine", ["digest"], kinds, "my_adapter:Mine")
    for kind in kinds:
        resolve_types(kind.request)
    assert skeleton("Mine", ["digest"], kinds, "my_adapter:Mine") == before
