"""Every code block of README.md, CONTRIBUTING.md and docs/ runs as written.

The blocks of a page run in order, in one fresh folder that looks like a clone, or in an empty one where the page says
that it takes one: shell blocks by bash, Python blocks in one namespace of one process. Then `make lint` must still
pass there. Data must parse, and the commands of CI recipes must exist. A block may be left out only
with a comment ``<!-- not run: reason -->`` above it, and only where ``EXEMPT`` says so.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from attrs import frozen
from click import ClickException
from markdown_it import MarkdownIt

from rollproof.properties.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DRY = ("gate", "test", "test-deep")
"""Targets of make that a block may name. They set .venv up and run for minutes, so make says what it would do."""
COPIED = {"benchmarks", "docs", "examples", "impl", "properties", "spec", "tests", "vectors"}
"""Folders that a block may read, or write, without touching ours."""
ANYWHERE = "an empty folder"
"""What a page says that does not need a clone."""
LINT = ("--assume-old=.venv/.ready", "--assume-old=.venv/.peers", "lint")
EXEMPT: dict[str, int] = {}
"""How many blocks of a page are not run."""
LANGUAGES = {"sh", "python", "json", "toml", "yaml", "text", "diff"}
"""Of blocks; ``text`` is output, or a picture."""
SECONDS = 300

INTERPRETER = """
import json, sys, traceback
replies, sys.stdout, namespace = sys.stdout, sys.stderr, {"__name__": "__main__"}
sys.path.insert(0, "")
for line in sys.stdin:
    name, first, source = json.loads(line)
    error = None
    try:
        exec(compile("\\n" * first + source, name, "exec"), namespace)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps(error), file=replies, flush=True)
"""


@frozen
class Block:
    page: Path
    line: int
    """Of its fence, from 1."""
    language: str
    source: str
    exempt: str | None

    @property
    def name(self):
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"


@cache
def blocks_of(page):
    found, remark = [], None
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            match = re.fullmatch(r"<!-- not run: (.+) -->\s*", token.content)
            remark = match and match[1]
        elif token.type in {"fence", "code_block"}:
            found.append(Block(page, token.map[0] + 1, token.info.partition(" ")[0], token.content, remark))
            remark = None
        elif token.type != "list_item_open":
            remark = None
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


# ── running a page ──────────────────────────────────────────────────────────────────────────────────────────────────


def make_clone(folder):
    """Return a copy of what a clone holds, .venv, and a make that only says what it would do."""
    for entry in ROOT.iterdir():
        if entry.is_file() and not (entry.name.startswith(".") and entry.name != ".gitignore"):
            shutil.copy(entry, folder)
        elif entry.name in COPIED:
            shutil.copytree(entry, folder / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(sys.prefix)
    tools = folder / ".tools"
    tools.mkdir()
    (tools / "make").write_text(
        f'#!/bin/sh\ncase "$*" in {"|".join(DRY)}) exec {shutil.which("make")} --dry-run "$@";; esac\n'
        'echo "make $*: not among the targets that pages may name" >&2\nexit 2\n',
        encoding="utf-8",
    )
    (tools / "make").chmod(0o755)
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "COLUMNS": "120"}


@pytest.fixture(scope="session")
def ran(tmp_path_factory):
    """Return the outcome of a page's blocks: by line, the error or None."""

    @cache
    def run_page(page):
        folder = tmp_path_factory.mktemp(page.stem)
        environment = make_clone(folder)
        place = folder
        if ANYWHERE in page.read_text(encoding="utf-8"):
            place = tmp_path_factory.mktemp("empty")
        common = {"cwd": place, "env": environment, "text": True}
        outcomes, interpreter = {}, None
        for block in blocks_of(page):
            if block.exempt or block.language not in {"sh", "python"}:
                continue
            if block.language == "sh":
                outcomes[block.line] = run_shell(block, common)
                continue
            if interpreter is None:
                command = [sys.executable, "-c", INTERPRETER]
                interpreter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **common)
            interpreter.stdin.write(json.dumps([block.name, block.line, block.source]) + "\n")
            interpreter.stdin.flush()
            outcomes[block.line] = json.loads(interpreter.stdout.readline() or '"the interpreter died"')
        if interpreter is not None:
            interpreter.communicate(timeout=SECONDS)
        if place == folder:
            outcomes[LINT] = lint(folder)
        return outcomes

    return run_page


def lint(folder):
    """Return what `make lint` complains about in a clone, or None."""
    command = [shutil.which("make"), *LINT]
    result = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=SECONDS
    )
    return f"make lint, after all blocks: exit code {result.returncode}\n{result.stdout}" if result.returncode else None


def run_shell(block, common):
    command = ["bash", "-euo", "pipefail", "-c", block.source]
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=SECONDS, **common
    )
    return f"exit code {result.returncode}\n{result.stdout}" if result.returncode else None


# ── CI recipes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def recipe_lines(content):
    """Return the shell lines of a GitHub workflow's ``run`` or a GitLab job's ``script``, wherever they are."""
    if isinstance(content, list):
        for item in content:
            yield from recipe_lines(item)
    elif isinstance(content, dict):
        for key, value in content.items():
            if key in {"run", "script", "before_script"}:
                yield from "\n".join([value] if isinstance(value, str) else value).splitlines()
            else:
                yield from recipe_lines(value)


def wrong_command(line):
    """Return what is wrong with one line: a program that is not there, or a call of rollproof that it would refuse."""
    words = shlex.split(line, comments=True)
    if not words:
        return None
    if shutil.which(words[0], path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])) is None:
        return f"{words[0]}: no such program"
    if words[0] == "rollproof":
        try:
            found = main.get_command(None, words[1])
            found.make_context(words[1], words[2:])
        except (ClickException, AttributeError, IndexError) as error:
            return f"{line}: {error}"
    return None


# ── tests ───────────────────────────────────────────────────────────────────────────────────────────────────────────


DAILY = {"index.md"}
"""Pages whose programs run in `make test`; those of the others are deep. Data is parsed in both."""


def deep_unless(daily):
    return [] if daily else pytest.mark.deep


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=block.name,
            marks=deep_unless(block.page.name in DAILY or block.language not in {"sh", "python"}),
        )
        for block in BLOCKS
        if not block.exempt
    ],
)
def test_block(block, ran):
    assert block.language in LANGUAGES, "say what the block is: ```sh, ```python, …"
    match block.language:
        case "sh" | "python":
            outcome = ran(block.page)[block.line]
            if outcome is not None:
                pytest.fail(f"{block.name}\n{block.source}\n{outcome}", pytrace=False)
        case "json":
            lines = [block.source] if not parses(block.source) else []
            assert [line for line in "".join(lines).splitlines() if line and not parses(line)] == []
        case "toml":
            tomllib.loads(block.source)
        case "yaml":
            wrong = map(wrong_command, recipe_lines(yaml.safe_load(block.source)))
            assert list(filter(None, wrong)) == []


LINTED = [page for page in PAGES if any(block.page == page and block.language == "sh" for block in BLOCKS)]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=os.path.relpath(page, ROOT), marks=deep_unless(page.name in DAILY)) for page in LINTED],
)
def test_lint_passes_after_a_page(page, ran):
    complaint = ran(page).get(LINT)
    if complaint is not None:
        pytest.fail(complaint, pytrace=False)


def parses(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_what_is_not_run_is_listed():
    found = {}
    for block in BLOCKS:
        if block.exempt:
            name = str(block.page.relative_to(ROOT))
            found[name] = found.get(name, 0) + 1
    assert found == EXEMPT


def test_pages_have_blocks_and_all_kinds_of_them():
    assert {block.page.name for block in BLOCKS} >= {"README.md", "check-your-own.md", "pytest.md", "ci.md"}
    assert {block.language for block in BLOCKS} >= {"sh", "python", "yaml", "json", "toml"}


def test_make_targets_and_commands_in_running_text_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    commands = set(main.list_commands(None))
    assert {"gate", "test"} <= targets
    assert "check" in commands
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert target in targets, f"{page.name}: make {target}"
        for command in re.findall(r"`rollproof ([a-z-]+)[ `]", text):
            assert command in commands, f"{page.name}: rollproof {command}"


def test_files_in_running_text_exist():
    named = {
        (page.name, file)
        for page in PAGES
        for file in re.findall(
            r"`((?:spec|impl|properties|docs|tests|tools|vectors|examples)/[\w./-]*)`", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 20
    assert [(page, file) for page, file in sorted(named) if not (ROOT / file).exists()] == []


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("```sh\nfalse | true\n```", "exit code 1"),
        ("```sh\necho $UNSET_NAME\n```", "unbound variable"),
        ("```sh\nmake clean\n```", "not among the targets"),
        ("```sh\nrollproof check --nonsense\n```", "No such option"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```", "AssertionError"),
    ],
)
def test_a_wrong_block_is_seen(ran, tmp_path, source, says):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{source}\n", encoding="utf-8")
    (*right, wrong, linted) = ran(page).values()
    assert right in ([], [None])
    assert says in wrong
    assert linted is None


def test_a_block_that_breaks_lint_is_seen(ran, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```sh\necho 'import os' > adapter.py\n```\n", encoding="utf-8")
    assert "F401" in ran(page)[LINT]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("rollproof check impl --profile quick", False),
        ("rollproof check impl --profile fast", True),
        ("rollproof chekc impl", True),
        ("no-such-program --help", True),
        ("# a comment", False),
    ],
)
def test_a_wrong_recipe_is_seen(line, wrong):
    assert (wrong_command(line) is not None) == wrong
    content = {"jobs": {"gate": {"steps": [{"uses": "actions/checkout@v4"}, {"run": f"{line}\n"}]}}}
    assert list(recipe_lines(content)) == [line]
    assert list(recipe_lines({"gate": {"script": [line, line]}})) == [line, line]


@pytest.mark.deep
def test_the_site_builds_strictly(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "index.html").exists()
