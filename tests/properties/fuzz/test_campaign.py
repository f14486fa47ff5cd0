"""The fuzzer: the same results however many workers, a corpus that is taken up again, and limits that are noticed."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import planted
import pytest
from campaigns import campaign, outcome
from click.testing import CliRunner
from hypothesis import Phase
from hypothesis import strategies as st

from rollproof.properties.adapters.ours import Ours
from rollproof.properties.cli import main
from rollproof.properties.fuzz import limits
from rollproof.properties.fuzz.arcs import Tracer, packages_of
from rollproof.properties.fuzz.campaign import Campaign, run_campaign
from rollproof.properties.fuzz.corpus import Corpus, RoundDatabase
from rollproof.properties.fuzz.hostile_inputs import KINDS, Batch, batches, run_batch
from rollproof.properties.fuzz.limits import MEMORY_FLOOR, Limit, Measured, measure
from rollproof.properties.fuzz.rounds import Round, run_round
from rollproof.properties.fuzz.size import input_size
from rollproof.properties.gate.run import exercise
from rollproof.properties.strategies.rollouts.recipes import BigInt, Nest, realize
from rollproof.properties.wire.codec import dump, load
from rollproof.spec.judge.requests import Accepted, Area, Crashed, DecodePlan, ParseReceipt
from rollproof.spec.tensor import Tensor


@pytest.fixture
def fuzz(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, ["fuzz", *arguments])


def never():
    return False


# ── what is found ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fault", "invariant", "examples"), [("LaterRoot", "TERMINAL-1", 300), ("Utf16Order", "DIGEST-2", 500)]
)
def test_planted_fault_is_found(fuzz, fault, invariant, examples):
    result = fuzz(f"planted:{fault}", "--examples", str(examples))
    assert result.exit_code == 1
    assert f"falsified: {invariant}" in result.output
    (file,) = Path(".rollproof/replays").glob("*.json")
    assert json.loads(file.read_text())["invariant"] == invariant
    assert CliRunner().invoke(main, ["replay", str(file), f"planted:{fault}"]).exit_code == 1
    assert CliRunner().invoke(main, ["replay", str(file), "impl"]).exit_code == 0


def test_planted_fault_on_one_stream():
    task = Round(Area.ROUTES, "broken envelopes", 1, 400, 0)
    result = run_round(planted.LooseEnd(), task, never)
    (finding,) = result.findings.values()
    assert finding.invariant_id.startswith("ROUTE-")
    assert len(finding.request.payload) < 30
    assert not run_round(Ours(), task, never).findings


def test_campaign_finds_nothing_in_ours(fuzz):
    result = fuzz("impl", "--area", "terminal", "--examples", "60")
    assert result.exit_code == 0, result.output
    assert "nothing found · 60 examples" in result.output


def test_workers_do_not_change_the_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        campaign(planted.Swallowed(), Area.RECEIPT, examples=400, workers=workers, corpus=tmp_path / str(workers))
        for workers in (1, 2)
    ]
    assert runs[0].findings
    assert outcome(runs[0]) == outcome(runs[1])


def test_corpus_is_replayed_and_pruned(tmp_path):
    first = campaign(Ours(), Area.TERMINAL, examples=100, corpus=tmp_path)
    assert len(first.corpus) > 5
    again = campaign(Ours(), Area.TERMINAL, examples=1, corpus=tmp_path)
    assert 5 < again.replayed <= len(first.corpus)
    assert again.done == 1
    assert again.arcs >= first.arcs
    disk = Corpus(tmp_path)
    kept = {name: disk.of(name) for name in first.states}
    assert sum(map(len, kept.values())) == len(again.corpus) <= len(first.corpus)


def test_interrupt_keeps_what_was_found(tmp_path):
    pressed = []

    def interrupt():
        if run.findings and not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGINT))

    run = Campaign.of("planted:Swallowed", planted.Swallowed(), (Area.RECEIPT,), 0, tmp_path)
    run_campaign(run, 100_000, None, 1, interrupt)
    assert run.findings
    assert run.done < 2000
    assert any(Corpus(tmp_path).of(name) for name in run.states)


def test_minutes_end_a_run(fuzz):
    result = fuzz("impl", "--area", "terminal", "--minutes", "0.02")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("impl",),
        ("impl", "--hostile", "--area", "media", "--examples", "1"),
        ("nothing", "--examples", "1"),
        ("planted:LaterRoot", "--area", "media", "--examples", "1"),
        ("--measure", "missing.json"),
    ],
)
def test_wrong_calls(fuzz, arguments):
    result = fuzz(*arguments)
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1


# ── the pieces ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hypothesis_keeps_what_is_new():
    database = RoundDatabase()
    seen = []

    def body(value):
        from hypothesis import target

        database.novel = value // 100 not in seen
        seen.append(value // 100)
        target(1.0, label=f"new {len(seen)}")

    exercise(st.integers(0, 1000), body, 50, 1, (Phase.reuse, Phase.generate, Phase.target), database)
    kept = list(database.kept)
    assert len(kept) == len(set(seen)) > 3
    replayed = []
    exercise(st.integers(0, 1000), replayed.append, 50, 2, (Phase.reuse,), RoundDatabase(kept))
    assert {value // 100 for value in replayed} == set(seen)


def test_arcs_tell_paths_apart_and_repeat():
    tracer = Tracer(packages_of(Ours()))
    ours = Ours()
    requests = [ParseReceipt(5), ParseReceipt({}), DecodePlan([])]
    first = [tracer.run(lambda request=request: measure(ours, request, memory=False))[1] for request in requests]
    second = [tracer.run(lambda request=request: measure(ours, request, memory=False))[1] for request in requests]
    assert first == second
    assert len({frozenset(arcs) for arcs in first}) == 3
    assert all(first)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("abc", 5),
        (None, 4),
        ([1, 2], 6),
        ({"a": "b"}, 10),
        (Tensor("uint8", (100,), bytes(100)), 116),
        (Nest("list", 100_000), 300_004),
        (BigInt(5000), 5004),
    ],
)
def test_input_size(value, size):
    assert abs(input_size(realize(value)) - size) <= size // 50


UNIT_SECONDS = limits.seconds_per_unit()


def test_the_clock_goes_on_while_an_alarm_is_set():
    """With a timer of processor time, a kernel may set its own clock of the process at ticks only."""
    clock = limits.clock_of(Ours())
    with limits.guarded(), limits.alarm():
        read = {clock() for _ in range(1000)}
    assert len(read) > 20


class Busy(Ours):
    """Reads receipts a quarter slower than the limit, whatever their size: some 5 ms per kB."""

    def parse_receipt(self, value):
        for _ in range(limits.TURNS_PER_UNIT * 5 // 4 * max(1, input_size(value) // limits.UNIT + 1)):
            pass
        return super().parse_receipt(value)


@pytest.mark.untraced  # tracing slows the loop by which the limit is measured, and no other
def test_a_busy_loop_of_a_few_milliseconds_per_kilobyte_is_found(monkeypatch):
    """Of ten tries, because other tests on the machine make it measure too much now and then, or too little."""
    measure = limits.seconds_per_unit.__wrapped__

    def tried(implementation):
        for _ in range(10):
            untraced = measure()
            monkeypatch.setattr(limits, "seconds_per_unit", lambda seconds=untraced: seconds)
            tally = run_batch(implementation, Batch("receipts", 0, 3, 0))
            assert 0 <= tally.slowest.value <= tally.first.value
            yield Limit.TIME in tally.broken

    assert any(tried(Busy()))
    assert not all(tried(Ours()))


class Hoarding(Ours):
    """Finalizes rollouts with a third more memory than the limit, counted by their size: some 40 bytes per byte."""

    def finalize_rollout(self, config, rollout_id, receipt, reward, staging):
        size = input_size((config, rollout_id, receipt, reward, staging)) + limits.ROLLOUT_BYTES
        hoard = bytearray(limits.MEMORY_RATIO * 4 // 3 * size)
        found = super().finalize_rollout(config, rollout_id, receipt, reward, staging)
        assert hoard
        return found


def test_a_third_more_memory_than_the_limit_is_found():
    batch = Batch("rows", 0, 8, 0)
    hoarding, ours = run_batch(Hoarding(), batch), run_batch(Ours(), batch)
    assert hoarding.broken[Limit.MEMORY] == hoarding.inputs == 8
    assert Limit.MEMORY not in ours.broken
    assert ours.greediest.value < limits.MEMORY_RATIO < hoarding.greediest.value


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        (Measured(Accepted(1), 10, 0.9 * UNIT_SECONDS, MEMORY_FLOOR), None),
        (Measured(Accepted(1), 10, 1.1 * UNIT_SECONDS), Limit.TIME),
        (Measured(Accepted(1), 100_000, 90 * UNIT_SECONDS, 3_000_000), None),
        (Measured(Accepted(1), 100_000, 110 * UNIT_SECONDS), Limit.TIME),
        (Measured(Accepted(1), 100_000, UNIT_SECONDS, 3_000_001), Limit.MEMORY),
        (Measured(Accepted(1), 10, 0.0, MEMORY_FLOOR + 1), Limit.MEMORY),
        (Measured(Accepted(1), 1_000, 0.0, 150_000, fixed=4_000), None),
        (Measured(Accepted(1), 1_000, 0.0, 150_001, fixed=4_000), Limit.MEMORY),
        (Measured(Accepted(1), 10, 0.0, 0, 2**30), Limit.MEMORY),
        (Measured(Crashed("KeyError"), 10, 0.0), Limit.CRASH),
    ],
)
def test_measured_names_the_limit_that_is_broken(measured, limit):
    assert measured.broken is limit


def test_no_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(limits, "GIVE_UP", 0.3)
    ours = planted.Endless()
    with limits.guarded():
        found = measure(ours, ParseReceipt({}))
        finding = limits.judged(ours, ParseReceipt({}), found, "here")
    assert finding.limit is Limit.TIME
    assert finding.figure.endswith("and no answer")


# ── hostile inputs ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_hostile_inputs_of_ours(fuzz):
    result = fuzz("impl", "--hostile", "--examples", "600")
    assert result.exit_code == 0, result.output
    assert "all within the limits · 600 hostile inputs" in result.output


def test_kinds_share_all_inputs():
    assert sum(kind.weight for kind in KINDS) == pytest.approx(1)
    for count in (1, 7, 999, 100_000):
        assert sum(batch.count for batch in batches(count, 0)) == count


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_batches_repeat(kind):
    first, second = (list(map(repr, Batch(kind, 3, 40, 1).inputs())) for _ in range(2))
    assert first == second
    assert len(set(first)) > 20


def test_columns_without_elements_crash_what_does_not_refuse_them(monkeypatch):
    monkeypatch.setattr("rollproof.impl.columns._expect_elements", lambda tensor, name: None)
    tally = run_batch(Ours(), Batch("forms", 0, 60, 1))
    assert tally.crashed > 3
    broken = {finding.limit for finding in tally.findings.values()}
    assert Limit.CRASH in broken <= {Limit.CRASH, Limit.MEMORY}


def test_odd_forms_survive_a_file():
    for request in Batch("forms", 0, 40, 2).inputs():
        assert repr(load(json.loads(json.dumps(dump(request))))) == repr(request)


@pytest.mark.parametrize("examples", [240, pytest.param(400, marks=pytest.mark.deep)])
def test_planted_hostage_breaks_every_limit(fuzz, examples):
    result = fuzz("planted:Hostage", "--hostile", "--examples", str(examples))
    assert result.exit_code == 1
    files = {path.name for path in Path(".rollproof/replays").iterdir()}
    named = {re.sub(r"^planted-Hostage-(.*)\.json$", r"\1", name) for name in files}
    assert named == {"time-ParseReceipt", "memory-DecodePlan", "crash-DecodeRoutes-KeyError"}
    for name in sorted(files):
        assert f"fuzz --measure .rollproof/replays/{name} planted:Hostage" in result.output.replace("\n", "")
        again = CliRunner().invoke(main, ["fuzz", "--measure", f".rollproof/replays/{name}", "planted:Hostage"])
        assert again.exit_code == 1, again.output
        assert CliRunner().invoke(main, ["fuzz", "impl", "--measure", f".rollproof/replays/{name}"]).exit_code == 0


def test_workers_do_not_change_hostile_counts():
    tallies = [run_batch(Ours(), Batch("plans", 0, 150, 4)) for _ in range(2)]
    assert tallies[0].refused == tallies[1].refused
    assert (tallies[0].accepted, tallies[0].inputs) == (tallies[1].accepted, 150)
