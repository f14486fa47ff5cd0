"""Running streams of requests against an implementation and the spec, and keeping what differs.

A stream runs twice at most. The first pass never stops: it counts examples, codes and disagreements. Only for a
disagreement does a second pass with the same seed let Hypothesis shrink it, one invariant at a time, so that one
fault does not hide another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from unittest.mock import patch

from attrs import define, field
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.strategies import SearchStrategy

from rollproof.properties.asking import ask
from rollproof.properties.gate.coverage import answered_rightly, driven_code, reachable
from rollproof.properties.gate.profiles import Profile
from rollproof.properties.gate.results import CodeTally, Finding, InvariantTally, Report, StreamTally
from rollproof.properties.protocol import LeftOut, offers
from rollproof.properties.strategies.recipes import realize_request
from rollproof.properties.strategies.requests import Stream, request_streams
from rollproof.spec.invariant import Invariant
from rollproof.spec.invariants import BY_ID, of_area
from rollproof.spec.oracle import answer
from rollproof.spec.requests import Area, Request

SHRINK_SECONDS: Final = 5.0
"""How long one finding may be shrunk; the smallest so far is kept."""

NEVER_OFFERED: Final = 8
"""After so many requests that the implementation does not answer, and none that it does, a stream is left out."""

Progress = Callable[[str, int], None]
"""Called with a stream's name and the number of examples just done."""


def streams_for(areas: Iterable[Area], implementation: Any) -> list[Stream]:
    """The streams of some areas, in the areas' order; an implementation may bring more of its own."""
    own = getattr(implementation, "streams", lambda _area: ())
    return [stream for area in Area if area in set(areas) for stream in (*request_streams(area), *own(area))]


@define
class Check:
    """One check of one implementation. ``run`` fills the report."""

    implementation: Any
    areas: tuple[Area, ...]
    profile: Profile
    seed: int
    max_examples: int | None = None
    shrink: bool = True
    """Whether to look for the smallest input of every disagreement."""
    progress: Progress = lambda _name, _count: None
    report: Report = field(init=False)
    _codes: dict[Area, set[str]] = field(init=False)

    def __attrs_post_init__(self) -> None:
        deviations = [item for item in self.implementation.deviations if item.area in self.areas]
        self.report = Report(
            implementation=self.implementation.name,
            areas=self.areas,
            profile=self.profile.name,
            seed=self.seed,
            max_examples=self.max_examples,
            declared={item.id: item.sentence for item in deviations},
            invariants={item.id: InvariantTally() for area in self.areas for item in of_area(area)},
            codes={(area, code): CodeTally() for area in self.areas for code in reachable(area)},
        )
        self._codes = {area: set(reachable(area)) for area in self.areas}

    @property
    def planned(self) -> int:
        """How many examples a run asks for."""
        return sum(self._examples(stream) for stream in streams_for(self.areas, self.implementation))

    def _examples(self, stream: Stream) -> int:
        return self.profile.examples(stream.weight, drives_code=bool(stream.codes), limit=self.max_examples)

    def run(self) -> Report:
        """Run every stream of the areas."""
        started = time.monotonic()
        for stream in streams_for(self.areas, self.implementation):
            tally = self.report.streams[stream.area, stream.name] = StreamTally()
            before, begun = self.report.requests, time.monotonic()
            self._run_stream(stream)
            tally.requests = self.report.requests - before
            tally.seconds = time.monotonic() - begun
        self.report.seconds = time.monotonic() - started
        return self.report

    def _run_stream(self, stream: Stream) -> None:
        fresh: list[Finding] = []
        done = skipped = 0

        def count(request: Request) -> None:
            nonlocal done, skipped
            done += 1
            if not offers(self.implementation, type(request)):
                if done == skipped + 1 == NEVER_OFFERED:
                    raise _NotOffered
                skipped += 1
                return
            try:
                expected, actual = both_answers(self.implementation, request)
            except LeftOut:
                self.report.left_out += 1
                return
            for finding in self.record(stream, request, expected, actual, done):
                tally = self.report.invariants[finding.invariant.id]
                if finding.deviation is not None:
                    if finding.deviation not in self.report.deviations:
                        self.report.deviations[finding.deviation] = finding
                        fresh.append(finding)
                elif tally.finding is None:
                    tally.finding = finding
                    fresh.append(finding)
            self.progress(stream.name, 1)

        examples = self._examples(stream)
        with suppress(_NotOffered):
            exercise(stream.strategy, count, examples, self.seed, (Phase.generate,))
        self.progress(stream.name, max(0, examples - done))
        for finding in fresh:
            smallest = self._shrink(stream, finding, examples) if self.shrink and stream.weight else finding
            if finding.deviation is None:
                self.report.invariants[finding.invariant.id].finding = smallest
            else:
                self.report.deviations[finding.deviation] = smallest

    def record(self, stream: Stream, request: Request, expected: Any, actual: Any, after: int) -> list[Finding]:
        """Count one request and its answers; all that is wrong with them, declared deviations included."""
        self.report.requests += 1
        self._count_code(stream.area, request, expected, actual)
        realized = realize_request(request)
        found: list[Finding] = []
        for name, tally in self.report.invariants.items():
            if not BY_ID[name].covers(request):
                continue
            tally.examples += 1
            finding = self.finding(BY_ID[name], request, realized, expected, actual, stream.name, after)
            if finding is not None:
                found.append(finding)
                if finding.deviation is not None:
                    counts = self.report.deviation_counts
                    counts[finding.deviation] = counts.get(finding.deviation, 0) + 1
        return found

    def _count_code(self, area: Area, request: Request, expected: Any, actual: Any) -> None:
        code = driven_code(expected, self._codes[area])
        if code is not None:
            tally = self.report.codes[area, code]
            tally.driven += 1
            if answered_rightly(expected, actual):
                tally.right += 1
            elif self._deviation(request, expected, actual) is not None:
                tally.excused += 1

    def _deviation(self, request: Request, expected: Any, actual: Any) -> str | None:
        declared = self.implementation.deviations
        return next((known.id for known in declared if known.applies(request, expected, actual)), None)

    def finding(
        self,
        item: Invariant,
        request: Request,
        realized: Request,
        expected: Any,
        actual: Any,
        stream: str,
        after: int,
    ) -> Finding | None:
        """What is wrong with two answers by one invariant, if anything."""
        try:
            complaint = item.check(realized, expected, actual)
        except Exception as error:
            complaint = f"the answer is not of the contract's types ({type(error).__name__}: {error})"
        if complaint is None:
            return None
        known = self._deviation(request, expected, actual)
        return Finding(item.id, request, expected, actual, complaint, stream, after, known)

    def _shrink(self, stream: Stream, first: Finding, examples: int) -> Finding:
        best = first
        deadline = time.monotonic() + SHRINK_SECONDS

        def violates(request: Request) -> None:
            nonlocal best
            if time.monotonic() > deadline:
                raise _OutOfTime
            try:
                expected, actual = both_answers(self.implementation, request)
            except LeftOut:
                return
            realized = realize_request(request)
            found = self.finding(first.invariant, request, realized, expected, actual, stream.name, first.after)
            if found is not None and found.deviation == first.deviation:
                best = found
                raise _Violated

        with suppress(_Violated, _OutOfTime, Flaky):
            exercise(stream.strategy, violates, examples, self.seed, (Phase.generate, Phase.shrink))
        return best


class _Violated(Exception):
    """The request violates the invariant that is being shrunk."""


class _NotOffered(BaseException):
    """The implementation answers no request of the stream; Hypothesis lets this through."""


class _OutOfTime(BaseException):
    """Shrinking has taken long enough; Hypothesis lets this through."""


def both_answers(implementation: Any, request: Request) -> tuple[Any, Any]:
    """The contract's answer and the implementation's, each to its own copy of the request."""
    return answer(realize_request(request)), ask(implementation, realize_request(request))


def exercise(
    strategy: SearchStrategy[Any],
    body: Callable[[Any], None],
    examples: int,
    number: int,
    phases: Sequence[Phase],
    database: ExampleDatabase | None = None,
) -> None:
    """Run ``body`` on examples of ``strategy``, the same ones for the same seed and the same content of a database.

    Hypothesis mixes in constants that it finds in whatever modules of the user's are loaded; here it does not.
    """

    # In this order: a seed that is put on top of settings takes their database away.
    @settings(
        max_examples=examples,
        phases=phases,
        database=database,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @seed(number)
    @given(strategy)
    def body_on(request: Any) -> None:
        body(request)

    with patch.object(HypothesisProvider, "_maybe_draw_constant", return_value=None, create=True):
        body_on()
