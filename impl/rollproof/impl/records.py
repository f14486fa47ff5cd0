"""Reading a receipt straight from JSON values (section 3), column by column.

Receipts are untrusted. Types are strict (D16), nothing here recurses into a value or compares one whose type is not
known, and nothing but ``invalid_receipt`` escapes (D4). A manifest of thousands of rows is checked with one built-in
operation per column; the offending row is looked for only where a column is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl.checks import (
    DIGESTS,
    LENGTHS,
    ROLLOUT_ID,
    VERSIONS,
    call_fault,
    earliest,
    entry,
    fault,
    first_repeated,
    is_hex,
    is_text,
    plain,
    position_rules,
)
from rollproof.impl.columns import Columns, objects
from rollproof.spec.constants import (
    CAPTURE_MODES,
    DIGEST_BYTES,
    INT63_LIMIT,
    MODE_TOKEN_IN,
    RESERVED_ROLLOUT_ID,
    TERMINAL_SELECTIONS,
)
from rollproof.spec.records import CallRecord, Receipt
from rollproof.spec.rejections import Code, Rejected

Column: TypeAlias = Sequence[Any]
Rule: TypeAlias = Callable[[Column], bool]
"""Whether every value of a column is in its domain."""


@frozen
class Domain:
    """What a field may be: a rule, the words for it in an error, and its value where it is absent."""

    rule: Rule
    expected: str
    default: Any


_REQUIRED: Final = object()
"""Stands for a field that is absent and has no default. Its type is in no domain."""


# ── domains, over a whole column ────────────────────────────────────────────────────────────────────────────────────


def _only(values: Column, *kinds: type) -> bool:
    return set(map(type, values)) <= {*kinds}


def _texts(values: Column) -> bool:
    return _only(values, str) and is_text("".join(values))


def _identifiers(values: Column) -> bool:
    return _texts(values) and "" not in values


def _lengths(values: Column) -> bool:
    return _only(values, int) and min(values, default=0) >= 0 and max(values, default=0) < INT63_LIMIT


def _hashes(values: Column) -> bool:
    return _only(values, str) and set(map(len, values)) <= {64} and is_hex("".join(values))


def _numbers(values: Column) -> bool:
    try:
        return _only(values, int, float) and all(map(math.isfinite, values))
    except OverflowError:
        return False


def _booleans(values: Column) -> bool:
    return _only(values, bool)


def _lists(values: Column) -> bool:
    return _only(values, list)


def _one_of(*choices: str) -> Rule:
    return lambda values: _only(values, str) and set(values) <= {*choices}


def _exactly(version: int) -> Rule:
    return lambda values: _only(values, int) and set(values) <= {version}


def _optional(rule: Rule, expected: str) -> Domain:
    """Return the domain with null, which is also what an absent field means."""
    return Domain(lambda values: rule([value for value in values if value is not None]), f"null or {expected}", None)


_NAME, _TEXT, _LENGTH, _HASH, _NUMBER = (
    "a non-empty string",
    "a string",
    "an integer in [0, 2**63)",
    "64 lowercase hex characters",
    "a finite number",
)
_IDENTIFIER: Final = Domain(_identifiers, _NAME, _REQUIRED)

_VERSION_FIELDS: Final = {name: Domain(_exactly(version), str(version), version) for name, version in VERSIONS.items()}
MANIFEST_FIELDS: Final[Mapping[str, Domain]] = {
    "model_call_id": _IDENTIFIER,
    "parent_call_id": _optional(_identifiers, _NAME),
    **dict.fromkeys(LENGTHS, Domain(_lengths, _LENGTH, _REQUIRED)),
    **dict.fromkeys(DIGESTS, Domain(_hashes, _HASH, _REQUIRED)),
    "staging_key": _IDENTIFIER,
    "response_id": _IDENTIFIER,
    "mode": Domain(_one_of(*CAPTURE_MODES), " or ".join(CAPTURE_MODES), MODE_TOKEN_IN),
    "admitted_at": _optional(_numbers, _NUMBER),
    "output_fingerprint": _optional(_hashes, _HASH),
    "continuation_fingerprint": _optional(_hashes, _HASH),
    "fingerprint_version": Domain(_lengths, _LENGTH, 0),
    **_VERSION_FIELDS,
}
"""Per field of a manifest row: its domain."""


def _rollout_ids(values: Sequence[Any]) -> bool:
    return _identifiers(values) and "/" not in "".join(values) and RESERVED_ROLLOUT_ID not in values


_RECEIPT_FIELDS: Final[Mapping[str, Domain]] = {
    "rollout_id": Domain(_rollout_ids, ROLLOUT_ID, _REQUIRED),
    "reward": _optional(_numbers, _NUMBER),
    "terminal_model_call_id": _optional(_identifiers, _NAME),
    "manifest": Domain(_lists, "a list", []),
    "capture_poisoned": Domain(_booleans, "a bool", False),
    "failure_reason": _optional(_texts, _TEXT),
    "terminal_selection": _optional(_one_of(*TERMINAL_SELECTIONS), " or ".join(TERMINAL_SELECTIONS)),
    "terminal_attribution_reason": _optional(_texts, _TEXT),
    **_VERSION_FIELDS,
}


# ── a receipt as columns ────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class ReceiptColumns:
    """A receipt whose manifest of C rows is held as columns."""

    rollout_id: str
    terminal_model_call_id: str | None
    terminal_selection: str | None
    terminal_attribution_reason: str | None
    reward: float | None
    capture_poisoned: bool
    failure_reason: str | None
    versions: Mapping[str, int]
    call_ids: list[str]
    staging_keys: list[str]
    positions: Mapping[str, int]
    """Call id to position in the manifest."""
    fields: Columns
    """Per field that a staged call shares, its values in the form of ``StagedColumns.fields``."""
    lists: Mapping[str, list[Any]]
    """Per field of a manifest row, its values as Python values."""

    def __len__(self) -> int:
        return len(self.call_ids)

    @classmethod
    def of(cls, receipt: Receipt, fields: Columns) -> ReceiptColumns:
        """Return a receipt record as it is, with the object columns of its manifest."""
        lists = {name: column.tolist() for name, column in fields.items()}
        return cls._from(receipt.__getattribute__, fields, lists)

    @classmethod
    def _from(cls, get: Callable[[str], Any], fields: Columns, lists: Mapping[str, list[Any]]) -> ReceiptColumns:
        names = ("rollout_id", "terminal_model_call_id", "terminal_selection", "terminal_attribution_reason")
        call_ids = lists["model_call_id"]
        return cls(
            **{name: get(name) for name in (*names, "reward", "capture_poisoned", "failure_reason")},
            versions={name: get(name) for name in VERSIONS},
            call_ids=call_ids,
            staging_keys=lists["staging_key"],
            positions={call_id: index for index, call_id in enumerate(call_ids)},
            fields=fields,
            lists=lists,
        )

    def record(self) -> Receipt:
        """Return the receipt as the spec's value."""
        rows = zip(*self.lists.values(), strict=True)
        return Receipt(
            rollout_id=self.rollout_id,
            manifest=tuple(CallRecord(**dict(zip(self.lists, row, strict=True))) for row in rows),
            terminal_model_call_id=self.terminal_model_call_id,
            terminal_selection=self.terminal_selection,
            terminal_attribution_reason=self.terminal_attribution_reason,
            reward=self.reward,
            capture_poisoned=self.capture_poisoned,
            failure_reason=self.failure_reason,
            **self.versions,
        )


def parse_receipt(value: Any) -> Receipt:
    """Read a JSON value as a receipt record. Raises ``Rejected(INVALID_RECEIPT)``, and nothing else."""
    return read_receipt(value).record()


def read_receipt(value: Any) -> ReceiptColumns:
    """Read a JSON value as a receipt in columns. Raises ``Rejected(INVALID_RECEIPT)``, and nothing else."""
    try:
        top = {name: column[0] for name, column in _read_objects([value], _RECEIPT_FIELDS, "receipt").items()}
        lists, fields = _read_manifest(list(top["manifest"]))
        top["reward"] = None if top["reward"] is None else float(top["reward"])
        receipt = ReceiptColumns._from(top.__getitem__, fields, lists)
        _check(receipt)
    except ValueError as error:
        raise Rejected(Code.INVALID_RECEIPT, str(error)) from None
    return receipt


def _read_manifest(rows: list[Any]) -> tuple[dict[str, list[Any]], Columns]:
    """Read manifest rows as lists and as arrays. ``ValueError`` names the first bad row and the first rule it breaks.

    What is at fault is said by a single row; the first such row is found by halving.
    """
    try:
        return _rows_of(rows, "manifest row")
    except ValueError:
        first, count = 0, len(rows)
        while count > 1:
            half = count // 2
            try:
                _rows_of(rows[first : first + half], "manifest row")
            except ValueError:
                count = half
            else:
                first, count = first + half, count - half
        row = rows[first]
        keys = [row.get("staging_key"), row.get("model_call_id")] if type(row) is dict else []
        return _rows_of([row], entry("manifest row", first, keys))


def _rows_of(rows: list[Any], what: str) -> tuple[dict[str, list[Any]], Columns]:
    """Read manifest rows. Where ``ValueError`` is about one row, it calls that row ``what``."""
    lists = _read_objects(rows, MANIFEST_FIELDS, what)
    lists["admitted_at"] = [None if stamp is None else float(stamp) for stamp in lists["admitted_at"]]
    fields = _native(lists)
    broken = earliest(position_rules(fields))
    if broken is not None:
        name, _, expected = broken[1].partition(": expected ")
        raise ValueError(f"{what}: {fault(name, plain(fields[name][broken[0]]), expected)}")
    return lists, fields


def _read_objects(values: list[Any], fields: Mapping[str, Domain], what: str) -> dict[str, list[Any]]:
    """Read JSON objects as one list per known field, absent ones filled in. Raises ``ValueError``."""
    for value in values:
        if type(value) is not dict:
            raise ValueError(fault(what, value, "an object"))
    names = set(map(type, chain.from_iterable(values)))
    if names - {str} or not set(chain.from_iterable(values)) <= fields.keys():
        for name in chain.from_iterable(values):
            if type(name) is not str or name not in fields:
                raise ValueError(fault(f"{what}: field", name, "a known field"))
    columns = {}
    for name, domain in fields.items():
        column = columns[name] = [value.get(name, domain.default) for value in values]
        if not domain.rule(column):
            found = next(found for found in column if not domain.rule([found]))
            if found is _REQUIRED:
                raise ValueError(fault(f"{what}: {name}", None, f"{domain.expected}; the field is missing"))
            raise ValueError(fault(f"{what}: {name}", found, domain.expected))
    return columns


def _native(lists: Mapping[str, list[Any]]) -> Columns:
    """Return the fields that a staged call shares, as arrays."""
    fields: dict[str, NDArray[Any]] = {
        name: objects(lists[name]) for name in ("model_call_id", "parent_call_id", "mode")
    }
    for name in (*LENGTHS, *VERSIONS):
        fields[name] = np.array(lists[name], dtype=np.int64)
    for name in DIGESTS:
        raw = bytes.fromhex("".join(lists[name]))
        fields[name] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    return fields


def _check(receipt: ReceiptColumns) -> None:
    """Check that the fields of a receipt agree with each other. Raises ``ValueError``."""
    if len(receipt.positions) != len(receipt):
        call_id = receipt.call_ids[first_repeated(receipt.call_ids) or 0]
        raise ValueError(call_fault(call_id, "model_call_id", call_id, "another one in every row"))
    terminal, selection, failure = receipt.terminal_model_call_id, receipt.terminal_selection, receipt.failure_reason
    sound, unselected = not receipt.capture_poisoned, selection is None
    for broken, name, value, expected in (
        (
            terminal is not None and terminal not in receipt.positions,
            *("terminal_model_call_id", terminal, "a call of the manifest"),
        ),
        (sound and failure is not None, "failure_reason", failure, "null unless poisoned"),
        (sound and terminal is None, "terminal_model_call_id", terminal, "a call, unless poisoned"),
        (sound and selection is None, "terminal_selection", selection, "a method, unless poisoned"),
        (unselected and terminal is not None, "terminal_model_call_id", terminal, "null where no selection was made"),
        (unselected and failure is None, "failure_reason", failure, "a reason where no selection was made"),
    ):
        if broken:
            raise ValueError(fault(name, value, expected))
