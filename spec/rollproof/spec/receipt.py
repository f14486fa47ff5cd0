"""Reading a receipt (section 3): from any JSON value to a ``Receipt``, or ``invalid_receipt``.

Receipts are untrusted. Types are strict (decision D16) and nothing but ``Rejected`` escapes, however deep or large
the value is (decision D4): the reader looks only at the fields it knows and never recurses into the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rollproof.spec.constants import (
    CAPTURE_MODES,
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    MODE_TOKEN_IN,
    SCHEMA_VERSION,
    TERMINAL_SELECTIONS,
)
from rollproof.spec.records import CallRecord, Receipt
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.values import (
    check_position,
    check_versions,
    expect,
    is_digest,
    is_identifier,
    is_length,
    is_number,
    is_rollout_id,
    is_text,
)

REQUIRED: Final = object()
"""Marks a field that has no default."""

Rule = Callable[[object], bool]


def nullable(rule: Rule) -> Rule:
    """The rule, or null."""
    return lambda value: value is None or rule(value)


def exactly(version: int) -> Rule:
    """That int: 2.0 and true are other values."""
    return lambda value: type(value) is int and value == version


def one_of(choices: tuple[str, ...]) -> Rule:
    """One of a few texts."""
    return lambda value: type(value) is str and value in choices


VERSION_FIELDS: Final[dict[str, tuple[Rule, object]]] = {
    "schema_version": (exactly(SCHEMA_VERSION), SCHEMA_VERSION),
    "digest_version": (exactly(DIGEST_VERSION), DIGEST_VERSION),
    "extras_digest_version": (exactly(EXTRAS_DIGEST_VERSION), EXTRAS_DIGEST_VERSION),
}

MANIFEST_FIELDS: Final[dict[str, tuple[Rule, object]]] = {
    "model_call_id": (is_identifier, REQUIRED),
    "parent_call_id": (nullable(is_identifier), None),
    "prev_len": (is_length, REQUIRED),
    "delta_len": (is_length, REQUIRED),
    "cum_len": (is_length, REQUIRED),
    "weight_version": (is_length, REQUIRED),
    "digest": (is_digest, REQUIRED),
    "extras_digest": (is_digest, REQUIRED),
    "staging_key": (is_identifier, REQUIRED),
    "chain_hash": (is_digest, REQUIRED),
    "cumulative_hash": (is_digest, REQUIRED),
    "response_id": (is_identifier, REQUIRED),
    "mode": (one_of(CAPTURE_MODES), MODE_TOKEN_IN),
    "admitted_at": (nullable(is_number), None),
    "output_fingerprint": (nullable(is_digest), None),
    "continuation_fingerprint": (nullable(is_digest), None),
    "fingerprint_version": (is_length, 0),
    **VERSION_FIELDS,
}
"""Per field of a manifest row: what it must be, and its value where it is absent."""

RECEIPT_FIELDS: Final[dict[str, tuple[Rule, object]]] = {
    "rollout_id": (is_rollout_id, REQUIRED),
    "reward": (nullable(is_number), None),
    "terminal_model_call_id": (nullable(is_identifier), None),
    "manifest": (lambda value: type(value) is list, []),
    "capture_poisoned": (lambda value: type(value) is bool, False),
    "failure_reason": (nullable(is_text), None),
    "terminal_selection": (nullable(one_of(TERMINAL_SELECTIONS)), None),
    "terminal_attribution_reason": (nullable(is_text), None),
    **VERSION_FIELDS,
}


def read_fields(value: object, fields: dict[str, tuple[Rule, object]], what: str) -> dict[str, Any]:
    """The known fields of a JSON object, absent ones filled in; ``ValueError`` on any violation."""
    if type(value) is not dict:
        raise ValueError(f"{what}: expected an object, got a {type(value).__name__}")
    for name in value:
        expect(type(name) is str and name in fields, what, name, "a known field")
    result = {}
    for name, (rule, default) in fields.items():
        found = value.get(name, default)
        if found is REQUIRED:
            raise ValueError(f"{what}: {name} is missing")
        expect(rule(found), f"{what}: {name}", found, "a value of its domain")
        result[name] = found
    return result


def parse_call_record(value: object) -> CallRecord:
    """One manifest row; ``ValueError`` names the violated rule."""
    fields = read_fields(value, MANIFEST_FIELDS, "manifest row")
    if fields["admitted_at"] is not None:
        fields["admitted_at"] = float(fields["admitted_at"])
    record = CallRecord(**fields)
    check_versions(record)
    check_position(record)
    return record


def parse_receipt(value: Any) -> Receipt:
    """A JSON value as a receipt.

    Raises ``Rejected(INVALID_RECEIPT)`` for every value that is not one, and nothing else.
    """
    try:
        fields = read_fields(value, RECEIPT_FIELDS, "receipt")
        fields["manifest"] = tuple(parse_call_record(row) for row in fields["manifest"])
        if fields["reward"] is not None:
            fields["reward"] = float(fields["reward"])
        receipt = Receipt(**fields)
        check_receipt(receipt)
    except ValueError as error:
        raise Rejected(Code.INVALID_RECEIPT, str(error)) from None
    return receipt


def check_receipt(receipt: Receipt) -> None:
    """How a receipt's fields must agree with each other (section 3)."""
    call_ids = [record.model_call_id for record in receipt.manifest]
    expect(len(call_ids) == len(set(call_ids)), "manifest", call_ids, "distinct call ids")
    terminal, selection = receipt.terminal_model_call_id, receipt.terminal_selection
    expect(terminal is None or terminal in call_ids, "terminal_model_call_id", terminal, "a call of the manifest")
    if not receipt.capture_poisoned:
        expect(receipt.failure_reason is None, "failure_reason", receipt.failure_reason, "null unless poisoned")
        expect(terminal is not None, "terminal_model_call_id", terminal, "a call, unless poisoned")
        expect(selection is not None, "terminal_selection", selection, "a method, unless poisoned")
    if selection is None:
        expect(terminal is None, "terminal_model_call_id", terminal, "null where no selection was made")
        expect(receipt.failure_reason is not None, "failure_reason", None, "a reason where no selection was made")
