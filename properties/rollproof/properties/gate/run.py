"""Running streams of requests against an implementation and the spec, and keeping what differs.

The requests of a stream are drawn first, and kept, because several implementations, mutants or right variants are
often asked the same. Asking them never stops: it counts examples, codes and disagreements. Only for a disagreement
does Hypothesis draw again, with the same seed, to shrink it, one invariant at a time, so that one fault does not hide
another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, Final

from attrs import define, field
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import deviation_of, offers
from rollproof.properties.errors import LeftOut, message_of
from rollproof.properties.gate.codes import ALONE, met, reaches, reason_of, same_code
from rollproof.properties.gate.kept import KeptRequests
from rollproof.properties.gate.plain import plainer
from rollproof.properties.gate.profiles import Profile
from rollproof.properties.gate.results import CodeTally, Finding, InvariantTally, Report, StreamTally
from rollproof.properties.gate.streams import request_streams, with_boundary
from rollproof.properties.strategies.repeatable import whatever_is_loaded
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.judge.catalogue import BY_ID, of_area
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.oracle import answer, answer_to
from rollproof.spec.judge.requests import KINDS, Accepted, Answer, Area, Crashed, Refused, Request
from rollproof.spec.rejections import Code

SHRINK_SECONDS: Final = 5.0
"""How long one finding may be shrunk; the smallest so far is kept."""

PLAIN_SECONDS: Final = 2.0
"""How long the smallest may then be made plainer, field by field."""

UNREADABLE: Final = "the answer has a type the contract does not allow"
"""The complaint where a check itself raised."""

NEVER_OFFERED: Final = 8
"""A stream is left out where the implementation answers none of so many of its requests."""

DECLARED: Final = "declared-deviations"
"""The stream of the examples of declared deviations."""

KEPT_STREAMS: Final = 1200
"""The requests of so many streams are kept for the next implementation: all areas have fewer, in two profiles."""

KEPT_EXAMPLES: Final = 100
"""Streams of more examples are drawn anew each time, because all of them together would fill the memory."""

Progress = Callable[[str, int], None]
"""Called with a stream's name and the number of examples just done."""


def streams_for(areas: Iterable[Area], implementation: Any) -> list[Stream]:
    """Return the streams of some areas, in the areas' order, and in each the examples of the declared deviations."""
    chosen = [area for area in Area if area in set(areas)]
    found = [stream for area in chosen for stream in (*declared_examples(area, implementation), *request_streams(area))]
    choice = getattr(implementation, "expect_boundary", None)
    return found if choice is None else [with_boundary(stream, choice) for stream in found]


def declared_examples(area: Area, implementation: Any) -> Iterator[Stream]:
    """Yield the examples of an implementation's deviations: whether one occurs must not depend on what is drawn."""
    examples = tuple(item for one in implementation.deviations if one.area is area for item in one.examples)
    if examples:
        yield Stream(DECLARED, area, st.sampled_from(examples), 0.3, every=examples)


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
    kept: KeptRequests | None = None
    """Where requests are kept between runs."""
    progress: Progress = lambda _name, _count: None
    report: Report = field(init=False)

    def __attrs_post_init__(self) -> None:
        deviations = [item for item in self.implementation.deviations if item.area in self.areas]
        self.report = Report(
            implementation=self.implementation.name,
            areas=self.areas,
            profile=self.profile.name,
            seed=self.seed,
            max_examples=self.max_examples,
            declared={item.id: item.sentence for item in deviations},
            invariants={
                item.id: InvariantTally(offered=self._offers(item.requests))
                for area in self.areas
                for item in of_area(area)
            },
            codes={
                (area, reach.name): CodeTally(offered=self._offers(reach.kinds) and self._can_reach(reach.entry))
                for area in self.areas
                for reach in reaches(area)
            },
        )

    def _offers(self, kinds: Iterable[type[Request]]) -> bool:
        return any(offers(self.implementation, kind) for kind in kinds)

    def _can_reach(self, code: Code) -> bool:
        """Return whether the implementation can answer a code: one that makes its own choice requires no boundary."""
        return code is not Code.MISSING_ROUTE_BOUNDARY or getattr(self.implementation, "expect_boundary", None) is None

    @property
    def planned(self) -> int:
        """How many examples a run has."""
        return sum(map(self._examples, streams_for(self.areas, self.implementation)))

    def _examples(self, stream: Stream) -> int:
        if stream.every:
            return len(stream.every)
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
        examples, done = self._examples(stream), 0
        for done, request in enumerate(self._requests(stream, examples), 1):
            if not offers(self.implementation, type(request)):
                continue
            try:
                expected, actual = both_answers(self.implementation, request)
            except LeftOut:
                self.leave_out(stream.area, request)
                continue
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
        self.progress(stream.name, max(0, examples - done))
        if not self.shrink or stream.every or not stream.weight:
            return
        for finding in fresh:
            smallest = self._shrink(stream, finding, examples)
            if finding.deviation is None:
                self.report.invariants[finding.invariant.id].finding = smallest
            else:
                self.report.deviations[finding.deviation] = smallest

    def _requests(self, stream: Stream, examples: int) -> Sequence[Request]:
        """Return the requests of a stream; none if the implementation answers none of the first few."""
        if not all(offers(self.implementation, kind.request) for kind in KINDS):
            few = self._drawn(stream, min(examples, NEVER_OFFERED))
            if not any(offers(self.implementation, type(request)) for request in few):
                return ()
        return self._drawn(stream, examples)

    def _drawn(self, stream: Stream, examples: int) -> Sequence[Request]:
        """Return the requests that the seed gives of a stream, from where they are kept or as they are drawn."""
        if self.kept is None or stream.every:
            return drawn(stream, examples, self.seed)
        key = examples, self.seed, getattr(self.implementation, "expect_boundary", None)
        requests = self.kept.read(stream, *key)
        if requests is None:
            requests = drawn(stream, examples, self.seed)
            self.kept.write(requests, stream, *key)
        return requests

    def record(self, stream: Stream, request: Request, expected: Any, actual: Any, after: int) -> list[Finding]:
        """Count one request and its answers; return all that is wrong with them, declared deviations included."""
        self.report.requests += 1
        exchange = _Exchange(self.implementation, request, expected, actual)
        found: list[Finding] = []
        for name, tally in self.report.invariants.items():
            if not BY_ID[name].covers(request):
                continue
            tally.examples += 1
            tally.refused += isinstance(actual, Refused)
            tally.silent += BY_ID[name].of_values and not isinstance(actual, Accepted)
            finding = exchange.finding(BY_ID[name], stream.name, after)
            if finding is not None:
                found.append(finding)
                if finding.deviation is not None:
                    counts = self.report.deviation_counts
                    counts[finding.deviation] = counts.get(finding.deviation, 0) + 1
        for reach in met(stream.area, request, expected):
            code = self.report.codes[stream.area, reach.name]
            code.driven += 1
            if same_code(expected, actual) if reach.place in ALONE else not found:
                code.right += 1
            elif exchange.deviation is not None:
                code.excused += 1
        return found

    def leave_out(self, area: Area, request: Request) -> None:
        """Count a request that could not be put to the implementation."""
        self.report.left_out += 1
        for name, tally in self.report.invariants.items():
            tally.left_out += BY_ID[name].covers(request)
        # A value that cannot be made here has no answer either, so nothing is known about its code.
        with suppress(LeftOut):
            for reach in met(area, request, answer(realize_request(request))):
                self.report.codes[area, reach.name].left_out += 1

    def _shrink(self, stream: Stream, first: Finding, examples: int) -> Finding:
        best = first
        deadline = time.monotonic() + SHRINK_SECONDS

        def again(request: Request) -> Finding | None:
            if time.monotonic() > deadline:
                raise _OutOfTime
            try:
                expected, actual = both_answers(self.implementation, request)
            except LeftOut:
                return None
            exchange = _Exchange(self.implementation, request, expected, actual)
            found = exchange.finding(first.invariant, stream.name, first.after)
            return found if found is not None and found.deviation == first.deviation else None

        def violates(request: Request) -> None:
            nonlocal best
            found = again(request)
            if found is not None:
                best = found
                raise _Violated

        def still(request: Request) -> bool:
            nonlocal best
            found = again(request)
            if found is None or outline(found) != outline(best):
                return False
            best = found
            return True

        with suppress(_Violated, _OutOfTime, Flaky):
            exercise(stream.strategy, violates, examples, self.seed, (Phase.generate, Phase.shrink))
        deadline = time.monotonic() + PLAIN_SECONDS
        with suppress(_OutOfTime):
            plainer(best.request, still)
        return best


@define
class _Exchange:
    """A request, and how both sides answered it."""

    implementation: Any
    request: Request
    expected: Any
    actual: Any

    @cached_property
    def realized(self) -> Request:
        """The request as the checks read it."""
        return realize_request(self.request)

    @cached_property
    def deviation(self) -> str | None:
        """The declared deviation that the answer is an instance of, if any: computed once, whatever it violates."""
        return deviation_of(self.implementation, self.request, self.expected, self.actual)

    def finding(self, item: Invariant, stream: str, after: int) -> Finding | None:
        """Return what is wrong with the answers by one invariant, if anything."""
        complaint = complaint_of(item, self.realized, self.expected, self.actual)
        if complaint is None:
            return None
        request, actual = self.request, showable(self.actual)
        return Finding(item.id, request, self.expected, actual, complaint, stream, after, self.deviation)


def outline(finding: Finding) -> tuple[object, ...]:
    """Return what stays while a finding becomes plainer: how both sides answered, and which field is wrong."""
    sides = [(type(one), (reason_of(one) or "").partition(":")[0]) for one in (finding.expected, finding.actual)]
    return (*sides, getattr(finding.actual, "error", None), re.sub(r"\d+|: .*", "", finding.complaint))


class _Violated(Exception):
    """The request violates the invariant that is being shrunk."""


class _OutOfTime(BaseException):
    """Shrinking has taken long enough; Hypothesis lets this through."""


def both_answers(implementation: Any, request: Request) -> tuple[Any, Any]:
    """Return the contract's answer and the implementation's, each to its own copy of the request."""
    actual = ask(implementation, realize_request(request))
    return answer_to(realize_request(request), actual), actual


def complaint_of(item: Invariant, realized: Request, expected: Any, actual: Any) -> str | None:
    """Return what is wrong with two answers by one invariant, or None; an answer that no check can read is wrong."""
    try:
        return item.check(realized, expected, actual)
    except Exception as error:
        return f"{UNREADABLE} ({type(error).__name__}: {message_of(error)})"


def showable(answer: Answer) -> Answer:
    """Return an answer; in place of one whose value cannot be shown, a crash that says so."""
    try:
        repr(answer)
    except Exception as error:
        return Crashed(type(error).__name__, f"an answer that cannot be shown: {message_of(error)}"[:200])
    return answer


def drawn(stream: Stream, examples: int, number: int) -> Sequence[Request]:
    """Return the requests that a seed gives of a stream, which do not depend on who is asked; all that it lists."""
    if stream.every:
        return stream.every
    return _kept(stream, examples, number) if examples <= KEPT_EXAMPLES else _draw(stream, examples, number)


def _draw(stream: Stream, examples: int, number: int) -> Sequence[Request]:
    requests: list[Request] = []
    exercise(stream.strategy, requests.append, examples, number, (Phase.generate,))
    return requests


_kept = lru_cache(maxsize=KEPT_STREAMS)(_draw)


def exercise(
    strategy: SearchStrategy[Any],
    body: Callable[[Any], None],
    examples: int,
    number: int,
    phases: Sequence[Phase],
    database: ExampleDatabase | None = None,
) -> None:
    """Run ``body`` on examples of ``strategy``, the same ones for the same seed and the same content of a database."""

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

    with whatever_is_loaded():
        body_on()
