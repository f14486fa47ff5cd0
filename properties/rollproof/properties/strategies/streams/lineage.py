"""Requests to verify and linearize."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from rollproof.properties.strategies.breaks.kinds import break_streams, each_edit, harmless, ordered_breaks
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.judge.requests import Area, LinearizeGrowth


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area lineage."""
    if area is not Area.LINEAGE:
        return
    yield Stream("valid", area, histories().map(lambda history: history.linearize()), 2.0)
    long = histories(max_calls=24, max_carry=24, max_generation=24)
    yield Stream("valid:long", area, long.map(lambda history: history.linearize()), 0.2)
    yield Stream("valid:odd", area, harmless(area))
    yield from break_streams(area)
    yield listed("every edit", area, each_edit(area))
    yield Stream("break:two", area, ordered_breaks(area), 3.0)
    yield Stream("growth", area, st.just(LinearizeGrowth()), 0.0)
