"""The gate: it holds for the spec and for ours, it fails every mutant, and its commands end as they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants
from junitparser import JUnitXml

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.asking import ask
from rollproof.properties.cli import main
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check, exercise
from rollproof.properties.protocol import Deviation
from rollproof.properties.strategies.recipes import realize_request
from rollproof.properties.strategies.requests import request_streams
from rollproof.spec.invariants import BY_ID, CATALOGUE
from rollproof.spec.rejections import Code
from rollproof.spec.requests import Accepted, Area, CallDigest, LinearizeGrowth


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, list(arguments))


@pytest.mark.parametrize("implementation", [Reference(), Ours()], ids=lambda one: one.name)
def test_holds(implementation):
    areas = tuple(area for area in Area if area in implementation.areas)
    report = Check(implementation, areas, PROFILES["quick"], seed=1).run()
    assert [(found.invariant.id, found.complaint) for found in report.falsified] == []
    assert report.undriven == []
    assert all(tally.right == tally.driven for tally in report.codes.values())
    assert all(tally.examples > 0 for tally in report.invariants.values())


def test_ids_are_unique():
    assert len(BY_ID) == len(CATALOGUE)


def test_every_code_has_one_entry():
    entries = [(code.stage, code.code) for code in Code]
    assert len(set(entries)) == len(entries)
    assert all(re.fullmatch("[a-z_]+", code) for _, code in entries)


def test_same_seed_same_examples():
    def tallies(seed):
        report = Check(Reference(), (Area.LINEAGE,), PROFILES["quick"], seed=seed).run()
        return {key: (tally.driven, tally.right) for key, tally in report.codes.items()}, report.requests

    assert tallies(3) == tallies(3)


def test_examples_do_not_depend_on_what_else_is_loaded(monkeypatch):
    """Hypothesis mixes in constants of the modules that it takes for the user's own."""

    def drawn():
        found = []
        exercise(
            st.integers() | st.text() | st.floats(), lambda one: found.append(repr(one)), 300, 1, (Phase.generate,)
        )
        return found

    before = drawn()
    other = Constants(integers={2**70 + 3}, strings={"a constant"}, floats={0.12345})
    monkeypatch.setattr(HypothesisProvider, "_local_constants", other)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", {})
    assert drawn() == before


def test_growth_is_counted_the_same_every_time():
    request = LinearizeGrowth(20, 80)
    ask(Ours(), request)  # what is imported or cached at the first call
    assert ask(Ours(), request) == ask(Ours(), request)


class Quadratic(Reference):
    """A verifier that walks to the root once per call."""

    name = "quadratic"

    def linearize(self, receipt, calls):
        parents = {record.model_call_id: record.parent_call_id for record in receipt.manifest}
        for record in receipt.manifest:
            current = record.parent_call_id
            while current is not None:
                current = parents.get(current)
        return super().linearize(receipt, calls)


def test_quadratic_work_is_seen():
    request = LinearizeGrowth()
    answer = ask(Quadratic(), request)
    assert "x4 calls" in BY_ID["LINEAGE-5"].check(request, Accepted((1, 1)), answer)


def minus_zero_mask(asked, *_):
    return isinstance(asked, CallDigest) and "-0.0" in map(repr, asked.call.token_mask_delta)


class Lenient(Reference):
    """Takes −0.0 for 0.0."""

    name = "lenient"
    areas = frozenset({Area.DIGEST})
    deviations = (
        Deviation("D2", Area.DIGEST, "1", "takes -0.0 as a mask", minus_zero_mask),
        Deviation("D0", Area.DIGEST, "1", "never shows", lambda *_: False),
    )

    def call_digest(self, call):
        masks = tuple(0.0 if repr(mask) == "-0.0" else mask for mask in call.token_mask_delta)
        return super().call_digest(evolve(call, token_mask_delta=masks))


def test_declared_deviations_are_counted_apart():
    report = Check(Lenient(), (Area.DIGEST,), PROFILES["ci"], seed=0).run()
    assert report.held
    assert set(report.deviations) == {"D2"}
    assert report.deviation_counts["D2"] > 0
    assert report.silent_deviations == ["D0"]
    assert len(report.deviations["D2"].request.call.token_ids_delta) <= 2, "not shrunk"


def test_check_exit_codes(run):
    assert run("check", "spec", "--profile", "quick", "--area", "digest").exit_code == 0
    result = run("check", "mutant:placeholder-trains", "--profile", "quick")
    assert result.exit_code == 1
    assert "falsified: GROUP-3" in result.output
    assert "rollproof replay" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "nonsense"), "no such implementation"),
        (("check", "no_such_module:Thing"), "could not be loaded"),
        (("check", "json:dumps"), "not an implementation"),
        (("check", "mutant:nonsense"), "there are"),
        (("check", "mutant:placeholder-trains", "--area", "digest"), "does not offer area digest"),
        (("check", "spec", "--area", "nonsense"), "nonsense"),
        (("replay", "absent.json"), "No such file"),
        (("replay", "bad.json"), "not a replay file"),
        (("rules", "NONSENSE-1"), "no such invariant"),
    ],
)
def test_wrong_calls_end_with_one_clear_line(run, arguments, says):
    Path("bad.json").write_text("[]", encoding="utf-8")
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_reports_and_replay(run):
    result = run("check", "mutant:n-minus-one-rows", "spec", "--profile", "quick", "--area", "group", "--report", "out")
    assert result.exit_code == 1
    reports = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    assert [report["held"] for report in reports] == [False, True]
    xml = JUnitXml.fromfile("out/junit.xml")
    assert sum(suite.failures for suite in xml) >= 1
    replay = "out/replays/mutant-n-minus-one-rows-GROUP-2.json"
    again = run("replay", replay)
    assert again.exit_code == 1
    assert "GROUP-2" in again.output
    fixed = run("replay", replay, "spec")
    assert fixed.exit_code == 0
    assert "holds" in fixed.output


def test_twenty_thousand_hostile_receipts_never_raise():
    (stream,) = [stream for stream in request_streams(Area.ROLLOUT) if stream.name == "hostile:receipts"]
    ours, asked = Ours(), []

    def body(request):
        answer = ask(ours, realize_request(request))
        asked.append(1)
        assert isinstance(answer, Accepted), answer
        assert answer.value.rollout is not None

    exercise(stream.strategy, body, 20_000, 0, (Phase.generate,))
    assert len(asked) >= 20_000
