"""Sessions to merge into training rows."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import fields
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.sessions import drawn_request, listed_sessions
from rollproof.properties.strategies.scalars import check_range, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.portable import MergeCalls, MergeTwice
from rollproof.spec.judge.requests import Area


@st.composite
def _sessions(draw: DrawFn, max_calls: int) -> MergeCalls:
    return drawn_request(draw_bytes(draw, 24 + 16 * max_calls), max_calls)


def sessions(*, max_calls: int = 5) -> SearchStrategy[MergeCalls]:
    """Draw sessions of up to ``max_calls`` calls that extend, continue, fork, restart, drift, or sample again."""
    check_range("calls", 1, max_calls, 1)
    return _sessions(max_calls)


def twice(request: MergeCalls) -> MergeTwice:
    """Return the request to merge the same calls twice."""
    return MergeTwice(*(getattr(request, field.name) for field in fields(MergeTwice)))


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area merge."""
    if area is Area.MERGE:
        for name, requests in listed_sessions().items():
            yield listed(name, area, requests)
        yield Stream("sessions", area, sessions(), 3.0)
        yield Stream("long sessions", area, sessions(max_calls=12))
        yield Stream("twice", area, sessions().map(twice))
