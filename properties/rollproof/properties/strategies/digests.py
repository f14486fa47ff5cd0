"""Requests for digests: values of the contract's domains, and values outside."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.values import json_objects
from rollproof.spec.requests import Area, CallDigest, ExtrasDigest
from rollproof.spec.rules.records import GOLDEN


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area digest."""
    if area is not Area.DIGEST:
        return
    yield Stream("golden", area, st.sampled_from([request for request, _ in GOLDEN]), 0.05)
    yield Stream("valid:calls", area, histories().map(lambda history: CallDigest(history.calls[0].staged)))
    yield Stream("valid:extras", area, json_objects().map(ExtrasDigest))
