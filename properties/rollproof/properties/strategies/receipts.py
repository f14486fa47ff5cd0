"""Requests to read a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.breaks import break_streams
from rollproof.properties.strategies.draft import Draft
from rollproof.properties.strategies.histories import histories
from rollproof.properties.strategies.hostile import hostile_receipts, odd_values, receipt_texts
from rollproof.properties.strategies.receipt_breaks import RECEIPT_VALUES, ROW_VALUES, replace
from rollproof.properties.strategies.requests import Stream
from rollproof.properties.strategies.rollout_breaks import failed, poisoned
from rollproof.properties.strategies.values import draw_bytes
from rollproof.properties.strategies.worked import WORKED_EXAMPLE
from rollproof.spec.requests import Area, ParseReceipt

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
    """A receipt that is valid but for one value's type."""
    receipt = draw(histories(max_calls=3)).raw_receipt()
    decide = draw_bytes(draw)
    own = decide.chance(128)
    name = decide.choose(list(COERCIBLE if own else COERCIBLE_IN_ROWS))
    record = receipt if own else decide.choose(receipt["manifest"])
    record[name] = decide.choose((COERCIBLE if own else COERCIBLE_IN_ROWS)[name])
    return ParseReceipt(receipt)


def outside(own: bool, name: str, value: Any) -> ParseReceipt:
    """A valid receipt but for ``value`` in the field ``name``, its own or its last manifest row's."""
    draft = Draft.of(WORKED_EXAMPLE)
    replace(draft.receipt if own else draft.manifest[-1], name, value)
    return draft.parse()


OUTSIDE: Final = tuple(
    (own, name, value)
    for own, table in ((True, RECEIPT_VALUES), (False, ROW_VALUES))
    for name, values in table.items()
    for value in values
)
"""Each value that a field may not have, once: Hypothesis draws none of them twice."""


@st.composite
def unsuccessful(draw: DrawFn) -> ParseReceipt:
    """A valid receipt of a rollout that failed, or whose capture cannot be trusted."""
    draft = Draft.of(draw(histories(max_calls=3)))
    decide = draw_bytes(draw)
    decide.choose((failed, poisoned))(draft, decide)
    return draft.parse()


def streams(area: Area) -> Iterator[Stream]:
    """Requests of the area receipt."""
    if area is not Area.RECEIPT:
        return
    yield Stream("valid", area, histories().map(lambda history: ParseReceipt(history.raw_receipt())), 2.0)
    yield Stream("valid:failed", area, unsuccessful())
    yield from break_streams(area)
    values = st.sampled_from(OUTSIDE).map(lambda cell: outside(*cell))
    yield Stream("break:values", area, values, 6.0)
    yield Stream("break:types", area, coerced())
    yield Stream("hostile", area, hostile_receipts(), 4.0)
    yield Stream("hostile:text", area, receipt_texts())
    yield Stream("hostile:values", area, odd_values().map(ParseReceipt))
