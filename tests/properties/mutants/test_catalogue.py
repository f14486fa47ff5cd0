"""Wrong implementations: each is killed by the invariant that it names, and every fault met in public is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.cli import main
from rollproof.properties.gate.trial import try_mutant
from rollproof.properties.mutants import MUTANTS, load_mutant
from rollproof.properties.mutants.known_faults import KNOWN_FAULTS, KnownFault
from rollproof.properties.mutants.mutant import threads
from rollproof.spec import rows
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area

SHARED = Path(__file__).parents[4] / "shared" / "known-faults.md"


FIRST = {BY_ID[mutant.invariant].area: mutant for mutant in reversed(MUTANTS)}
"""One mutant of each area; the others are deep here, and all of them run on the vectors that are made for them."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            mutant, id=mutant.name, marks=[] if mutant is FIRST[BY_ID[mutant.invariant].area] else pytest.mark.deep
        )
        for mutant in MUTANTS
    ],
)
def test_a_mutant_is_killed_by_the_invariant_that_it_names(mutant):
    verdict = try_mutant(mutant)
    assert verdict.killed, f"{mutant.invariant} held; what fell was {verdict.fell}"


def test_every_invariant_has_a_mutant_and_every_mutant_an_invariant():
    assert {mutant.invariant for mutant in MUTANTS} == BY_ID.keys()
    assert {BY_ID[mutant.invariant].area for mutant in MUTANTS} == set(Area)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80


def test_the_replacements_are_gone_once_a_mutant_has_answered():
    mutant = load_mutant("placeholder-trains").mutant
    before = rows.token_columns
    with mutant.applied():
        assert rows.token_columns is not before
    assert rows.token_columns is before


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: fault.reported)
def test_every_report_of_a_known_fault_is_claimed_by_a_mutant(fault):
    claimed = frozenset().union(*(mutant.sources for mutant in fault.mutants))
    assert fault.sources
    assert fault.sources <= claimed


def test_an_origin_names_its_threads():
    assert threads("a-b/c.d 1, 22; e/f 3") == {"a-b/c.d 1", "a-b/c.d 22", "e/f 3"}
    assert threads("contract section 8") == threads("the review's sketch") == frozenset()
    assert KnownFault("nobody/nothing 1", "Nobody has met it.").mutants == []


def test_the_list_of_faults_is_whole():
    """Where the list that it began with lies beside the repository, it still has all of that."""
    held = frozenset().union(*(fault.sources for fault in KNOWN_FAULTS))
    assert len(held) == 121
    if SHARED.exists():
        rows = [line for line in SHARED.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
        assert held >= frozenset().union(*(threads(row.split("|")[1]) for row in rows))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["mutants", *arguments])


def test_command_reports_what_killed_each(run):
    result = run("n-minus-one-rows", "placeholder-trains", "--jobs", "1", "--json", "out.json")
    assert result.exit_code == 0
    assert "2 of 2 mutants killed" in result.output
    report = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert report["format"] == "rollproof-mutants-1"
    assert [entry["mutant"] for entry in report["mutants"]] == ["n-minus-one-rows", "placeholder-trains"]
    for entry in report["mutants"]:
        assert entry["killed"]
        assert entry["fell"][entry["invariant"]] == entry["requests"] > 0


def test_command_lists_survivors(run, monkeypatch):
    monkeypatch.setattr("rollproof.properties.gate.trial.STAGES", ("quick",))
    harmless = [mutant for mutant in MUTANTS if mutant.name == "tail-before-full"]
    monkeypatch.setitem(harmless[0].patches, "judge.oracle.classify_span", lambda original: original)
    result = run("tail-before-full")
    assert result.exit_code == 1
    assert "survived: tail-before-full" in result.output
    assert "0 of 1 mutants killed" in result.output


@pytest.mark.deep
def test_kill_rates_say_what_fell_at_how_many_seeds(run, monkeypatch):
    result = run("placeholder-trains", "n-minus-one-rows", "--jobs", "1", "--seeds", "2", "--json", "out.json")
    assert result.exit_code == 0
    assert "profile quick: 100.00%" in result.output
    entries = json.loads(Path("out.json").read_text(encoding="utf-8"))["mutants"]
    assert sorted((entry["mutant"], entry["seed"]) for entry in entries) == [
        ("n-minus-one-rows", 0),
        ("n-minus-one-rows", 1),
        ("placeholder-trains", 0),
        ("placeholder-trains", 1),
    ]
    harmless = [mutant for mutant in MUTANTS if mutant.name == "tail-before-full"]
    monkeypatch.setitem(harmless[0].patches, "judge.oracle.classify_span", lambda original: original)
    result = run("tail-before-full", "--jobs", "1", "--seeds", "2")
    assert result.exit_code == 1
    assert "below 90%: tail-before-full" in result.output


def test_command_lists_known_faults(run):
    result = run("--known-faults")
    assert result.exit_code == 0
    assert "GROUP-2" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "no mutant 'nonsense'"),
        (("placeholder-trains", "--area", "digest"), "area digest"),
        (("--area", "nonsense"), "nonsense"),
    ],
)
def test_wrong_calls_end_with_one_clear_line(run, arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output
