"""Right implementations that do it otherwise: gate, audit and pytest plugin hold each; without latitude some fall."""

from __future__ import annotations

import re
from itertools import count
from unittest.mock import patch

import pytest
from click.testing import CliRunner
from hypothesis import Phase

from rollproof.properties.adapters.asking import ask
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.cli import main
from rollproof.properties.gate import run as gate_run
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check, exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.right import PORTABLE_RIGHT, RIGHT, load_right
from rollproof.properties.right.portable import PortableImplementation
from rollproof.properties.right.variant import AREAS
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area, FinalizeGroups
from rollproof.spec.judge.rules import group, media, rollout, routes

pytest_plugins = ["pytester"]
NAMES = [variant.name for variant in RIGHT]
ORDER = [area for area in Area if area in AREAS]


def fallen(name, areas=ORDER, examples=4):
    found = set()
    for area in areas:
        report = Check(load_right(name), (area,), PROFILES["quick"], 0, examples, shrink=False).run()
        found |= {(finding.invariant_id, finding.complaint) for finding in report.falsified}
    return found


def test_there_are_many_and_each_has_a_name():
    assert len(set(NAMES)) == len(NAMES) >= 12
    with pytest.raises(LookupError, match="no right variant 'nonsense'; there are"):
        load_right("nonsense")


@pytest.mark.parametrize("variant", PORTABLE_RIGHT, ids=lambda one: one.name)
def test_a_portable_variant_is_held_under_its_policies_and_falls_without_any_of_them(variant):
    def judged(policies):
        implementation = PortableImplementation(variant, policies)
        return Check(implementation, (variant.area,), PROFILES["quick"], 0, 4, shrink=False).run()

    report = judged(variant.policies)
    assert [(finding.invariant_id, finding.complaint) for finding in report.falsified] == []
    assert report.not_exercised == []
    for policy in variant.policies:
        assert judged(variant.policies - {policy}).falsified, f"{policy} permits nothing that it needs"
    assert load_right(variant.name).policies == variant.policies


@pytest.mark.parametrize("name", NAMES)
def test_drawn_groups_hold_it(name, monkeypatch):
    drawn = [stream for stream in request_streams(Area.GROUP) if stream.name in ("valid", "mixed", "faults")]
    assert len(drawn) == 3
    monkeypatch.setattr(gate_run, "request_streams", lambda _: drawn)
    assert fallen(name, [Area.GROUP]) == set()


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_the_gate_holds_it(name):
    assert fallen(name) == set()


@pytest.mark.parametrize("examples", [1, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", NAMES)
def test_the_audit_holds_it(name, examples, tmp_path):
    numbers, judged, recorders = count(), [], []
    kind = type(load_right(name))

    class Recorded(kind):
        def build(self, plane, config):
            recorders.append(Recorder(tmp_path / f"{next(numbers)}.jsonl", plane).__enter__())
            reassembler = super().build(recorders[-1].client, config)
            recorders[-1].watch(reassembler)
            return reassembler

    def body(request):
        if isinstance(request, FinalizeGroups):
            ask(Recorded(), realize_request(request))

    for area in (Area.GROUP, Area.ROUTES, Area.MEDIA):
        for stream in request_streams(area):
            if "groups" in stream.name or stream.name in ("valid", "mixed", "faults"):
                exercise(stream.strategy, body, examples, 1, (Phase.generate,))
    for recorder in recorders:
        recorder.close()
        assert recorder.lost == 0
        for line in recorder.path.read_bytes().splitlines():
            judged.append(judge(read_line(line, recorder.path)))
    assert [verdict.broken for verdict in judged if verdict.broken] == []
    assert len(judged) > 7 * examples


@pytest.mark.deep
def test_the_pytest_plugin_holds_one(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    arguments = ("--rollproof", "right:cleanup-in-another-order", "--rollproof-area", "group")
    result = pytester.runpytest_subprocess(*arguments, "--rollproof-max-examples", "2", "-k", "GROUP")
    counts = result.parseoutcomes()
    assert counts["passed"] >= 17
    assert not counts.keys() & {"failed", "errors", "skipped"}


def test_without_latitude_other_reads_are_called_wrong():
    """What the judge leaves open is used: reads that were never made."""
    with patch.object(gate_run, "answer_to", lambda request, _: answer(request)):
        assert {"GROUP-6", "GROUP-17"} <= {name for name, _ in fallen("whole-group-read", [Area.GROUP], 1)}


LATITUDE = ("own-metrics", "own-tags", "cleanup-in-another-order", "whole-number-metrics")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name != LATITUDE[0])) for name in LATITUDE]
)
def test_without_latitude_right_variants_are_called_wrong(name):
    """What the judge leaves open is used: the order of cleanup, names of one's own."""
    same = {"comparable": lambda value: value, "comparable_rollout": lambda value: value}
    modules = (group, media, rollout, routes)
    patches = [
        patch.object(module, name, other) for module in modules for name, other in same.items() if hasattr(module, name)
    ]
    for one in patches:
        one.start()
    try:
        assert "GROUP-17" in {invariant for invariant, _ in fallen(name, [Area.GROUP], 1)}
    finally:
        for one in patches:
            one.stop()


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollproof.properties.right.AREAS", {Area.GROUP})
    result = CliRunner().invoke(main, ["mutants", "--right", "own-tags", "--jobs", "1"])
    assert result.exit_code == 0
    assert "1 of 1 right variants held" in result.output
    result = CliRunner().invoke(main, ["mutants", "--right", "nonsense"])
    assert result.exit_code == 2
    assert re.search("no right variant .nonsense.", result.output)
