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

from rollproof.impl.checks import DIGESTS, LENGTHS, VERSIONS, earliest, is_hex, is_text, position_rules, show
from rollproof.impl.columns import Columns, objects
from rollproof.spec.constants import CAPTURE_MODES, DIGEST_BYTES, INT63_LIMIT, MODE_TOKEN_IN, TERMINAL_SELECTIONS
from rollproof.spec.records import CallRecord, Receipt
from rollproof.spec.rejections import Code, Rejected

Column: TypeAlias = Sequence[Any]
Rule: TypeAlias = Callable[[Column], bool]
"""Whether every value of a column is in its domain."""

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


def _nullable(rule: Rule) -> Rule:
    return lambda values: rule([value for value in values if value is not None])


_VERSION_FIELDS: Final[dict[str, tuple[Rule, Any]]] = {
    name: (_exactly(version), version) for name, version in VERSIONS.items()
}
MANIFEST_FIELDS: Final[Mapping[str, tuple[Rule, Any]]] = {
    "model_call_id": (_identifiers, _REQUIRED),
    "parent_call_id": (_nullable(_identifiers), None),
    **dict.fromkeys(LENGTHS, (_lengths, _REQUIRED)),
    **dict.fromkeys(DIGESTS, (_hashes, _REQUIRED)),
    "staging_key": (_identifiers, _REQUIRED),
    "response_id": (_identifiers, _REQUIRED),
    "mode": (_one_of(*CAPTURE_MODES), MODE_TOKEN_IN),
    "admitted_at": (_nullable(_numbers), None),
    "output_fingerprint": (_nullable(_hashes), None),
    "continuation_fingerprint": (_nullable(_hashes), None),
    "fingerprint_version": (_lengths, 0),
    **_VERSION_FIELDS,
}
"""Per field of a manifest row: its domain, and its value where it is absent."""
_RECEIPT_FIELDS: Final[Mapping[str, tuple[Rule, Any]]] = {
    "rollout_id": (lambda values: _identifiers(values) and "/" not in "".join(values), _REQUIRED),
    "reward": (_nullable(_numbers), None),
    "terminal_model_call_id": (_nullable(_identifiers), None),
    "manifest": (_lists, []),
    "capture_poisoned": (_booleans, False),
    "failure_reason": (_nullable(_texts), None),
    "terminal_selection": (_nullable(_one_of(*TERMINAL_SELECTIONS)), None),
    "terminal_attribution_reason": (_nullable(_texts), None),
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
        """A receipt record as it is, with the object columns of its manifest."""
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
        """The receipt as the spec's value."""
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
    """A JSON value as a receipt record. Raises ``Rejected(INVALID_RECEIPT)``, and nothing else."""
    return read_receipt(value).record()


def read_receipt(value: Any) -> ReceiptColumns:
    """A JSON value as a receipt in columns. Raises ``Rejected(INVALID_RECEIPT)``, and nothing else."""
    try:
        top = {name: column[0] for name, column in _read_objects([value], _RECEIPT_FIELDS, "receipt").items()}
        lists = _read_objects(list(top["manifest"]), MANIFEST_FIELDS, "manifest row")
        lists["admitted_at"] = [None if stamp is None else float(stamp) for stamp in lists["admitted_at"]]
        top["reward"] = None if top["reward"] is None else float(top["reward"])
        receipt = ReceiptColumns._from(top.__getitem__, _native(lists), lists)
        _check(receipt)
    except ValueError as error:
        raise Rejected(Code.INVALID_RECEIPT, str(error)) from None
    return receipt


def _read_objects(values: list[Any], fields: Mapping[str, tuple[Rule, Any]], what: str) -> dict[str, list[Any]]:
    """JSON objects as one list per known field, absent ones filled in. Raises ``ValueError``."""
    for index, value in enumerate(values):
        if type(value) is not dict:
            raise ValueError(f"{what} {index}: expected an object, got {show(value)}")
    names = set(map(type, chain.from_iterable(values)))
    unknown = chain.from_iterable(values) if names - {str} else set(chain.from_iterable(values)) - fields.keys()
    for name in unknown:
        if type(name) is not str or name not in fields:
            raise ValueError(f"{what}: unknown field {show(name)}")
    columns = {}
    for name, (rule, default) in fields.items():
        column = columns[name] = [value.get(name, default) for value in values]
        if not rule(column):
            index = next(index for index, found in enumerate(column) if not rule([found]))
            found = "nothing" if column[index] is _REQUIRED else show(column[index])
            raise ValueError(f"{what} {index}: {name}: got {found}, which is outside its domain")
    return columns


def _native(lists: Mapping[str, list[Any]]) -> Columns:
    """The fields that a staged call shares, as arrays."""
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
    """How the fields of a receipt must agree with each other. Raises ``ValueError``."""
    broken = earliest(position_rules(receipt.fields))
    if broken is not None:
        raise ValueError(f"manifest row {broken[0]}: {broken[1]}")
    if len(receipt.positions) != len(receipt):
        raise ValueError("manifest: call ids repeat")
    terminal, selection, failure = receipt.terminal_model_call_id, receipt.terminal_selection, receipt.failure_reason
    if terminal is not None and terminal not in receipt.positions:
        raise ValueError(f"terminal_model_call_id: {show(terminal)} is not in the manifest")
    if not receipt.capture_poisoned and (failure is not None or terminal is None or selection is None):
        raise ValueError("an unpoisoned receipt needs a terminal and a selection, and no failure_reason")
    if selection is None and (terminal is not None or failure is None):
        raise ValueError("without a terminal_selection there is no terminal, and there is a failure_reason")
