"""Many rounds over all streams of an implementation: which one is next, and what they found together.

Every stream gets a short round first, in an order drawn from the seed. Then those go first that still reach new arcs,
and, as rounds without news add up, all others in turn.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

from attrs import define, evolve, field

from rollproof.properties.cluster import Cluster
from rollproof.properties.fuzz.corpus import Corpus
from rollproof.properties.fuzz.crew import Crew, interruptible
from rollproof.properties.fuzz.limits import LimitFinding, Measured
from rollproof.properties.fuzz.rounds import Key, Round, RoundResult, run_round, text_size
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import CodeTally, Finding, InvariantTally, Report
from rollproof.properties.gate.run import Check, streams_for
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.judge.requests import Area

FIRST_ROUND: Final = 25
ROUND: Final = 100
"""Examples of a stream's first round, and of the others."""


@define
class StreamState:
    """The state of one stream."""

    stream: Stream
    hits: Counter[int] = field(factory=Counter)
    rounds: int = 0
    novelty: float = 0.0
    """New arcs per round, older rounds counting half as much as the next."""
    replayed: bool = False
    busy: bool = False
    finished: bool = False

    @property
    def name(self) -> str:
        """The stream's name among those of all areas."""
        return f"{self.stream.area}/{self.stream.name}"

    @property
    def energy(self) -> float:
        """How promising another round is."""
        return (1 + self.novelty) / (1 + self.rounds)


@define
class Campaign:
    """The state of a run. ``report`` carries examples, codes and deviations as a gate's report does."""

    name: str
    seed: int
    report: Report
    states: dict[str, StreamState]
    corpus: Corpus
    findings: dict[Key, Finding] = field(factory=dict)
    times: Counter[Key] = field(factory=Counter)
    limits: dict[tuple[str, ...], LimitFinding] = field(factory=dict)
    crashes: int = 0
    done: int = 0
    replayed: int = 0
    rounds: int = 0
    slowest: Measured | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, name: str, implementation: Any, areas: tuple[Area, ...], seed: int, corpus: Path | None) -> Campaign:
        """Return a run that has not begun."""
        report = evolve(Check(implementation, areas, PROFILES["deep"], seed).report, implementation=name)
        states = [StreamState(stream) for stream in streams_for(areas, implementation)]
        Random(seed).shuffle(states)
        return cls(name, seed, report, {state.name: state for state in states}, Corpus(corpus))

    # ── what is next ────────────────────────────────────────────────────────────────────────────────────────────────

    def next_round(self, examples: int | None) -> Round | None:
        """Return the round to run next, of at most so many examples; None if there is nothing to do now."""
        free = [state for state in self.states.values() if not state.busy and not state.finished]
        for state in free:
            if not state.replayed:
                state.replayed = True
                if self.corpus.of(state.name):
                    return self._round(state, 0, replay=True)
        if not free or examples == 0:
            return None
        state = max(free, key=lambda one: (one.rounds == 0, one.energy))
        planned = FIRST_ROUND if state.rounds == 0 else ROUND
        if not state.stream.weight:
            planned, state.finished = 1, True
        state.rounds += 1
        return self._round(state, planned if examples is None else min(planned, examples))

    def _round(self, state: StreamState, examples: int, *, replay: bool = False) -> Round:
        state.busy = True
        return Round(
            state.stream.area,
            state.stream.name,
            state.rounds,
            examples,
            self.seed,
            dict(state.hits),
            self.corpus.of(state.name),
            replay,
            frozenset(self.findings),
        )

    # ── what was found ──────────────────────────────────────────────────────────────────────────────────────────────

    def merge(self, result: RoundResult) -> None:
        """Add a round's result."""
        task = result.round
        state = self.states[task.name]
        state.busy = False
        new = len(result.hits.keys() - state.hits.keys())
        state.hits.update(result.hits)
        if task.replay:
            self.replayed += result.done
            if result.done:
                self.corpus.replace(task.name, result.kept)
        else:
            state.novelty = state.novelty / 2 + new
            state.finished |= result.done > 0 and not result.offered
            self.corpus.add(task.name, result.kept)
            self.rounds += 1
            self.done += result.done
        self._count(result)
        for key, finding in result.findings.items():
            self.times[key] += result.times[key]
            self._keep(key, finding)
        for limit in result.limits:
            known = self.limits.get(limit.key)
            if known is None or limit.measured.size < known.measured.size:
                self.limits[limit.key] = limit

    def _count(self, result: RoundResult) -> None:
        self.crashes += result.crashes
        self.report.requests += result.report.requests
        for name, tally in result.report.invariants.items():
            self.report.invariants.setdefault(name, InvariantTally()).examples += tally.examples
        for code, codes in result.report.codes.items():
            total = self.report.codes.setdefault(code, CodeTally())
            total.driven += codes.driven
            total.right += codes.right
            total.excused += codes.excused
        for name, count in result.report.deviation_counts.items():
            self.report.deviation_counts[name] = self.report.deviation_counts.get(name, 0) + count
        for name, finding in result.deviations.items():
            self.report.deviations.setdefault(name, finding)
        if result.slowest and (self.slowest is None or result.slowest.seconds > self.slowest.seconds):
            self.slowest = result.slowest

    def _keep(self, key: Key, finding: Finding) -> None:
        known = self.findings.get(key)
        if known is None or text_size(finding.request) < text_size(known.request):
            self.findings[key] = finding
            tally = self.report.invariants[finding.invariant_id]
            if tally.finding is None or known is tally.finding:
                tally.finding = finding

    @property
    def arcs(self) -> int:
        """How many different arcs were reached."""
        return len(set().union(*(state.hits for state in self.states.values())))

    @property
    def beyond(self) -> list[LimitFinding]:
        """The inputs that break a limit, declared deviations aside."""
        return [limit for limit in self.limits.values() if limit.deviation is None]

    @property
    def held(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and not self.beyond


def run_campaign(
    campaign: Campaign, examples: int | None, minutes: float | None, place: int | Cluster, changed: Callable[[], None]
) -> None:
    """Run rounds until so many examples are done, or so many minutes are over. ``changed`` is called after each."""
    started = time.monotonic()
    crew: Crew[Round, RoundResult]
    with Crew(campaign.name, run_round, place, minutes) as crew, interruptible(crew.stop):
        under_way: list[Round] = []
        while True:
            while not crew.full and not crew.stop():
                planned = sum(task.examples for task in under_way)
                task = campaign.next_round(None if examples is None else max(0, examples - campaign.done - planned))
                if task is None:
                    break
                under_way.append(task)
                crew.give(task)
            if not under_way:
                break
            campaign.merge(crew.take())
            under_way.pop(0)
            campaign.seconds = time.monotonic() - started
            changed()


def names_of(findings: Iterable[Finding]) -> list[str]:
    """Return a name for each finding: its invariant, numbered where there are several."""
    counts: Counter[str] = Counter()
    names = []
    for finding in findings:
        counts[finding.invariant_id] += 1
        names.append(f"{finding.invariant_id}-{counts[finding.invariant_id]}")
    return names
