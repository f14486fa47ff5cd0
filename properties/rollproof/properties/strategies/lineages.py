"""Requests to verify and linearize."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.requests import Stream
from rollproof.spec.requests import Area, LinearizeGrowth


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area lineage."""
    if area is not Area.LINEAGE:
        return
    yield Stream("valid", area, histories().map(lambda history: history.linearize()), 2.0)
    long = histories(max_calls=24, max_carry=24, max_generation=24)
    yield Stream("valid:long", area, long.map(lambda history: history.linearize()), 0.2)
    yield Stream("growth", area, st.just(LinearizeGrowth()), 0.0)
