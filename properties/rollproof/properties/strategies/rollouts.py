"""Requests to finalize one rollout."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks import break_streams, harmless, ordered_breaks
from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.hostile import hostile_rollouts, hostile_rows
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.values import draw_bytes, rewards
from rollproof.spec.plane import Faults, OnMiss, Staging
from rollproof.spec.requests import Area, FinalizeRollout


@st.composite
def _outages(draw: DrawFn) -> FinalizeRollout:
    history = draw(histories(max_calls=3))
    decide = draw_bytes(draw)
    rows = history.rows()
    if decide.chance(64):
        del rows[history.calls[0].key]
    failing = decide.choose((0, 0, 0, 1))
    return history.finalize(staging=Staging(rows, Faults(failing_get=failing), decide.choose(tuple(OnMiss))))


def outages() -> SearchStrategy[FinalizeRollout]:
    """Finalizing over a data plane whose read fails, or would fail if there were one more."""
    return _outages()


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area rollout."""
    if area is not Area.ROLLOUT:
        return
    valid = st.builds(lambda history, reward: history.finalize(reward=reward), histories(), rewards())
    yield Stream("valid", area, valid, 2.0)
    yield Stream("valid:odd", area, harmless(area))
    yield from break_streams(area)
    yield Stream("break:two", area, ordered_breaks(area), 2.0)
    yield Stream("outage", area, outages(), 0.3)
    yield Stream("hostile:receipts", area, hostile_rollouts(), 3.0)
    yield Stream("hostile:rows", area, hostile_rows(), 1.5)
