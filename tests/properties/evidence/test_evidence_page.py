"""Every rule has streams, examples, mutants and, where it is a code, inputs that drive it; the pages say so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.cli import main
from rollproof.properties.evidence.counts import COUNTS_FILE, PROFILE, SEED, counted, render_counts
from rollproof.properties.evidence.evidence_page import (
    Vectors,
    asking,
    driving,
    proofs_of,
    read_vectors,
    render_evidence,
)
from rollproof.properties.evidence.rules_page import render_rules
from rollproof.properties.evidence.thickness import (
    BY_NATURE,
    LEAST,
    THICKNESS_FILE,
    measure,
    render_thickness,
    thickness,
)
from rollproof.properties.gate.codes import ALONE, AREAS, reaches
from rollproof.properties.gate.run import Check
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.mutants import MUTANTS
from rollproof.properties.symbolic.registry import ITEMS
from rollproof.spec.judge.catalogue import BY_ID, CATALOGUE, of_area
from rollproof.spec.judge.requests import Area

ROOT = Path(__file__).parents[3]
COUNTS = counted()
LEAST_DRIVEN = 20
LEAST_IN_GROUPS = 5
CODES = [reach for area in AREAS for reach in reaches(area)]


@pytest.mark.parametrize("item", CATALOGUE, ids=lambda item: item.id)
def test_every_invariant_is_asked_about(item):
    assert sum(counts.asked(item.requests) for counts in asking(item, COUNTS)) > 0


@pytest.mark.parametrize("reach", CODES, ids=lambda reach: f"{reach.area}-{reach.name}")
def test_every_reachable_code_is_driven(reach):
    driven = sum(counts.codes[reach.name] for counts in driving(reach.area, reach.name, COUNTS))
    assert driven >= (LEAST_DRIVEN if reach.place in ALONE else LEAST_IN_GROUPS)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("implementation", "area"),
    [(one, area) for one in (Reference(), Ours()) for area in Area if area in one.areas],
    ids=lambda one: one.name if hasattr(one, "areas") else one,
)
def test_profile_ci_holds_and_asks_about_as_much_as_the_page_says(implementation, area):
    report = Check(implementation, (area,), PROFILE, SEED, shrink=False).run()
    assert [(found.invariant.id, found.complaint) for found in report.falsified] == []
    assert {key: tally for key, tally in report.codes.items() if tally.right != tally.driven} == {}
    told = {item.id: sum(counts.asked(item.requests) for counts in asking(item, COUNTS)) for item in of_area(area)}
    assert report.invariants.keys() == told.keys()
    assert [name for name, tally in report.invariants.items() if not nearly(tally.examples, told[name])] == []
    assert report.not_exercised == []
    names = [reach.name for reach in reaches(area)]
    driven = {name: sum(counts.codes[name] for counts in driving(area, name, COUNTS)) for name in names}
    assert {name for _, name in report.codes} == driven.keys()
    assert [name for (_, name), tally in report.codes.items() if not nearly(tally.driven, driven[name])] == []


def nearly(count: int, told: int) -> bool:
    """Check that a count is at least 1, and not below the recorded one by more than 10 % and what chance explains.

    What Hypothesis draws depends on its release, and on the modules that are loaded.
    """
    return count >= max(1, 0.9 * told - 3 * math.sqrt(told))


def test_the_counts_are_of_the_streams_that_there_are():
    streams = [(area, stream.name) for area in Area for stream in request_streams(area)]
    assert [(counts.area, counts.stream) for counts in COUNTS] == streams, "run make docs"


def test_counts_are_read_as_they_are_written():
    assert render_counts(COUNTS) == COUNTS_FILE.read_text(encoding="utf-8")
    assert len(COUNTS) > 100


def test_the_thickness_is_of_the_mutants_that_there_are():
    counts = thickness()
    assert [(one.mutant, one.invariant) for one in counts] == [(one.name, one.invariant) for one in MUTANTS]
    thin = [one for one in counts if one.requests < LEAST and one.invariant not in BY_NATURE]
    assert thin == [], "draw more requests that show them, then run make docs"
    assert render_thickness(counts) == THICKNESS_FILE.read_text(encoding="utf-8")


def test_a_mutant_shows_on_as_many_requests_as_the_page_says():
    told = {one.mutant: one.requests for one in thickness()}
    chosen = [mutant for mutant in MUTANTS if BY_ID[mutant.invariant].area in {Area.TERMINAL, Area.RETAINED}]
    assert len(chosen) > 20
    assert [one for one in measure(chosen) if not nearly(one.requests, told[one.mutant])] == []


def test_pages_are_fresh():
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == render_rules(), "run make docs"
    page = render_evidence(COUNTS, read_vectors(ROOT / "vectors"))
    assert (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8") == page, "run make docs"


def test_the_page_names_every_invariant_and_code():
    page = render_evidence(COUNTS, Vectors())
    assert [name for name in BY_ID if f"| {name} |" not in page] == []
    names = {reach.name.replace(reach.code, f"`{reach.code}`") for reach in CODES}
    assert [name for name in names if f"| {name} |" not in page] == []


def test_proofs_are_of_invariants():
    assert {name for rule in ITEMS for name in rule.invariants} <= BY_ID.keys()
    assert "used_rows_lie_inside_the_fragment" in {name for invariant in BY_ID for name in proofs_of(invariant)}


def test_rules_command(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, ["rules", *arguments]).output

    assert run() == render_rules()
    assert "mutants: 4: clears-listed-keys" in run("group-4")
    assert "staged row" in run("invalid_staging_row")
    assert "reached in CI as rebuild_failed:corrupt_digest in area rollout" in run("corrupt_digest")
    assert run("--evidence", "--vectors", str(tmp_path)) == render_evidence(COUNTS, Vectors())
