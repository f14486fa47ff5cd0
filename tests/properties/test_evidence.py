"""Every rule has streams, examples, mutants and, where it is a code, inputs that drive it; the pages say so."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.cli import main
from rollproof.properties.counting import PROFILE, SEED, Counts, counted, read_line, render_line
from rollproof.properties.evidence import Vectors, asking, code_of, driving, proofs_of, read_vectors, render_evidence
from rollproof.properties.gate.coverage import STAGES, reachable
from rollproof.properties.gate.run import Check
from rollproof.properties.rules import render_rules
from rollproof.properties.strategies.requests import request_streams
from rollproof.properties.symbolic.registry import ITEMS
from rollproof.spec.invariants import BY_ID, CATALOGUE, of_area
from rollproof.spec.requests import Area

ROOT = Path(__file__).parents[2]
COUNTS = counted()
LEAST_DRIVEN = 20
CODES = [(area, name) for area in Area if area in STAGES for name in reachable(area)]


@pytest.mark.parametrize("item", CATALOGUE, ids=lambda item: item.id)
def test_every_invariant_is_asked_about(item):
    assert sum(counts.asked(item.requests) for counts in asking(item, COUNTS)) > 0


@pytest.mark.parametrize(("area", "name"), CODES, ids=lambda value: str(value))
def test_every_reachable_code_is_driven(area, name):
    assert sum(counts.codes[name] for counts in driving(area, name, COUNTS)) >= LEAST_DRIVEN
    assert code_of(area, name).code == name.split(":")[-1]


@pytest.mark.parametrize("area", Area)
@pytest.mark.parametrize("implementation", [Reference(), Ours()], ids=lambda one: one.name)
def test_profile_ci_holds_and_asks_what_the_page_says(implementation, area):
    report = Check(implementation, (area,), PROFILE, SEED, shrink=False).run()
    assert [(found.invariant.id, found.complaint) for found in report.falsified] == []
    assert {key: tally for key, tally in report.codes.items() if tally.right != tally.driven} == {}
    told = {item.id: sum(counts.asked(item.requests) for counts in asking(item, COUNTS)) for item in of_area(area)}
    assert {name: tally.examples for name, tally in report.invariants.items()} == told, "run make docs"
    driven = {name: sum(counts.codes[name] for counts in driving(area, name, COUNTS)) for name in reachable(area)}
    assert {name: tally.driven for (_, name), tally in report.codes.items()} == driven, "run make docs"


def test_the_counts_are_of_the_streams_that_there_are():
    streams = [(area, stream.name) for area in Area for stream in request_streams(area)]
    assert [(counts.area, counts.stream) for counts in COUNTS] == streams, "run make docs"


def test_counts_are_read_as_they_are_written():
    for counts in (
        *COUNTS,
        Counts(Area.ROUTES, "a, b c:d", {"X": 1}, {f"code:{index}": index for index in range(99)}),
    ):
        assert read_line(render_line(counts).strip().replace("\n    ", " ")) == counts


def test_pages_are_fresh():
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == render_rules(), "run make docs"
    page = render_evidence(COUNTS, read_vectors(ROOT / "vectors"))
    assert (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8") == page, "run make docs"


def test_the_page_names_every_invariant_and_code():
    page = render_evidence(COUNTS, Vectors())
    assert [name for name in BY_ID if f"| {name} |" not in page] == []
    assert [name for _, name in CODES if f"| `{name}` |" not in page] == []


def test_proofs_are_of_invariants():
    assert {name for rule in ITEMS for name in rule.invariants} <= BY_ID.keys()
    assert "used_rows_lie_inside_the_fragment" in {name for invariant in BY_ID for name in proofs_of(invariant)}


def test_rules_command(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, ["rules", *arguments]).output

    assert run() == render_rules()
    assert "mutants: 2: clears-listed-keys" in run("group-4")
    assert "staged row" in run("invalid_staging_row")
    assert "driven in CI as rebuild_failed:corrupt_digest in area rollout" in run("corrupt_digest")
    assert run("--evidence", "--vectors", str(tmp_path)) == render_evidence(COUNTS, Vectors())
