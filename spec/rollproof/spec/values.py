"""The domains of section 1 and the rules of section 3 that relate a call's fields to each other.

Each check raises ``ValueError`` with the field, the value and what was expected; with ``refusing``, callers turn that
into the rejection of their own stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rollproof.spec.constants import INT63_LIMIT, MODE_TEXT, MODE_TOKEN_IN, RESERVED_ROLLOUT_ID, VERSIONS
from rollproof.spec.records import CallRecord, StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import is_float32, is_plus_zero


def show(value: object) -> str:
    """Format a value for an error message, shortened where it is large or deep."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple) and len(value) <= 8 and all(type(item) is int for item in value):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, dict | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if value is not None and type(value) not in (bool, int, float, str, bytes):
        return f"a {type(value).__name__}"
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def fault(field: str, value: object, expected: str) -> str:
    """Return the text of an error: the field, the value that it has, shortened, and what was expected.

    Where a rule is about one call, its staging key or ``call <id>`` is put in front.
    """
    return f"{field}: got {show(value)}, expected {expected}"


def call_fault(call_id: str, field: str, value: object, expected: str) -> str:
    """Return the text of an error about one call."""
    return f"call {call_id}: {fault(field, value, expected)}"


def first_of(names: Sequence[str]) -> str:
    """Return how an error names some rows: the first, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def first_repeated(values: Sequence[str]) -> int | None:
    """Return the position of the first value that an earlier one equals, or None where all are distinct."""
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            return index
        seen.add(value)
    return None


def entry(name: str, index: int, keys: Sequence[object]) -> str:
    """Return how an error names one entry of a list: its position, and the first of its ``keys`` that is readable."""
    named = next((str(key) for key in keys if is_identifier(key)), "")
    return f"{name} {index} ({named})" if named else f"{name} {index}"


def is_text(value: object) -> bool:
    """Return whether ``value`` is a str that has a UTF-8 form (no lone surrogates)."""
    if type(value) is not str:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_identifier(value: object) -> bool:
    """Return whether ``value`` is a non-empty string."""
    return is_text(value) and value != ""


ROLLOUT_ID: Final = 'a non-empty string without "/" that is not reserved'


def is_rollout_id(value: object) -> bool:
    """Return whether ``value`` is an identifier without "/", as the first "/" of a staging key ends the rollout id.

    One identifier is reserved (decision D24): rows of generation cuts are staged under it.
    """
    return is_identifier(value) and "/" not in str(value) and value != RESERVED_ROLLOUT_ID


def is_length(value: object) -> bool:
    """Return whether ``value`` is an int in [0, 2**63); a bool is not an int. Weight versions share this domain."""
    return type(value) is int and 0 <= value < INT63_LIMIT


def is_number(value: Any) -> bool:
    """Return whether ``value`` is an int or float, not a bool, that is finite as a float64."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def is_digest(value: object) -> bool:
    """Return whether ``value`` is 64 lowercase hex characters."""
    return type(value) is str and len(value) == 64 and set(value) <= set("0123456789abcdef")


def owned_key(rollout_id: str, model_call_id: str) -> str:
    """Return the staging key under which this rollout's call is staged (section 3)."""
    return f"{rollout_id}/{model_call_id}"


def expect(holds: bool, field: str, value: Any, expected: str) -> None:
    """Raise ``ValueError`` naming ``field``, ``value`` and what was expected, unless the rule holds."""
    if not holds:
        raise ValueError(fault(field, value, expected))


@contextmanager
def refusing(code: Code, *, where: str = "", subject: str = "") -> Iterator[None]:
    """Turn a ``ValueError`` into a rejection with this code, and put ``where`` in front of its text."""
    try:
        yield
    except ValueError as error:
        raise Rejected(code, f"{where}: {error}" if where else str(error), subject=subject) from None


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put ``where`` in front of the text of a ``ValueError``."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def expect_length(field: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is a length, a position, a token id or a weight version."""
    expect(is_length(value), field, value, "an integer in [0, 2**63)")


def expect_digest(field: str, value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is the hex form of a digest."""
    expect(is_digest(value), field, value, "64 lowercase hex characters")


def check_versions(record: Any) -> None:
    """Check that the three version numbers are exactly the supported ones."""
    for field, supported in VERSIONS.items():
        value = getattr(record, field)
        expect(type(value) is int and value == supported, field, value, str(supported))


def check_position(record: CallRecord | StagedCall) -> None:
    """Check a call's place in its rollout: parent, mode and lengths agree (section 3)."""
    expect(is_identifier(record.model_call_id), "model_call_id", record.model_call_id, "a non-empty string")
    root = record.parent_call_id is None
    expect(root or is_identifier(record.parent_call_id), "parent_call_id", record.parent_call_id, "null or an id")
    for field in ("prev_len", "delta_len", "cum_len", "weight_version"):
        expect_length(field, getattr(record, field))
    mode = MODE_TEXT if root else MODE_TOKEN_IN
    expect(record.mode == mode, "mode", record.mode, f"{mode}: text for a root, token_in for a child")
    expect((record.prev_len == 0) == root, "prev_len", record.prev_len, "0 for a root, more for a child")
    expect(record.delta_len >= 1, "delta_len", record.delta_len, "at least one token")
    expect(record.cum_len == record.prev_len + record.delta_len, "cum_len", record.cum_len, "prev_len + delta_len")


def check_call(call: StagedCall) -> None:
    """Check the digested fields of a staged call on their own (sections 1 and 3)."""
    check_versions(call)
    expect(is_rollout_id(call.rollout_id), "rollout_id", call.rollout_id, ROLLOUT_ID)
    check_position(call)
    columns = (call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta)
    lengths = [len(column) for column in columns]
    expect(lengths == [call.delta_len] * 3, "token columns", lengths, f"three columns of delta_len {call.delta_len}")
    for index, (token, mask, log_prob) in enumerate(zip(*columns, strict=True)):
        expect_length(f"token_ids_delta[{index}]", token)
        expect(
            type(mask) is float and (mask == 1.0 or is_plus_zero(mask)),
            f"token_mask_delta[{index}]",
            mask,
            "0.0 or 1.0",
        )
        where = f"generation_log_probs_delta[{index}]"
        expect(is_float32(log_prob), where, log_prob, "a finite float32")
        expect(mask == 1.0 or is_plus_zero(log_prob), where, log_prob, "0.0 on a carry token")
    for field in ("extras_digest", "chain_hash", "cumulative_hash"):
        expect_digest(field, getattr(call, field))
