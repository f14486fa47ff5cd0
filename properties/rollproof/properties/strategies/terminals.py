"""Manifests for terminal selection: forests of calls, and what is no forest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.histories import NO_DIGEST, histories
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.values import CALL_IDS, Bytes, check_range, draw_bytes
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.records import CallRecord
from rollproof.spec.requests import Area, SelectTerminal
from rollproof.spec.values import owned_key

STAMPS: Final = (None, 0.0, 1.0, 1.0, 2.0, -1.0, 0.5, 1e300, -1e300, 5e-324)


def record(call_id: str, parent_id: str | None, admitted_at: float | None = None) -> CallRecord:
    """A manifest row of one token, with valid fields but for its hashes."""
    prev_len = 0 if parent_id is None else 1
    return CallRecord(
        model_call_id=call_id,
        parent_call_id=parent_id,
        prev_len=prev_len,
        delta_len=1,
        cum_len=prev_len + 1,
        weight_version=0,
        digest=NO_DIGEST,
        extras_digest=NO_DIGEST,
        staging_key=owned_key("r", call_id),
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        response_id=f"resp-{call_id}",
        mode=MODE_TEXT if parent_id is None else MODE_TOKEN_IN,
        admitted_at=admitted_at,
    )


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
        records.append(record(name(index), parent, decide.choose(STAMPS) if stamped else None))
    rest, order = records, []
    while rest:
        order.append(rest.pop(decide.below(len(rest))))
    return SelectTerminal(tuple(spoiled(order, decide) if broken and order else order))


def spoiled(records: list[CallRecord], decide: Bytes) -> list[CallRecord]:
    """The manifest with repeated ids, parents outside it, or cycles."""
    at, other = decide.below(len(records)), decide.below(len(records))
    target = records[other].model_call_id
    match decide.below(5):
        case 0:
            records[at] = evolve(records[at], model_call_id=target)
        case 1:
            records[at] = record(records[at].model_call_id, "elsewhere")
        case 2:
            records[at] = record(records[at].model_call_id, target)
        case 3:
            records = [record(row.model_call_id, row.parent_call_id or target) for row in records]
        case _:
            records.append(records[at])
    return records


def manifests(*, max_calls: int = 7) -> SearchStrategy[SelectTerminal]:
    """Forests of up to ``max_calls`` calls in any order, with admission times that tie or are missing."""
    check_range("calls", 1, max_calls, 1)
    return _manifests(max_calls, broken=False)


def broken_manifests(*, max_calls: int = 7) -> SearchStrategy[SelectTerminal]:
    """Manifests that may be empty, repeat a call, name a parent that is not there, or run in circles."""
    check_range("calls", 1, max_calls, 1)
    return _manifests(max_calls, broken=True)


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area terminal."""
    if area is Area.TERMINAL:
        yield Stream("valid", area, manifests(), 2.0)
        captured = histories().map(lambda history: SelectTerminal(history.receipt().manifest))
        yield Stream("valid:captured", area, captured)
        yield Stream("broken", area, broken_manifests(), 2.0)
