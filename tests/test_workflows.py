"""The files that GitHub and pre-commit read: they parse, name what exists, and publish only what the tag says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollproof.properties.cli import main
from rollproof.spec.judge.area import CAPABILITIES
from tools.footprint import BARE, OF_EXTRA

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: Any) -> Iterator[Any]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def name_of(path: Path) -> str:
    return path.stem


def test_there_is_a_workflow_for_tests_one_for_releases_and_one_for_every_night() -> None:
    assert {"ci", "publish", "nightly"} <= {path.stem for path in WORKFLOWS}


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_has_few_rights_and_an_end(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_pins_its_actions_by_version(path: Path) -> None:
    used = [step["uses"] for step in steps(read(path)) if step.get("uses", "./") != "./"]
    assert used
    assert [use for use in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@(release/)?v\d+", use)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_names_targets_that_exist(path: Path) -> None:
    commands = "\n".join(step["run"] for step in steps(read(path)) if "run" in step)
    named = re.findall(r"^make ([a-z-]+)", commands, re.MULTILINE)
    assert set(named) <= TARGETS


def test_every_night_the_gate_checks_all_capabilities() -> None:
    nightly = read(ROOT / ".github" / "workflows" / "nightly.yml")
    (check,) = [step["run"] for step in nightly["jobs"]["gate"]["steps"] if "rollproof check" in step.get("run", "")]
    assert f"--capability {','.join(CAPABILITIES)} " in check


def test_ci_tests_the_versions_that_the_package_claims() -> None:
    prefix = "Programming Language :: Python :: "
    claimed = [text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == claimed


def test_the_sessions_in_ci_are_those_of_the_noxfile() -> None:
    sessions = re.findall(r"^@nox.session.*?^def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE | re.DOTALL)
    (line,) = [step["run"] for step in steps(read(WORKFLOWS[0])) if step.get("run", "").startswith("nox ")]
    named = line.partition("--session ")[2].partition(" --")[0].split()
    assert {word.strip('"').partition("-")[0] for word in named} == {*sessions}


def test_an_installation_is_tried_with_every_command_and_every_extra() -> None:
    tried = [command for commands in (BARE, *OF_EXTRA.values()) for command in commands]
    assert {command.split()[0] for command in tried} == set(main.list_commands(None))
    assert OF_EXTRA.keys() == PROJECT["optional-dependencies"].keys() - {"dev", "docs", "peers"}


# ── the action and the image ────────────────────────────────────────────────────────────────────────────────────────

ACTION = read(ROOT / "action.yml")
ADAPTER = """
from rollproof.properties.adapters.reference import Reference


class Right(Reference):
    name = "right"


class Wrong(Right):
    name = "wrong"

    def select_terminal(self, records):
        raise NotImplementedError
"""


def run_action(folder: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the shell steps of the action, with a pip that notes what it would install."""
    inputs = {name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()} | given
    known = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: known[match[1]], text)

    tools = folder / "tools"
    tools.mkdir()
    (tools / "python").write_text('#!/bin/sh\necho "$@" >> "$NOTES"\n', encoding="utf-8")
    (tools / "python").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    for step in ACTION["runs"]["steps"]:
        if "run" not in step:
            continue
        assert step["shell"] == "bash"
        variables = {name: filled(value) for name, value in step["env"].items()}
        result = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder / filled(step.get("working-directory", ".")),
            env={**os.environ, "PATH": path, "NOTES": str(folder / "notes"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            break
    return result


@pytest.mark.parametrize(("name", "code"), [("Right", 0), ("Wrong", 1)])
def test_the_action_installs_checks_and_leaves_what_it_uploads(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "my_adapter.py").write_text(ADAPTER, encoding="utf-8")
    result = run_action(tmp_path, implementation=f"my_adapter:{name}", areas="terminal", profile="quick")
    assert result.returncode == code, result.stderr
    assert (tmp_path / "notes").read_text(encoding="utf-8") == f"-m pip install --quiet {ROOT}\n"
    report = tmp_path / ACTION["inputs"]["report"]["default"]
    assert (report / "report.sarif").is_file()
    assert (report / "report.html").is_file()


def test_the_action_installs_the_extras_that_are_asked_for(tmp_path: Path) -> None:
    run_action(tmp_path, implementation="nothing", extras="torch,tq")
    assert (tmp_path / "notes").read_text(encoding="utf-8") == f"-m pip install --quiet {ROOT}[torch,tq]\n"


def test_the_action_uploads_what_the_check_writes() -> None:
    uploads = [step for step in ACTION["runs"]["steps"] if "uses" in step]
    assert [step["uses"].partition("@")[0] for step in uploads] == [
        "github/codeql-action/upload-sarif",
        "actions/upload-artifact",
    ]
    assert all("!cancelled()" in step["if"] and re.fullmatch(r".+@v\d+", step["uses"]) for step in uploads)


def test_the_image_is_bare_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    last = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    assert [line for line in last if line.startswith("USER")] == ["USER rollproof"]
    assert not [line for line in lines if "[torch]" in line]
    (entry,) = (line for line in last if line.startswith("ENTRYPOINT"))
    assert entry == 'ENTRYPOINT ["rollproof"]'


def test_the_image_is_built_from_what_the_wheel_is_built_from() -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    needed = {*wheel["wheel"]["only-include"], "LICENSE", "README.md", "pyproject.toml"}
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} == needed


@pytest.mark.parametrize(
    ("tag", "says"), [(f"v{PROJECT['version']}", ""), (PROJECT["version"], "expected v"), ("v9.9.9", "tag v9.9.9")]
)
def test_publish_refuses_a_tag_that_is_not_the_version(tag: str, says: str) -> None:
    (script,) = [step["run"] for step in steps(read(ROOT / ".github" / "workflows" / "publish.yml")) if "name" in step]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "GITHUB_REF_NAME": tag}
    result = subprocess.run(
        ["bash", "-e", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert says in result.stderr
    assert (result.returncode == 0) == (not says), result.stderr


def test_the_citation_names_the_version() -> None:
    assert read(ROOT / "CITATION.cff")["version"] == PROJECT["version"]


@pytest.mark.parametrize("path", [form for form in FORMS if form.stem != "config"], ids=name_of)
def test_an_issue_form_has_fields_with_ids_of_their_own(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(fields)) == len(fields) > 0


def test_a_bug_report_asks_for_the_replay_file() -> None:
    assert "replay" in [field.get("id") for field in read(ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml")["body"]]


def test_pre_commit_runs_the_linters_of_make_and_pins_the_others() -> None:
    repos = read(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = {hook["id"] for repo in repos for hook in repo["hooks"]}
    assert {"ruff-check", "ruff-format", "mypy", "codespell", "check-yaml", "check-toml"} <= hooks
    assert all(repo["repo"] == "local" or re.fullmatch(r"v[\d.]+", repo["rev"]) for repo in repos)
