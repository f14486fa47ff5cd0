"""The vectors: the committed ones are the contract's answers, cover what they should, and are reproducible."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from attrs import asdict, evolve
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.cli import main
from rollproof.properties.gate.codes import reachable
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.mutants.mutant import MutantImplementation
from rollproof.properties.vectors.export import export
from rollproof.properties.vectors.vector_files import BUG_TYPES, file_schema, read_file, write_files
from rollproof.properties.vectors.verify import judge, verify
from rollproof.properties.wire.messages import request_object
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import CAPABILITIES, Accepted, Area, PrefixDigest

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
STALE = "run `rollproof vectors export vectors`"
FILES = {area: read_file(VECTORS / f"{area}.json") for area in Area}
CONTENTS = {area: json.loads((VECTORS / f"{area}.json").read_text(encoding="utf-8")) for area in Area}
NOT_ONE_INPUT = {"D5": "the work for 1,000 calls and for 4,000 is compared"}
"""Findings that no single answer shows."""


@pytest.mark.parametrize("area", Area)
def test_every_expected_answer_is_the_contracts(area):
    for vector in FILES[area].vectors:
        assert difference(vector.expected, answer(vector.request)) is None, f"{area} tcId {vector.number}: {STALE}"


@pytest.mark.parametrize("area", Area)
def test_files_are_as_their_schemas_say(area):
    schema = json.loads((VECTORS / "schemas" / f"{area}.json").read_text(encoding="utf-8"))
    content = CONTENTS[area]
    assert schema == json.loads(
        json.dumps(file_schema(area, [group["operation"] for group in content["testGroups"]]))
    ), STALE
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(content)
    tests = [test for group in content["testGroups"] for test in group["tests"]]
    assert [test["tcId"] for test in tests] == list(range(1, content["numberOfTests"] + 1))
    assert {flag for test in tests for flag in test["flags"]} == set(content["notes"])
    assert all(test["flags"] and test["comment"] for test in tests)
    assert {note["bugType"] for note in content["notes"].values()} <= set(BUG_TYPES)
    assert all((test["result"] == "invalid") == (test["code"] is not None) for test in tests)
    assert sum(test["result"] == "valid" for test in tests) >= 20


@pytest.mark.parametrize("area", Area)
def test_every_reachable_code_has_a_vector(area):
    codes = {test["code"] for group in CONTENTS[area]["testGroups"] for test in group["tests"]}
    assert set(reachable(area)) - codes == set()


def test_every_finding_has_a_vector():
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    sections = [section for section in page.split("\n## ") if section.startswith(("The review's sketch", "nemo-gym"))]
    tables = [rows for section in sections for rows in re.findall(r"\| id \|.*\n\|[- |]+\n((?:\|.*\n)+)", section)]
    found = {row.split("|")[1].strip() for rows in tables for row in rows.splitlines()}
    assert len(tables) == 2
    assert found - {flag for file in FILES.values() for flag in file.notes} == set(NOT_ONE_INPUT)


@pytest.mark.parametrize("area", Area)
def test_a_flag_of_a_wrong_implementation_marks_a_vector_that_it_fails(area):
    mutants = {mutant.name: mutant for mutant in MUTANTS}
    shown = 0
    for vector in FILES[area].vectors:
        for flag in set(vector.flags) & mutants.keys():
            item = BY_ID[mutants[flag].invariant]
            actual = ask(MutantImplementation(mutants[flag]), vector.request)
            assert item.check(vector.request, vector.expected, actual) is not None, (
                f"{area} tcId {vector.number}: {STALE}"
            )
            shown += 1
    assert shown >= 1


def test_known_public_faults_have_links_and_vectors():
    notes = {flag: note for file in FILES.values() for flag, note in file.notes.items()}
    known = [mutant for mutant in MUTANTS if re.search(r"[\w.-]+/[\w.-]+ \d+", mutant.origin)]
    without = [mutant.name for mutant in known if mutant.name not in notes]
    assert without == [], STALE
    assert all(notes[mutant.name].links for mutant in known)
    assert all(note.links for note in notes.values() if note.bugType == "KnownFault")


def test_vectors_stay_small():
    sizes = Counter({str(path.relative_to(VECTORS)): path.stat().st_size for path in VECTORS.rglob("*.json")})
    assert sizes.total() < 6_000_000, sizes


@pytest.mark.deep
@pytest.mark.parametrize("area", Area)
def test_files_are_what_an_export_writes(area, tmp_path):
    write_files([export(area)], tmp_path)
    assert (tmp_path / f"{area}.json").read_bytes() == (VECTORS / f"{area}.json").read_bytes(), STALE


def test_an_export_is_the_same_whatever_the_hash_seed(tmp_path, hashing_otherwise):
    write_files([export(Area.TERMINAL)], tmp_path / "here")
    command = [
        Path(sys.executable).with_name("rollproof"),
        "vectors",
        "export",
        tmp_path / "there",
        "--area",
        "terminal",
    ]
    subprocess.run(command, env=hashing_otherwise, check=True, capture_output=True)
    here, there = ((tmp_path / name / "terminal.json").read_bytes() for name in ("here", "there"))
    assert here == there
    assert json.loads(here)["numberOfTests"] >= 20


@pytest.mark.parametrize("area", [area for area in Area if area not in CAPABILITIES])
def test_vectors_without_a_capability_say_nothing_of_it(area):
    """Requests with every argument of a capability at its default read as they did before there was one."""
    inputs = [test["input"] for group in CONTENTS[area]["testGroups"] for test in group["tests"]]
    assert [request_object(vector.request) for vector in FILES[area].vectors] == inputs


@pytest.mark.parametrize("area", [Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA])
def test_vectors_hold_with_every_argument_of_a_capability_given_at_its_default(area):
    class Explicit(Ours):
        def build(self, plane, config):
            return RolloutReassembler(plane, **asdict(config, recurse=False))

    result = verify(FILES[area], Explicit())
    assert ([failure.complaint for failure in result.failures], result.left_out) == ([], 0)
    assert result.passed == len(FILES[area].vectors)


def test_a_file_survives_being_written_again(tmp_path):
    write_files([FILES[Area.ROUTES]], tmp_path)
    assert (tmp_path / "routes.json").read_bytes() == (VECTORS / "routes.json").read_bytes(), STALE


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


def test_verify_passes_ours_and_the_spec(run):
    for name, areas in (("impl", set(Area) - PORTABLE), ("spec", set(Area))):
        result = run("vectors", "verify", VECTORS, name)
        assert result.exit_code == 0, result.output
        assert f"{name}: {sum(len(FILES[area].vectors) for area in areas)} passed, 0 failed" in result.output


def test_verify_names_what_fails(run):
    result = run("vectors", "verify", VECTORS, "mutant:placeholder-trains")
    assert result.exit_code == 1
    assert re.search(r"  tcId \d+ \[.*placeholder-trains.*\] .*Looks for: ", result.output)
    assert "GROUP-3: " in result.output
    assert "digest.json: 0 passed, 0 failed" in result.output


def test_verify_counts_declared_deviations_apart(run):
    result = run("vectors", "verify", VECTORS, "nemo-gym")
    assert result.exit_code == 0, result.output
    assert "known deviations (D16)" in result.output


def test_a_changed_expectation_is_seen(tmp_path, run):
    file = FILES[Area.DIGEST]
    first = next(vector for vector in file.vectors if isinstance(vector.request, PrefixDigest) and vector.code is None)
    wrong = evolve(first, expected=Accepted("0" * 64))
    assert judge(wrong, first.expected) is not None
    write_files([evolve(file, vectors=(wrong,))], tmp_path)
    assert run("vectors", "verify", tmp_path, "spec").exit_code == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no files of vectors"),
        ("[]", "not a file of vectors"),
        ('{"protocol": "2"}', "protocol '2'"),
        ("{", "Expecting"),
    ],
)
def test_unreadable_vectors_end_with_one_clear_line(tmp_path, run, content, says):
    if content is not None:
        (tmp_path / "digest.json").write_text(content, encoding="utf-8")
    result = run("vectors", "verify", tmp_path, "spec")
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
