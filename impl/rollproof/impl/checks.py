"""What the checks of several chapters share: the rules about a call's place in its rollout, and "the first one wins".

A check over a batch is a list of rules, each an array that says per row whether the row breaks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

Rules: TypeAlias = Iterable[tuple[T, Flags]]
"""Per rule, in order: what to say about it, and which rows break it."""


def earliest(rules: Rules[T]) -> tuple[int, T] | None:
    """The first row that breaks a rule, and the first of the rules that it breaks; None if none does."""
    found: tuple[int, T] | None = None
    for label, broken in rules:
        if np.count_nonzero(broken):  # a third of the time of any()
            row = int(broken.argmax())
            if found is None or row < found[0]:
                found = row, label
    return found


def position_rules(fields: Columns) -> Iterator[tuple[str, Flags]]:
    """How parent, mode and lengths of a call must agree (section 3). The lengths are not negative."""
    root = fields["parent_call_id"] == None  # noqa: E711 - elementwise
    prev_len, delta_len = fields["prev_len"], fields["delta_len"]
    yield "mode: expected text for a root, token_in for a child", (fields["mode"] == MODE_TEXT) != root
    yield "prev_len: expected 0 for a root, more for a child", (prev_len == 0) != root
    yield "delta_len: expected at least one token", delta_len < 1
    yield "cum_len: expected prev_len + delta_len", fields["cum_len"] - prev_len != delta_len


def is_text(value: Any) -> bool:
    """Whether ``value`` is a str with a UTF-8 form (section 1)."""
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_length(value: Any) -> bool:
    """Whether ``value`` is an int in [0, 2**63), and not a bool (section 1)."""
    return type(value) is int and 0 <= value < INT63_LIMIT


def is_hash(value: Any) -> bool:
    """Whether ``value`` is a digest: 64 lowercase hex characters (section 1)."""
    return type(value) is str and len(value) == 64 and is_hex(value)


def is_hex(text: str) -> bool:
    """Whether a text consists of lowercase hex characters."""
    return text.isascii() and not text.encode().translate(None, HEX)


def show(value: Any) -> str:
    """A short text about any value, safe for the deepest and the largest."""
    if value is None or type(value) in (bool, float):
        return repr(value)
    if type(value) is int:
        return str(value) if value.bit_length() <= 128 else f"an int of {value.bit_length()} bits"
    if type(value) is str:
        return ascii(value[:60]) + ("..." if len(value) > 60 else "")
    return f"a {type(value).__name__}"


def object_columns(records: Iterable[Any], names: Iterable[str]) -> Columns:
    """Attributes of records as object arrays, unchecked."""
    rows = list(records)
    return {name: objects(getattr(row, name) for row in rows) for name in names}


def row_flags(flat: Flags, offsets: np.ndarray[Any, Any]) -> Flags:
    """Which rows of a ragged column have a flagged element. No row is empty."""
    if not np.count_nonzero(flat):
        return np.zeros(len(offsets) - 1, dtype=np.bool_)
    return np.logical_or.reduceat(flat, offsets[:-1])
