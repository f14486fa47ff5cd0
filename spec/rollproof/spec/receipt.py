"""Reading a receipt (section 3): from any JSON value to a ``Receipt``, or ``invalid_receipt``.

Receipts are untrusted. Types are strict (decision D16) and nothing but ``Rejected`` escapes, however deep or large
the value is (decision D4): the reader looks only at the fields it knows and never recurses into the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import NOTHING, fields, frozen

from rollproof.spec.constants import CAPTURE_MODES, TERMINAL_SELECTIONS, VERSIONS
from rollproof.spec.records import CallRecord, Receipt
from rollproof.spec.rejections import Code
from rollproof.spec.values import (
    ROLLOUT_ID,
    call_fault,
    check_position,
    entry,
    expect,
    fault,
    first_repeated,
    is_digest,
    is_identifier,
    is_length,
    is_number,
    is_rollout_id,
    is_text,
    naming,
    owned_key,
    refusing,
)


@frozen
class Domain:
    """What a field may be: a rule, and the words for it in an error."""

    holds: Callable[[object], bool]
    expected: str


def nullable(domain: Domain) -> Domain:
    """Return the domain with null."""
    return Domain(lambda value: value is None or domain.holds(value), f"null or {domain.expected}")


def exactly(version: int) -> Domain:
    """Return the domain of exactly this int; 2.0 and True are not in it."""
    return Domain(lambda value: type(value) is int and value == version, str(version))


def one_of(choices: tuple[str, ...]) -> Domain:
    """Return the domain of a few strings."""
    return Domain(lambda value: type(value) is str and value in choices, " or ".join(choices))


IDENTIFIER: Final = Domain(is_identifier, "a non-empty string")
TEXT: Final = Domain(is_text, "a string")
LENGTH: Final = Domain(is_length, "an integer in [0, 2**63)")
NUMBER: Final = Domain(is_number, "a finite number")
DIGEST: Final = Domain(is_digest, "64 lowercase hex characters")

VERSION_RULES: Final = {name: exactly(version) for name, version in VERSIONS.items()}

MANIFEST_FIELDS: Final[dict[str, Domain]] = {
    "model_call_id": IDENTIFIER,
    "parent_call_id": nullable(IDENTIFIER),
    "prev_len": LENGTH,
    "delta_len": LENGTH,
    "cum_len": LENGTH,
    "weight_version": LENGTH,
    "digest": DIGEST,
    "extras_digest": DIGEST,
    "staging_key": IDENTIFIER,
    "chain_hash": DIGEST,
    "cumulative_hash": DIGEST,
    "response_id": IDENTIFIER,
    "mode": one_of(CAPTURE_MODES),
    "admitted_at": nullable(NUMBER),
    "output_fingerprint": nullable(DIGEST),
    "continuation_fingerprint": nullable(DIGEST),
    "fingerprint_version": LENGTH,
    **VERSION_RULES,
}
"""Per field of a manifest row: its domain."""

RECEIPT_FIELDS: Final[dict[str, Domain]] = {
    "rollout_id": Domain(is_rollout_id, ROLLOUT_ID),
    "reward": nullable(NUMBER),
    "terminal_model_call_id": nullable(IDENTIFIER),
    "manifest": Domain(lambda value: type(value) is list, "a list"),
    "capture_poisoned": Domain(lambda value: type(value) is bool, "a bool"),
    "failure_reason": nullable(TEXT),
    "terminal_selection": nullable(one_of(TERMINAL_SELECTIONS)),
    "terminal_attribution_reason": nullable(TEXT),
    **VERSION_RULES,
}


def defaults_of(record: type) -> dict[str, Any]:
    """Return the fields that may be absent, each with its default."""
    return {field.name: field.default for field in fields(record) if field.default is not NOTHING}


MANIFEST_DEFAULTS: Final = {"parent_call_id": None} | defaults_of(CallRecord)
RECEIPT_DEFAULTS: Final = defaults_of(Receipt)


def read_fields(value: object, rules: dict[str, Domain], defaults: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the known fields of a JSON object, absent ones filled in; ``ValueError`` on any violation."""
    if type(value) is not dict:
        raise ValueError(fault(what, value, "an object"))
    for name in value:
        expect(type(name) is str and name in rules, f"{what}: field", name, "a known field")
    for name, domain in rules.items():
        if name in value:
            expect(domain.holds(value[name]), f"{what}: {name}", value[name], domain.expected)
        else:
            expect(name in defaults, f"{what}: {name}", None, f"{domain.expected}; the field is missing")
    return {name: value.get(name, defaults.get(name)) for name in rules}


def parse_call_record(value: object, index: int) -> CallRecord:
    """Read one manifest row; ``ValueError`` names the row and the violated rule."""
    keys = [value.get("staging_key"), value.get("model_call_id")] if type(value) is dict else []
    where = entry("manifest row", index, keys)
    found = read_fields(value, MANIFEST_FIELDS, MANIFEST_DEFAULTS, where)
    if found["admitted_at"] is not None:
        found["admitted_at"] = float(found["admitted_at"])
    record = CallRecord(**found)
    with naming(where):
        check_position(record)
    return record


def parse_receipt(value: Any) -> Receipt:
    """Read a JSON value as a receipt.

    Raises ``Rejected(INVALID_RECEIPT)`` for every value that is not one, and nothing else.
    """
    with refusing(Code.INVALID_RECEIPT):
        found = read_fields(value, RECEIPT_FIELDS, RECEIPT_DEFAULTS, "receipt")
        found["manifest"] = tuple(parse_call_record(row, index) for index, row in enumerate(found["manifest"]))
        if found["reward"] is not None:
            found["reward"] = float(found["reward"])
        receipt = Receipt(**found)
        check_agreement(receipt)
    return receipt


def check_agreement(receipt: Receipt) -> None:
    """Check that a receipt's fields agree with each other (section 3)."""
    call_ids = [record.model_call_id for record in receipt.manifest]
    again = first_repeated(call_ids)
    if again is not None:
        raise ValueError(call_fault(call_ids[again], "model_call_id", call_ids[again], "another one in every row"))
    terminal, selection = receipt.terminal_model_call_id, receipt.terminal_selection
    expect(terminal is None or terminal in call_ids, "terminal_model_call_id", terminal, "a call of the manifest")
    if not receipt.capture_poisoned:
        expect(receipt.failure_reason is None, "failure_reason", receipt.failure_reason, "null unless poisoned")
        expect(terminal is not None, "terminal_model_call_id", terminal, "a call, unless poisoned")
        expect(selection is not None, "terminal_selection", selection, "a method, unless poisoned")
    if selection is None:
        expect(terminal is None, "terminal_model_call_id", terminal, "null where no selection was made")
        expect(receipt.failure_reason is not None, "failure_reason", None, "a reason where no selection was made")


# ── what can be read of any value ───────────────────────────────────────────────────────────────────────────────────


def manifest_entries(receipt: Any) -> list[Any]:
    """Return the manifest of a raw receipt, whatever its entries are; nothing where it is not a list."""
    manifest = receipt.get("manifest") if type(receipt) is dict else None
    return manifest if type(manifest) is list else []


def manifest_rows(receipt: Any) -> list[Mapping[str, Any]]:
    """Return the manifest entries of a raw receipt that are objects."""
    return [row for row in manifest_entries(receipt) if type(row) is dict]


def own_keys_listed(rollout_id: str, receipt: Any) -> list[str]:
    """Return the key of every manifest entry of a raw receipt that names a key of its rollout (decisions D14, D34).

    Receipts are untrusted: a key that names another rollout's data must never be cleared. A rollout id with a "/" in
    it is no rollout id, and owns nothing: "a/b" + "/" + "c" would be the key of rollout "a", call "b/c".
    """
    if not is_rollout_id(rollout_id):
        return []
    listed = [row for row in manifest_rows(receipt) if is_identifier(row.get("model_call_id"))]
    named = [(row.get("staging_key"), owned_key(rollout_id, row["model_call_id"])) for row in listed]
    return [own for key, own in named if key == own]
