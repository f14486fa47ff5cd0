"""The catalogues leave nothing out: invariants, rejection codes, and the modules that the package names."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import rollproof.spec
from rollproof.spec.judge.catalogue import BY_ID, CATALOGUE
from rollproof.spec.judge.invariant import Case
from rollproof.spec.judge.requests import Accepted, PrefixDigest
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.rollout import owned_keys

ROOT = Path(__file__).parents[3]
INDEXED = re.compile(r'^\| <span id="d(\d+)">D\1</span> \| .+ \| \[(.+)\]\(contract/\2\.md\) \| (.+) \|$', re.MULTILINE)
CITED = re.compile(r"\bD([1-9]\d?)\b")
SPEC = Path(rollproof.spec.__file__).parent
RULES = sorted((SPEC / "judge" / "rules").glob("[a-z]*.py"))


def declared(path: Path) -> list[str]:
    """Return the names of the functions that a module decorates as invariants."""
    functions = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))
    return [
        function.name
        for function in functions
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(("invariant", "_rule"))
    ]


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_catalogue_holds_every_declared_invariant(path):
    module = importlib.import_module(f"rollproof.spec.judge.rules.{path.stem}")
    assert declared(path)
    assert not [name for name in declared(path) if getattr(module, name) not in CATALOGUE]


def test_catalogue_has_as_many_invariants_as_are_declared():
    assert len(CATALOGUE) == len(BY_ID) == sum(len(declared(path)) for path in RULES)


def test_every_invariant_says_why():
    assert not [item.id for item in CATALOGUE if not item.reason]


def test_ids_count_up_within_an_area():
    numbers: dict[str, list[int]] = {}
    for item in CATALOGUE:
        area, _, number = item.id.partition("-")
        numbers.setdefault(area, []).append(int(number))
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in numbers.values())


def test_check_hands_all_three_to_the_rule():
    item = BY_ID["DIGEST-2"]
    request, contract, answer = PrefixDigest(()), Accepted("a"), Accepted("b")
    assert item.check(request, contract, answer) == item.rule(Case(request, contract, answer)) is not None


def test_codes_are_listed_stage_by_stage():
    order = [list(Stage).index(code.stage) for code in Code]
    assert order == sorted(order)


def test_package_names_every_module_in_its_reading_order():
    text = rollproof.spec.__doc__ or ""
    chapters = [path.stem for path in SPEC.glob("[a-z]*.py")]
    judges = [f"judge.{path.stem}" for path in (SPEC / "judge").glob("[a-z]*.py")]
    assert not [name for name in (*chapters, *judges) if f"``{name}``" not in text]


def decisions():
    """Return the index of decisions: number, page that states it, and invariants that enforce it."""
    text = (ROOT / "docs" / "decisions.md").read_text("utf-8")
    return [(int(number), page, enforced) for number, page, enforced in INDEXED.findall(text)]


def cited_decisions():
    """Return every decision that code or a page cites, with one place that does."""
    found: dict[int, Path] = {}
    for folder, pattern in (("spec", "*.py"), ("impl", "*.py"), ("properties", "*.py"), ("docs", "*.md")):
        for path in (ROOT / folder).rglob(pattern):
            if path.name != "decisions.md":
                found |= {int(number): path for number in CITED.findall(path.read_text("utf-8"))}
    return found


def test_decisions_that_are_cited_are_in_the_index():
    indexed = [number for number, _, _ in decisions()]
    assert indexed == sorted(set(indexed))
    assert not {number: path for number, path in cited_decisions().items() if number not in indexed}


def test_decisions_are_stated_on_the_page_that_the_index_names():
    for number, page, enforced in decisions():
        text = (ROOT / "docs" / "contract" / f"{page}.md").read_text("utf-8")
        assert f"**D{number}**" in text
        assert re.findall(r"[A-Z]+-\d+", enforced)
        assert not [name for name in re.findall(r"[A-Z]+-\d+", enforced) if name not in BY_ID]


def test_reserved_rollout_id_owns_nothing():
    name = "__generation_cut__"
    for rollout_id, owned in ((name, ()), ("r", ("r/c",))):
        row = {"model_call_id": "c", "staging_key": f"{rollout_id}/c"}
        assert owned_keys(rollout_id, {"manifest": [row]}) == owned
