"""One round of fuzzing: some examples of one stream, sent to an implementation and to the spec.

Hypothesis draws and mutates the examples. It is told how rare the arcs are that an example went through, and climbs
towards rarer ones in the second half of the round. A round is a function of what it starts from.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from hashlib import sha256
from typing import Any, Final

from attrs import define, evolve, field, frozen
from hypothesis import Phase, target
from hypothesis.errors import Flaky

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import offers
from rollproof.properties.errors import LeftOut
from rollproof.properties.fuzz.arcs import Tracer, features, packages_of, shape
from rollproof.properties.fuzz.corpus import RoundDatabase
from rollproof.properties.fuzz.limits import (
    GaveUp,
    LimitFinding,
    Measured,
    alarm,
    clock_of,
    guarded,
    judged,
    measure,
    seconds_per_unit,
)
from rollproof.properties.fuzz.size import input_size
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.gate.run import Check, both_answers, exercise, streams_for
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.stream import Stream
from rollproof.properties.wire.codec import dump
from rollproof.spec.judge.oracle import answer_to
from rollproof.spec.judge.requests import Answer, Area, Crashed, LinearizeGrowth, Request

NEVER_OFFERED: Final = 8
"""After so many requests that the implementation does not answer, and none that it does, a round ends."""
SHRINK_EXAMPLES: Final = 500
"""How many examples may be spent on the smallest input of one disagreement. Not seconds: a round must repeat."""

Key = tuple[str, str, str]


def key_of(finding: Finding) -> Key:
    """Return what distinguishes a disagreement from others: the invariant, and how both answers ended."""
    return finding.invariant_id, shape(finding.expected), shape(finding.actual)


def text_size(request: Request) -> int:
    """Return the characters of a request as JSON."""
    return len(json.dumps(dump(request)))


TRACED: Final = 25
"""How many times slower an answer may be while its arcs are traced; beyond that it is measured without."""


@frozen
class Round:
    """The starting point of a round."""

    area: Area
    stream: str
    number: int
    examples: int
    seed: int
    hits: Mapping[int, int] = field(factory=dict, repr=False)
    """How many examples of the stream went through each arc."""
    corpus: tuple[bytes, ...] = field(default=(), repr=False)
    replay: bool = False
    """Run the corpus and nothing else."""
    seen: frozenset[Key] = frozenset()
    """Disagreements that are known already; they are counted, not shrunk again."""

    @property
    def name(self) -> str:
        """The stream's name among those of all areas."""
        return f"{self.area}/{self.stream}"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What Hypothesis does in this round."""
        return (Phase.reuse,) if self.replay else (Phase.reuse, Phase.generate, Phase.target)


@define
class RoundResult:
    """The outcome of a round."""

    round: Round
    report: Report
    """Examples, codes and deviations, counted as the gate does. Its invariants name no findings."""
    done: int = 0
    offered: int = 0
    hits: Counter[int] = field(factory=Counter)
    kept: tuple[bytes, ...] = ()
    findings: dict[Key, Finding] = field(factory=dict)
    times: Counter[Key] = field(factory=Counter)
    deviations: dict[str, Finding] = field(factory=dict)
    limits: list[LimitFinding] = field(factory=list)
    crashes: int = 0
    """Answers in which something escaped, declared deviations aside."""
    slowest: Measured | None = None
    """The input that took longest, measured again without tracing."""


class _Ended(BaseException):
    """The round ends here; Hypothesis lets this through."""


class _Violated(Exception):
    """The disagreement that is being shrunk."""


class _Runner:
    """One pass over a round's examples."""

    def __init__(self, implementation: Any, task: Round, stop: Callable[[], bool]) -> None:
        self.implementation = implementation
        self.task = task
        self.stop = stop
        self.stream = _stream(implementation, task)
        check = Check(implementation, (task.area,), PROFILES["deep"], task.seed)
        self.check = check
        self.result = RoundResult(task, check.report)
        self.database = RoundDatabase(task.corpus)
        self.tracer = Tracer(packages_of(implementation))
        self.clock = clock_of(implementation)
        self.longest = 0.0
        self.longest_request: Request | None = None

    def run(self, phases: tuple[Phase, ...], body: Callable[[Request], None]) -> None:
        """Run ``body`` on the round's examples."""
        task = self.task
        examples = len(task.corpus) + 1 if task.replay else task.examples
        with guarded(), suppress(_Ended):
            exercise(self.stream.strategy, body, examples, round_seed(task), phases, self.database)

    def ask_both(self, request: Request) -> tuple[Answer, Answer, set[int], float]:
        """Return both answers, what they executed, and the seconds that the implementation's took."""
        seconds = 0.0

        def both() -> tuple[Answer, Answer]:
            nonlocal seconds
            own = realize_request(request)
            started = self.clock()
            try:
                # Growth is counted in lines, however long that takes.
                with nullcontext() if isinstance(request, LinearizeGrowth) else alarm():
                    actual = ask(self.implementation, own)
            except GaveUp:
                actual = Crashed(GaveUp.__name__, "no answer")
            seconds = self.clock() - started
            return answer_to(realize_request(request), actual), actual

        if isinstance(request, LinearizeGrowth):
            # It has its own tracing.
            return *both(), set(), 0.0
        (expected, actual), arcs = self.tracer.run(both)
        return expected, actual, arcs | features(type(request).__name__, expected, actual), seconds

    def example(self, request: Request) -> None:
        """Send one example to both, and learn from it."""
        result = self.result
        self.database.novel = False
        if self.stop():
            raise _Ended
        result.done += 1
        if not offers(self.implementation, type(request)):
            if result.done == NEVER_OFFERED and not result.offered:
                raise _Ended
            return
        try:
            expected, actual, arcs, seconds = self.ask_both(request)
        except LeftOut:
            return
        result.offered += 1
        novel = not arcs <= self.task.hits.keys() | result.hits.keys()
        if novel:
            # What a process goes through for the first time is not a property of the input: caches are filled now.
            arcs = self.ask_both(request)[2]
        self.learn(arcs)
        self.judge(request, expected, actual, seconds)

    def learn(self, arcs: set[int]) -> None:
        """Tell Hypothesis how rare the arcs are, and keep the example if one is new."""
        hits, result = self.task.hits, self.result
        target(sum(1 / (1 + hits.get(arc, 0)) for arc in sorted(arcs)), label="rarity")
        new = [arc for arc in arcs if arc not in hits and arc not in result.hits]
        if new:
            self.database.novel = True
            target(1.0, label=f"new {min(new)}")
        result.hits.update(arcs)

    def judge(self, request: Request, expected: Answer, actual: Answer, seconds: float) -> None:
        """Keep what is wrong with the answers, or with how long and how much they took."""
        result = self.result
        found = self.check.record(self.stream, request, expected, actual, result.done)
        for finding in found:
            if finding.deviation is not None:
                result.deviations.setdefault(finding.deviation, finding)
            else:
                result.times[key_of(finding)] += 1
                result.findings.setdefault(key_of(finding), finding)
        if isinstance(actual, Crashed):
            result.crashes += any(finding.deviation is None for finding in found) or not found
        if seconds > self.longest:
            self.longest, self.longest_request = seconds, request
        self.limit(request, actual, seconds, known=bool(found))

    def limit(self, request: Request, actual: Answer, seconds: float, *, known: bool) -> None:
        """Measure what is worth it: whatever reached something new, and what took long although it was traced."""
        if isinstance(request, LinearizeGrowth) or (isinstance(actual, Crashed) and known):
            return
        if self.database.novel:
            measured = measure(self.implementation, realize_request(request))
        elif seconds > TRACED * seconds_per_unit() or isinstance(actual, Crashed):
            measured = Measured(actual, input_size(realize_request(request)), seconds)
        else:
            return
        finding = judged(self.implementation, request, measured, self.task.name)
        if finding is not None:
            self.result.limits.append(finding)

    def shrunk(self, first: Finding) -> Finding:
        """Return the smallest input found for a disagreement: the same round again, which Hypothesis then shrinks."""
        again = _Runner(self.implementation, self.task, lambda: False)
        best, smallest, spent = first, text_size(first.request), 0

        def violates(request: Request) -> None:
            nonlocal best, smallest, spent
            spent += spent > 0
            if spent > SHRINK_EXAMPLES or self.stop():
                raise _Ended
            again.result.times.clear()
            again.result.findings.clear()
            if spent:
                again.quick(request)
            else:
                again.example(request)
            found = again.result.findings.get(key_of(first))
            if found is None:
                return
            spent = spent or 1
            if text_size(found.request) < smallest:
                best, smallest = evolve(found, after=first.after), text_size(found.request)
            raise _Violated

        with suppress(_Violated, Flaky):
            again.run((*self.task.phases, Phase.shrink), violates)
        return best

    def quick(self, request: Request) -> None:
        """Judge an example without learning from it."""
        if not offers(self.implementation, type(request)):
            return
        with suppress(LeftOut):
            expected, actual = both_answers(self.implementation, request)
            for finding in self.check.record(self.stream, request, expected, actual, 0):
                if finding.deviation is None:
                    self.result.findings.setdefault(key_of(finding), finding)


def run_round(implementation: Any, task: Round, stop: Callable[[], bool]) -> RoundResult:
    """Run a round, and look for the smallest input of each disagreement that is new."""
    runner = _Runner(implementation, task, stop)
    runner.run(task.phases, runner.example)
    result = runner.result
    result.kept = tuple(runner.database.kept)
    if runner.longest_request is not None and not stop():
        with guarded():
            result.slowest = measure(implementation, realize_request(runner.longest_request), memory=False)
    for key, finding in result.findings.items():
        if key not in task.seen and runner.stream.weight and not stop():
            result.findings[key] = runner.shrunk(finding)
    return result


def round_seed(task: Round) -> int:
    """Return a seed of its own for every round."""
    return int.from_bytes(sha256(f"{task.seed} {task.number} {task.name}".encode()).digest()[:8])


def _stream(implementation: Any, task: Round) -> Stream:
    return next(one for one in streams_for((task.area,), implementation) if one.name == task.stream)
