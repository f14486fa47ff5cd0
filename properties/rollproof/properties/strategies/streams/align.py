"""Sessions with captured routes, to line up with the rows that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.sessions import drawn_session, listed_sessions
from rollproof.properties.strategies.scalars import check_range, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.portable import AlignRoutes
from rollproof.spec.judge.requests import Area
from rollproof.spec.merge import parent_of
from rollproof.spec.portable import Call, Captured, Vector

EXPERTS: Final = (8, 256, 300, 40_000)
"""Below and beyond what uint8 holds, right at it, and beyond int16."""


def vector(number: int, num_experts: int) -> Vector:
    """Return vector ``number`` of a request: two layers of two different experts, large ids first."""
    first = num_experts - 1 - number % num_experts
    step, turn = (number // num_experts) % (num_experts - 1), number // (num_experts * (num_experts - 1))
    second = (first + turn) % num_experts
    return ((first, (first + 1 + step) % num_experts), (second, (second + 1) % num_experts))


def captured(
    calls: Sequence[Call], num_experts: int, *, incremental: bool = False, without: Sequence[int] = (), short: int = 0
) -> AlignRoutes:
    """Return the request to align calls that captured all that their engine ran a forward for.

    Calls ``without`` captured nothing, and the last ``short`` vectors of each are missing. An ``incremental`` call
    begins where the one that it continues ended.
    """
    captures: list[Captured | None] = []
    ends: list[int] = []
    count = 0
    for index, call in enumerate(calls):
        parent = parent_of(index, calls)
        start = ends[parent] if incremental and parent is not None else 0
        end = max(start, len(call.context) - 1 - short)
        if index in without:
            captures.append(None)
            ends.append(start)
            continue
        captures.append(Captured(start, tuple(vector(count + at, num_experts) for at in range(end - start))))
        ends.append(end)
        count += end - start
    return AlignRoutes(tuple(calls), tuple(captures), num_experts, incremental)


def plain_calls() -> dict[str, list[tuple[Call, ...]]]:
    """Return the listed sessions with log-probs that fit, by name."""
    return {
        name: [one.calls for one in requests if one.max_len is None and one.calls]
        for name, requests in listed_sessions().items()
        if name not in ("limits", "no calls") and not name.startswith("log-probs")
    }


@st.composite
def _routed(draw: DrawFn, max_calls: int) -> AlignRoutes:
    decide = draw_bytes(draw, 24 + 16 * max_calls)
    num_experts = decide.choose(EXPERTS)
    incremental, short = decide.chance(96), decide.choose((0, 0, 0, 1))
    nothing = decide.below(max_calls) if decide.chance(64) else None
    calls = drawn_session(decide, max_calls).calls
    without = () if nothing is None else (nothing,)
    return captured(calls, num_experts, incremental=incremental, without=without, short=short)


def routed_sessions(*, max_calls: int = 5) -> SearchStrategy[AlignRoutes]:
    """Draw sessions of up to ``max_calls`` calls, each with routes of its own, whole or from where another ended."""
    check_range("calls", 1, max_calls, 1)
    return _routed(max_calls)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area route-align."""
    if area is Area.ROUTE_ALIGN:
        for name, sessions in plain_calls().items():
            yield listed(name, area, [captured(calls, 300) for calls in sessions])
        branching = [calls for name in ("extend", "fork", "again", "drift") for calls in plain_calls()[name]]
        yield listed("incremental", area, [captured(calls, 256, incremental=True) for calls in branching])
        yield listed("ids beyond int16", area, [captured(calls, 40_000) for calls in branching])
        yield listed("few experts", area, [captured(calls, 8) for calls in branching])
        yield listed("short captures", area, [captured(calls, 300, short=2) for calls in branching])
        yield listed("nothing captured", area, [captured(calls, 300, without=(0,)) for calls in branching])
        yield listed("no calls", area, [evolve(captured(branching[0], 300), calls=(), captures=())])
        yield Stream("sessions", area, routed_sessions(), 3.0)
