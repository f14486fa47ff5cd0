"""Requests to read a receipt."""

from __future__ import annotations

from collections.abc import Iterator

from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.requests import Stream
from rollproof.spec.requests import Area, ParseReceipt


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area receipt."""
    if area is Area.RECEIPT:
        yield Stream("valid", area, histories().map(lambda history: ParseReceipt(history.raw_receipt())), 2.0)
