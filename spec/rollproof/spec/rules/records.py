"""Invariants of digests, receipts and terminal selection (sections 2 and 3)."""

from __future__ import annotations

from typing import Final

from rollproof.spec.invariant import Invariant, describe, invariant, same_value
from rollproof.spec.records import StagedCall
from rollproof.spec.requests import (
    Accepted,
    Answer,
    Area,
    CallDigest,
    ChainDigest,
    Crashed,
    ExtrasDigest,
    ParseReceipt,
    PrefixDigest,
    Refused,
    Request,
    SelectTerminal,
)

DIGESTS: Final = (PrefixDigest, ChainDigest, ExtrasDigest, CallDigest)

GOLDEN_EXTRAS: Final = ExtrasDigest({"routed_experts": [[[1, 2]], [[3, 4]]]})
GOLDEN_CALL: Final = CallDigest(
    StagedCall(
        rollout_id="rollout-1",
        model_call_id="call-1",
        parent_call_id="parent-1",
        mode="token_in",
        prev_len=3,
        delta_len=2,
        cum_len=5,
        weight_version=7,
        token_ids_delta=(10, 11),
        token_mask_delta=(0.0, 1.0),
        generation_log_probs_delta=(0.0, -0.25),
        extras_digest="032024e899456be6e9a78c6d0399c5112d2ca7fa18d4ea9cf0d8cb7d0094f3a3",
        chain_hash="1" * 64,
        cumulative_hash="2" * 64,
        digest="0" * 64,
    )
)
GOLDEN: Final[tuple[tuple[ExtrasDigest | CallDigest, str], ...]] = (
    (GOLDEN_EXTRAS, "032024e899456be6e9a78c6d0399c5112d2ca7fa18d4ea9cf0d8cb7d0094f3a3"),
    (GOLDEN_CALL, "1122c7fe7e914c809eb9b1c09b26d94a50c1eb2790e7430fbcd8363b846ccf27"),
)
"""The values of the public conformance file."""


@invariant("DIGEST-1", Area.DIGEST, "2", "The two published golden values come out.", (ExtrasDigest, CallDigest))
def golden_values(request: Request, _: Answer, actual: Answer) -> str | None:
    """Checked against the published values, not against the spec."""
    for golden, value in GOLDEN:
        if request == golden and actual != Accepted(value):
            return f"expected {value}, but it {describe(actual)}: {getattr(actual, 'value', '')}"
    return None


@invariant(
    "DIGEST-2", Area.DIGEST, "2", "A value of the contract's domains has exactly the digest of section 2.", DIGESTS
)
def digests_agree(_: Request, expected: Answer, actual: Answer) -> str | None:
    """The same 64 hex characters."""
    return same_value(expected, actual)


@invariant(
    "DIGEST-3", Area.DIGEST, "2", "A value outside the domains has no digest: it is refused, not encoded.", DIGESTS
)
def no_digest_outside(_: Request, expected: Answer, actual: Answer) -> str | None:
    """A digest for -0.0 as a mask, or for NaN, would give one row several digests, or none that anyone agrees on."""
    if isinstance(expected, Refused) and isinstance(actual, Accepted):
        return f"gave the digest {actual.value!r:.70}, expected a refusal: {expected.reason}"
    return None


@invariant("DIGEST-4", Area.DIGEST, "2", "Digesting a value never ends in anything but a digest or a refusal.", DIGESTS)
def digest_never_crashes(_: Request, __: Answer, actual: Answer) -> str | None:
    """A RecursionError escapes every guard that was written for ValueError (decision D3)."""
    return f"it {describe(actual)}" if isinstance(actual, Crashed) else None


@invariant("RECEIPT-1", Area.RECEIPT, "3", "A valid receipt is read as what it says.", (ParseReceipt,))
def valid_receipts(_: Request, expected: Answer, actual: Answer) -> str | None:
    """All fields, with defaults filled in."""
    return same_value(expected, actual)


@invariant("RECEIPT-2", Area.RECEIPT, "3", "A receipt that breaks a rule is refused.", (ParseReceipt,))
def invalid_receipts(_: Request, expected: Answer, actual: Answer) -> str | None:
    """Accepting it means training on what nobody can account for."""
    if isinstance(expected, Refused) and isinstance(actual, Accepted):
        return f"accepted it, expected {expected.reason}"
    return None


@invariant(
    "RECEIPT-3",
    Area.RECEIPT,
    "3",
    "Whatever JSON value arrives, reading it returns a receipt or reports invalid_receipt.",
    (ParseReceipt,),
)
def receipts_never_crash(_: Request, __: Answer, actual: Answer) -> str | None:
    """Decision D4."""
    if isinstance(actual, Crashed) or (isinstance(actual, Refused) and actual.code != "invalid_receipt"):
        return f"it {describe(actual)}"
    return None


@invariant(
    "TERMINAL-1", Area.TERMINAL, "3", "The selected terminal, or the reason for none, is fixed.", (SelectTerminal,)
)
def terminal_agrees(_: Request, expected: Answer, actual: Answer) -> str | None:
    """The walk of section 3."""
    return same_value(expected, actual)


@invariant("TERMINAL-2", Area.TERMINAL, "3", "A selected terminal is a call that nothing continues.", (SelectTerminal,))
def terminal_is_leaf(request: SelectTerminal, _: Answer, actual: Answer) -> str | None:
    """Otherwise generated tokens are lost from the row."""
    if not isinstance(actual, Accepted) or actual.value.terminal_model_call_id is None:
        return None
    terminal = actual.value.terminal_model_call_id
    if any(record.parent_call_id == terminal for record in request.records):
        return f"{terminal} has children"
    return None


INVARIANTS: Final[tuple[Invariant, ...]] = (
    golden_values,
    digests_agree,
    no_digest_outside,
    digest_never_crashes,
    valid_receipts,
    invalid_receipts,
    receipts_never_crash,
    terminal_is_leaf,
    terminal_agrees,
)
