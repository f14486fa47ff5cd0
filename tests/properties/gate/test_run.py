"""The gate: it holds for the spec and for ours, it fails every mutant, and its commands end as they say."""

from __future__ import annotations

import gc
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

from rollproof.properties.adapters.asking import ask, count_lines
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.protocol import Deviation
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.cli import main
from rollproof.properties.errors import LeftOut
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import DECLARED, Check, exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.nemo_gym.examples import call
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.area import CAPABILITIES
from rollproof.spec.judge.catalogue import BY_ID, CATALOGUE
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import (
    Accepted,
    Area,
    CallDigest,
    DecodeRoutes,
    LinearizeGrowth,
    MediaDigest,
    Refused,
)
from rollproof.spec.rejections import Code


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, list(arguments))


@pytest.mark.parametrize("examples", [2, pytest.param(None, marks=pytest.mark.deep)])
@pytest.mark.parametrize("capable", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.parametrize(
    "implementation", [pytest.param(Reference(), marks=pytest.mark.deep), Ours()], ids=lambda one: one.name
)
def test_check_holds_for_spec_and_ours(implementation, capable, examples):
    areas = tuple(area for area in Area if area in implementation.areas and (area in CAPABILITIES) == capable)
    report = Check(implementation, areas, PROFILES["quick"], seed=1, max_examples=examples).run()
    assert [(found.invariant.id, found.complaint) for found in report.falsified] == []
    assert report.not_exercised == []
    assert all(tally.right == tally.driven for tally in report.codes.values())
    assert all(tally.examples > 0 for tally in report.invariants.values())


def only(monkeypatch, area, *names):
    """Let a check of an area run these streams alone."""
    streams = [stream for stream in request_streams(area) if stream.name in names]
    assert len(streams) == len(names)
    monkeypatch.setattr("rollproof.properties.gate.run.request_streams", lambda _: streams)


def test_a_check_that_does_not_ask_enough_fails_itself(run, monkeypatch):
    only(monkeypatch, Area.RECEIPT, "valid")
    arguments = ("check", "spec", "--profile", "quick", "--area", "receipt", "--jobs", "1", "--report", "out")
    result = run(*arguments)
    assert result.exit_code == 2
    assert "not exercised: receipt: invalid_receipt ·" in result.output
    (report,) = json.loads(Path("out/report.json").read_text(encoding="utf-8"))
    missed = ["receipt: invalid_receipt"]
    assert (report["held"], report["exercised"], report["not_exercised"]) == (True, False, missed)
    assert sum(suite.errors for suite in JUnitXml.fromfile("out/junit.xml")) == 1
    assert "not exercised: receipt: invalid_receipt" in Path("out/report.html").read_text(encoding="utf-8")
    few = run(*arguments, "--max-examples", "3")
    assert few.exit_code == 0
    assert "all invariants held · 1 rule not exercised" in few.output


def test_a_code_of_single_rollouts_is_not_exercised_in_groups(monkeypatch):
    only(monkeypatch, Area.GROUP, "valid")
    report = Check(Reference(), (Area.GROUP,), PROFILES["quick"], 0).run()
    wanted = {"group: missing_receipt in a group", "group: rebuild_failed:wrong_digest in a group"}
    assert wanted <= set(report.not_exercised)


def test_what_is_falsified_comes_before_what_is_not_exercised(run, monkeypatch):
    only(monkeypatch, Area.GROUP, "valid")
    result = run("check", "mutant:n-minus-one-rows", "--profile", "quick", "--jobs", "1")
    assert result.exit_code == 1
    assert "falsified: GROUP-2" in result.output


def test_what_is_not_offered_or_left_out_is_not_missed():
    class Few(Reference):
        """Digests media alone, and of extras only what is null."""

        name = "few"
        areas = frozenset({Area.RETAINED, Area.ROUTES})
        offered = frozenset({MediaDigest, DecodeRoutes})

        def decode_routes(self, payload):
            raise LeftOut("never")

    report = Check(Few(), (Area.ROUTES, Area.RETAINED), PROFILES["quick"], 0, shrink=False).run()
    assert report.not_exercised == []
    assert report.codes[Area.ROUTES, "invalid_route_envelope"].left_out > 0
    assert not report.codes[Area.ROUTES, "missing_fragment"].offered
    assert report.codes[Area.RETAINED, "media_capture_rejected"].driven > 0


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


def test_growth_does_not_count_what_the_garbage_collector_calls():
    def call():
        return [[] for _ in range(100)]

    def called_back(phase, info):
        assert phase in {"start", "stop"}
        assert isinstance(info, dict)

    alone = count_lines(call, None)
    threshold = gc.get_threshold()
    gc.callbacks.append(called_back)
    gc.set_threshold(1)
    try:
        assert count_lines(call, None) == alone
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(called_back)


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


EXAMPLE = CallDigest(call(token_mask_delta=(-0.0, 1.0)))


def plus_zero_masks(call):
    return evolve(call, token_mask_delta=tuple(0.0 if repr(mask) == "-0.0" else mask for mask in call.token_mask_delta))


def minus_zero_mask(asked, expected):
    if (
        isinstance(asked, CallDigest)
        and isinstance(expected, Refused)
        and "-0.0" in map(repr, asked.call.token_mask_delta)
    ):
        yield answer(CallDigest(plus_zero_masks(asked.call)))


class Lenient(Reference):
    """Takes −0.0 for 0.0."""

    name = "lenient"
    areas = frozenset({Area.DIGEST})
    deviations = (
        Deviation("D2", Area.DIGEST, "1", "takes -0.0 as a mask", minus_zero_mask, (EXAMPLE,)),
        Deviation("D0", Area.DIGEST, "1", "never shows", lambda *_: (), (EXAMPLE,)),
    )

    def call_digest(self, call):
        return super().call_digest(plus_zero_masks(call))


def test_declared_deviations_are_counted_apart():
    report = Check(Lenient(), (Area.DIGEST,), PROFILES["ci"], seed=0).run()
    assert report.held
    assert set(report.deviations) == {"D2"}
    assert report.deviation_counts["D2"] > 0
    assert report.silent_deviations == ["D0"]
    assert report.deviations["D2"].request == EXAMPLE


def test_the_examples_of_a_deviation_are_always_run():
    """One example per stream, none of which has a -0.0: the declared example shows all the same."""
    for seed in range(3):
        report = Check(Lenient(), (Area.DIGEST,), PROFILES["quick"], seed, max_examples=1).run()
        assert report.silent_deviations == ["D0"]
        assert report.streams[Area.DIGEST, DECLARED].requests == len(Lenient.deviations)


def test_a_deviation_excuses_its_own_answer_alone():
    """An implementation that answers the declared input with another digest than the declared one is wrong."""

    class Constant(Lenient):
        name = "constant"

        def call_digest(self, call):
            return "0" * 64 if "-0.0" in map(repr, call.token_mask_delta) else super().call_digest(call)

    report = Check(Constant(), (Area.DIGEST,), PROFILES["quick"], 0, max_examples=1, shrink=False).run()
    assert report.deviations == {}
    assert [finding.request for finding in report.falsified] == [EXAMPLE]


def test_a_deviation_without_an_example_is_refused():
    with pytest.raises(ValueError, match="examples"):
        Deviation("D0", Area.DIGEST, "1", "never shows", lambda *_: (), ())


def test_check_exit_codes(run):
    assert run("check", "spec", "--profile", "quick", "--area", "digest").exit_code == 0
    result = run("check", "mutant:unstamped-roots-first", "--profile", "quick")
    assert result.exit_code == 1
    assert "falsified: TERMINAL-1" in result.output
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


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.deep)])
def test_hostile_receipts_never_raise(count):
    (stream,) = [stream for stream in request_streams(Area.ROLLOUT) if stream.name == "hostile:receipts"]
    ours, asked = Ours(), []

    def body(request):
        answer = ask(ours, realize_request(request))
        asked.append(1)
        assert isinstance(answer, Accepted), answer
        assert answer.value.rollout is not None

    exercise(stream.strategy, body, count, 0, (Phase.generate,))
    assert len(asked) >= count
