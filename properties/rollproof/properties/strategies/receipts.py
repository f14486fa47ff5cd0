"""Requests to read a receipt."""

from __future__ import annotations

from collections.abc import Iterator

from rollproof.properties.strategies.breaks import break_streams
from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.hostile import hostile_receipts, odd_values, receipt_texts
from rollproof.properties.strategies.requests import Stream
from rollproof.spec.requests import Area, ParseReceipt


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area receipt."""
    if area is not Area.RECEIPT:
        return
    yield Stream("valid", area, histories().map(lambda history: ParseReceipt(history.raw_receipt())), 2.0)
    yield from break_streams(area)
    yield Stream("hostile", area, hostile_receipts(), 4.0)
    yield Stream("hostile:text", area, receipt_texts())
    yield Stream("hostile:values", area, odd_values().map(ParseReceipt))
