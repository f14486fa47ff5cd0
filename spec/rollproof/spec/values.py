"""The domains of section 1 and the rules of section 3 that relate a call's fields to each other.

Each function raises ``ValueError`` with the field, the value and what was expected; callers turn that into the
rejection of their own stage.
"""

from __future__ import annotations

import math
from typing import Any

from rollproof.spec.constants import (
    CAPTURE_MODES,
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    INT63_LIMIT,
    MODE_TEXT,
    SCHEMA_VERSION,
)
from rollproof.spec.records import CallRecord, StagedCall
from rollproof.spec.tensor import is_float32, is_plus_zero


def show(value: object) -> str:
    """A value for an error message: short, whatever it is."""
    if type(value) is int and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if type(value) in (dict, list, tuple):
        return f"a {type(value).__name__}"
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def is_text(value: object) -> bool:
    """Whether ``value`` is a str that has a UTF-8 form (no lone surrogates)."""
    if type(value) is not str:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_identifier(value: object) -> bool:
    """Whether ``value`` is a non-empty text."""
    return is_text(value) and value != ""


def is_rollout_id(value: object) -> bool:
    """Whether ``value`` is an identifier without "/": the first "/" of a staging key ends the rollout id."""
    return is_identifier(value) and "/" not in str(value)


def is_length(value: object) -> bool:
    """Whether ``value`` is an int in [0, 2**63); a bool is not an int. Weight versions share this domain."""
    return type(value) is int and 0 <= value < INT63_LIMIT


def is_number(value: object) -> bool:
    """Whether ``value`` is an int or float, not a bool, that is finite as a float64."""
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is not int:
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_digest(value: object) -> bool:
    """Whether ``value`` is 64 lowercase hex characters."""
    return type(value) is str and len(value) == 64 and set(value) <= set("0123456789abcdef")


def is_mask(value: object) -> bool:
    """Whether ``value`` has the bits of +0.0 or of 1.0 (decision D2)."""
    return type(value) is float and (value == 1.0 or is_plus_zero(value))


def owned_key(rollout_id: str, model_call_id: str) -> str:
    """The staging key under which this rollout's call is staged (section 3)."""
    return f"{rollout_id}/{model_call_id}"


def expect(holds: bool, field: str, value: Any, expected: str) -> None:
    """Raise ``ValueError`` naming ``field``, ``value`` and what was expected, unless the rule holds."""
    if not holds:
        raise ValueError(f"{field}: got {show(value)}, expected {expected}")


def check_versions(record: Any) -> None:
    """The three version numbers are exactly the supported ones."""
    for field, supported in (
        ("schema_version", SCHEMA_VERSION),
        ("digest_version", DIGEST_VERSION),
        ("extras_digest_version", EXTRAS_DIGEST_VERSION),
    ):
        value = getattr(record, field)
        expect(type(value) is int and value == supported, field, value, str(supported))


def check_position(record: CallRecord | StagedCall) -> None:
    """A call's place in its rollout: parent, mode and lengths agree (section 3)."""
    expect(is_identifier(record.model_call_id), "model_call_id", record.model_call_id, "a non-empty text")
    root = record.parent_call_id is None
    expect(root or is_identifier(record.parent_call_id), "parent_call_id", record.parent_call_id, "null or an id")
    for field in ("prev_len", "delta_len", "cum_len", "weight_version"):
        expect(is_length(getattr(record, field)), field, getattr(record, field), "an integer in [0, 2**63)")
    expect(record.mode in CAPTURE_MODES, "mode", record.mode, "text or token_in")
    expect((record.mode == MODE_TEXT) == root, "mode", record.mode, "text for a root, token_in for a child")
    expect((record.prev_len == 0) == root, "prev_len", record.prev_len, "0 for a root, more for a child")
    expect(record.delta_len >= 1, "delta_len", record.delta_len, "at least one token")
    expect(record.cum_len == record.prev_len + record.delta_len, "cum_len", record.cum_len, "prev_len + delta_len")


def check_call(call: StagedCall) -> None:
    """All rules that what a staged call's digest covers must satisfy by itself (sections 1 and 3)."""
    check_versions(call)
    expect(is_rollout_id(call.rollout_id), "rollout_id", call.rollout_id, 'a non-empty text without "/"')
    check_position(call)
    columns = (call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta)
    lengths = [len(column) for column in columns]
    expect(lengths == [call.delta_len] * 3, "token columns", lengths, f"three columns of delta_len {call.delta_len}")
    for index, (token, mask, log_prob) in enumerate(zip(*columns, strict=True)):
        expect(is_length(token), f"token_ids_delta[{index}]", token, "an integer in [0, 2**63)")
        expect(is_mask(mask), f"token_mask_delta[{index}]", mask, "0.0 or 1.0")
        where = f"generation_log_probs_delta[{index}]"
        expect(is_float32(log_prob), where, log_prob, "a finite float32")
        expect(mask == 1.0 or is_plus_zero(log_prob), where, log_prob, "0.0 on a carry token")
    for field in ("extras_digest", "chain_hash", "cumulative_hash"):
        expect(is_digest(getattr(call, field)), field, getattr(call, field), "64 lowercase hex characters")
