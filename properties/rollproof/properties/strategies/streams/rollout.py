"""Requests to finalize one rollout."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks.kinds import break_streams, each_edit, harmless, ordered_breaks
from rollproof.properties.strategies.hostile import hostile_rollouts, hostile_rows
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import ARRAY_REWARDS, UNUSABLE_REWARDS, draw_bytes, rewards
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.requests import Area, FinalizeRollout
from rollproof.spec.judge.staging import Faults, OnMiss, Staging


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
    """Draw requests to finalize over a data plane whose read fails, or would fail if there were one more."""
    return _outages()


def unusable() -> Iterator[FinalizeRollout]:
    """Yield rollouts that are valid but for their reward: each that is unusable, a few times."""
    for name in ("r", "r0", "a b", "g_g0", "é"):
        history = WORKED_EXAMPLE.renamed(name)
        for reward in UNUSABLE_REWARDS:
            yield history.finalize(reward=reward)


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area rollout."""
    if area is not Area.ROLLOUT:
        return
    valid = st.builds(lambda history, reward: history.finalize(reward=reward), histories(), rewards())
    yield Stream("valid", area, valid, 2.0)
    yield Stream("valid:odd", area, harmless(area))
    yield from break_streams(area)
    yield listed("every edit", area, each_edit(area))
    yield Stream("break:two", area, ordered_breaks(area), 2.0)
    yield listed("break:each reward", area, unusable())
    yield Stream("outage", area, outages(), 0.3)
    yield listed("rewards of arrays", area, (WORKED_EXAMPLE.finalize(reward=reward) for reward in ARRAY_REWARDS))
    yield Stream("hostile:receipts", area, hostile_rollouts(), 3.0)
    yield Stream("hostile:rows", area, hostile_rows(), 1.5)
