"""Requests to finalize one rollout."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.values import rewards
from rollproof.spec.requests import Area


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area rollout."""
    if area is Area.ROLLOUT:
        valid = st.builds(lambda history, reward: history.finalize(reward=reward), histories(), rewards())
        yield Stream("valid", area, valid, 2.0)
