"""Checks that several chapters share: the rules about a call's place in its rollout, and "the first one wins".

A check over a batch is a list of rules, each an array that says per row whether the row breaks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from rollproof.impl.columns import Columns, Flags, objects
from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    INT63_LIMIT,
    MODE_TEXT,
    SCHEMA_VERSION,
)

T = TypeVar("T")

VERSIONS = {
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
LENGTHS = ("prev_len", "delta_len", "cum_len", "weight_version")
DIGESTS = ("digest", "extras_digest", "chain_hash", "cumulative_hash")
HEX = b"0123456789abcdef"
ROLLOUT_ID = 'a non-empty string without "/" that is not reserved'
"""What an error expects of a rollout id."""

Rules: TypeAlias = Iterable[tuple[T, Flags]]
"""Per rule, in order: what to say about it, and which rows break it."""


def earliest(rules: Rules[T]) -> tuple[int, T] | None:
    """Return the first row that breaks a rule, and the first of the rules that it breaks; None if none does."""
    found: tuple[int, T] | None = None
    for label, broken in rules:
        if np.count_nonzero(broken):  # three times as fast as any() on few rows
            row = int(broken.argmax())
            if found is None or row < found[0]:
                found = row, label
    return found


def position_rules(fields: Columns) -> Iterator[tuple[str, Flags]]:
    """Yield the rules by which parent, mode and lengths of a call agree (section 3). The lengths are not negative."""
    root = fields["parent_call_id"] == None  # noqa: E711 - elementwise
    prev_len, delta_len = fields["prev_len"], fields["delta_len"]
    yield "mode: expected text for a root, token_in for a child", (fields["mode"] == MODE_TEXT) != root
    yield "prev_len: expected 0 for a root, more for a child", (prev_len == 0) != root
    yield "delta_len: expected at least one token", delta_len < 1
    yield "cum_len: expected prev_len + delta_len", fields["cum_len"] - prev_len != delta_len


def is_text(value: Any) -> bool:
    """Return whether ``value`` is a str with a UTF-8 form (section 1)."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_length(value: Any) -> bool:
    """Return whether ``value`` is an int in [0, 2**63), and not a bool (section 1)."""
    return type(value) is int and 0 <= value < INT63_LIMIT


def is_hash(value: Any) -> bool:
    """Return whether ``value`` is a digest: 64 lowercase hex characters (section 1)."""
    return type(value) is str and len(value) == 64 and is_hex(value)


def is_hex(text: str) -> bool:
    """Return whether a string consists of lowercase hex characters."""
    return text.isascii() and not text.encode().translate(None, HEX)


def show(value: Any) -> str:
    """Format any value for an error message, shortened where it is large or deep."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple) and len(value) <= 8 and all(type(item) is int for item in value):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if value is not None and type(value) not in (bool, int, float, str, bytes):
        return f"a {type(value).__name__}"
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def fault(field: str, value: Any, expected: str) -> str:
    """Return the text of an error: the field, the value that it has, shortened, and what was expected."""
    return f"{field}: got {show(value)}, expected {expected}"


def call_fault(call_id: str, field: str, value: Any, expected: str) -> str:
    """Return the text of an error about one call."""
    return f"call {call_id}: {fault(field, value, expected)}"


def entry(name: str, index: int, keys: Iterable[Any]) -> str:
    """Return how an error names one entry of a list: its position, and the first of its ``keys`` that is readable."""
    named = next((key for key in keys if is_text(key) and key), "")
    return f"{name} {index} ({named})" if named else f"{name} {index}"


def first_repeated(values: Sequence[Any]) -> int | None:
    """Return the position of the first value that an earlier one equals; None where all are distinct."""
    seen: set[Any] = set()
    for index, value in enumerate(values):
        if value in seen:
            return index
        seen.add(value)
    return None


def first_of(names: Sequence[str]) -> str:
    """Name the first of some rows, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def plain(value: Any) -> Any:
    """Return an element of a column as a Python value; 32 bytes of a digest column in hex."""
    if isinstance(value, np.ndarray):
        return as_hex(value)
    return value.item() if isinstance(value, np.generic) else value


def as_hex(digest: Any) -> str:
    """Return a digest, as bytes or as a row of a digest column, in hex."""
    return bytes(digest).hex()


def object_columns(records: Iterable[Any], names: Iterable[str]) -> Columns:
    """Return attributes of records as object arrays, unchecked."""
    rows = list(records)
    return {name: objects(getattr(row, name) for row in rows) for name in names}


def row_flags(flat: Flags, offsets: np.ndarray[Any, Any]) -> Flags:
    """Return which rows of a ragged column have a flagged element. No row is empty."""
    if not np.count_nonzero(flat):
        return np.zeros(len(offsets) - 1, dtype=np.bool_)
    return np.logical_or.reduceat(flat, offsets[:-1])
