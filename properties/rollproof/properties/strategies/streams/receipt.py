"""Requests to read a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks.kinds import break_streams
from rollproof.properties.strategies.breaks.receipt import RECEIPT_VALUES, ROW_VALUES, replace
from rollproof.properties.strategies.breaks.rollout import failed, poisoned
from rollproof.properties.strategies.hostile import hostile_receipts, odd_values, receipt_texts
from rollproof.properties.strategies.rollouts.draft import Draft
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import History
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.constants import RESERVED_ROLLOUT_ID
from rollproof.spec.judge.requests import Area, ParseReceipt

COERCIBLE: Final[dict[str, tuple[Any, ...]]] = {
    "reward": (True, False, "3.0", "1"),
    "capture_poisoned": (0, 1, 0.0, "no", "false"),
    "schema_version": (2.0, "2"),
    "digest_version": (2.0, "2"),
    "extras_digest_version": (1.0, "1", True),
}
"""Per field of a receipt, values of another type that a lenient reader turns into the right one (decision D16)."""
COERCIBLE_IN_ROWS: Final[dict[str, tuple[Any, ...]]] = {
    "admitted_at": (True, "0.5"),
    "weight_version": (True, 1.0, "1"),
    "fingerprint_version": (False, 0.0, "0"),
    "schema_version": (2.0, "2"),
    "digest_version": (2.0, "2"),
    "extras_digest_version": (1.0, "1", True),
}
"""The same of a manifest row."""


@st.composite
def coerced(draw: DrawFn) -> ParseReceipt:
    """Draw a receipt that is valid except for one value's type."""
    receipt = draw(histories(max_calls=3)).raw_receipt()
    decide = draw_bytes(draw)
    own = decide.chance(128)
    name = decide.choose(list(COERCIBLE if own else COERCIBLE_IN_ROWS))
    record = receipt if own else decide.choose(receipt["manifest"])
    record[name] = decide.choose((COERCIBLE if own else COERCIBLE_IN_ROWS)[name])
    return ParseReceipt(receipt)


def outside(own: bool, name: str, value: Any) -> ParseReceipt:
    """Return a receipt that is valid except for ``value`` in the field ``name``, its own or its last manifest row's."""
    draft = Draft.of(WORKED_EXAMPLE)
    replace(draft.receipt if own else draft.manifest[-1], name, value)
    return draft.parse()


OUTSIDE: Final = tuple(
    (own, name, value)
    for own, table in ((True, RECEIPT_VALUES), (False, ROW_VALUES))
    for name, values in table.items()
    for value in values
)
"""Each value that a field may not have."""


def reserved(history: History) -> ParseReceipt:
    """Return the receipt of a rollout with the id under which generation cuts are staged (decision D24)."""
    return ParseReceipt(history.renamed(RESERVED_ROLLOUT_ID).raw_receipt())


@st.composite
def unsuccessful(draw: DrawFn) -> ParseReceipt:
    """Draw a valid receipt of a rollout that failed, or whose capture cannot be trusted."""
    draft = Draft.of(draw(histories(max_calls=3)))
    decide = draw_bytes(draw)
    decide.choose((failed, poisoned))(draft, decide)
    return draft.parse()


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area receipt."""
    if area is not Area.RECEIPT:
        return
    yield Stream("valid", area, histories().map(lambda history: ParseReceipt(history.raw_receipt())), 2.0)
    yield Stream("valid:failed", area, unsuccessful())
    yield from break_streams(area)
    yield listed("break:values", area, (outside(*cell) for cell in OUTSIDE))
    yield Stream("break:reserved id", area, histories(max_calls=3).map(reserved), 0.1)
    yield Stream("break:types", area, coerced())
    yield Stream("hostile", area, hostile_receipts(), 4.0)
    yield Stream("hostile:text", area, receipt_texts())
    yield Stream("hostile:values", area, odd_values().map(ParseReceipt))
