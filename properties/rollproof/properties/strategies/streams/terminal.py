"""Manifests for terminal selection: forests of calls, and manifests that are not forests."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.strategies.scalars import CALL_IDS, Bytes, check_range, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.requests import Area, SelectTerminal
from rollproof.spec.records import CallRecord

STAMPS: Final = (None, 0.0, 1.0, 1.0, 2.0, -1.0, 0.5, 1e300, -1e300, 5e-324)


@st.composite
def _manifests(draw: DrawFn, max_calls: int, broken: bool) -> SelectTerminal:
    decide = draw_bytes(draw, 4 + 4 * max_calls)
    count = decide.below(max_calls + 1)
    if count == 0 and not broken:
        count = 1
    name = CALL_IDS[0] if decide.next() < 192 else decide.choose(CALL_IDS)
    stamped = decide.chance(160)
    records = []
    for index in range(count):
        link = decide.next()
        parent = None
        if index and link < 176:
            # Small bytes give a chain, larger ones branches.
            parent = name(index - 1 if link < 64 else decide.below(index))
        records.append(bare_record(name(index), parent, admitted_at=decide.choose(STAMPS) if stamped else None))
    rest, order = records, []
    while rest:
        order.append(rest.pop(decide.below(len(rest))))
    return SelectTerminal(tuple(spoiled(order, decide) if broken and order else order))


def spoiled(records: list[CallRecord], decide: Bytes) -> list[CallRecord]:
    """Return the manifest with repeated ids, parents outside it, or cycles."""
    at, other = decide.below(len(records)), decide.below(len(records))
    target = records[other].model_call_id
    match decide.below(5):
        case 0:
            records[at] = evolve(records[at], model_call_id=target)
        case 1:
            records[at] = bare_record(records[at].model_call_id, "elsewhere")
        case 2:
            records[at] = bare_record(records[at].model_call_id, target)
        case 3:
            records = [bare_record(row.model_call_id, row.parent_call_id or target) for row in records]
        case _:
            records.append(records[at])
    return records


def manifests(*, max_calls: int = 7) -> SearchStrategy[SelectTerminal]:
    """Draw forests of up to ``max_calls`` calls in any order, with admission times that tie or are missing."""
    check_range("calls", 1, max_calls, 1)
    return _manifests(max_calls, broken=False)


def broken_manifests(*, max_calls: int = 7) -> SearchStrategy[SelectTerminal]:
    """Draw manifests that may be empty, repeat a call, name a parent that is not there, or run in circles."""
    check_range("calls", 1, max_calls, 1)
    return _manifests(max_calls, broken=True)


UNSTAMPED: Final = tuple(
    SelectTerminal(tuple(bare_record(name, None, admitted_at=stamp) for name, stamp in roots))
    for roots in permutations((("c0", None), ("c1", -1.0), ("c2", 0.0)))
)
"""Roots of which nobody stamped one, in every order."""


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area terminal."""
    if area is Area.TERMINAL:
        yield Stream("valid", area, manifests(), 2.0)
        captured = histories().map(lambda history: SelectTerminal(history.receipt().manifest))
        yield Stream("valid:captured", area, captured)
        yield listed("valid:unstamped root", area, UNSTAMPED)
        yield Stream("broken", area, broken_manifests(), 2.0)
