"""Invariants of digests, receipts and terminal selection (sections 2 and 3)."""

from __future__ import annotations

from typing import Final

from rollproof.spec.judge.invariant import Case, describe, difference, invariant, same_value
from rollproof.spec.judge.requests import (
    Accepted,
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
from rollproof.spec.records import StagedCall

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


@invariant("DIGEST-1", Area.DIGEST, "2", "The two published golden values are reproduced.", (ExtrasDigest, CallDigest))
def golden_values(case: Case[Request]) -> str | None:
    """Checked against the published values, not against the spec."""
    for golden, value in GOLDEN:
        # Not by ==, to which a call with -0.0 is the golden one.
        if difference(golden, case.request) is None and case.answer != Accepted(value):
            return f"expected {value}, but it {describe(case.answer)}: {getattr(case.answer, 'value', '')}"
    return None


@invariant(
    "DIGEST-2", Area.DIGEST, "2", "A value of the contract's domains has exactly the digest of section 2.", DIGESTS
)
def digests_agree(case: Case[Request]) -> str | None:
    """The same 64 hex characters."""
    return same_value(case)


@invariant(
    "DIGEST-3", Area.DIGEST, "2", "A value outside the domains has no digest: it is refused, not encoded.", DIGESTS
)
def no_digest_outside(case: Case[Request]) -> str | None:
    """A digest for -0.0 as a mask, or for NaN, would give one row several digests, or none that anyone agrees on."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Accepted):
        return f"gave the digest {case.answer.value!r:.70}, expected a refusal: {case.contract.reason}"
    return None


@invariant("DIGEST-4", Area.DIGEST, "2", "Digesting a value always yields a digest or a refusal.", DIGESTS)
def digest_never_crashes(case: Case[Request]) -> str | None:
    """A RecursionError escapes every guard that was written for ValueError (decision D3)."""
    return f"it {describe(case.answer)}" if isinstance(case.answer, Crashed) else None


@invariant("RECEIPT-1", Area.RECEIPT, "3", "A valid receipt is parsed to exactly its contents.", (ParseReceipt,))
def valid_receipts(case: Case[Request]) -> str | None:
    """All fields, with defaults filled in."""
    return same_value(case)


@invariant("RECEIPT-2", Area.RECEIPT, "3", "A receipt that breaks a rule is refused.", (ParseReceipt,))
def invalid_receipts(case: Case[Request]) -> str | None:
    """Accepting it means training on what cannot be accounted for."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Accepted):
        return f"accepted it, expected {case.contract.reason}"
    return None


@invariant(
    "RECEIPT-3",
    Area.RECEIPT,
    "3",
    "Whatever JSON value arrives, reading it returns a receipt or reports invalid_receipt.",
    (ParseReceipt,),
)
def receipts_never_crash(case: Case[Request]) -> str | None:
    """Decision D4."""
    if isinstance(case.answer, Crashed) or (isinstance(case.answer, Refused) and case.answer.code != "invalid_receipt"):
        return f"it {describe(case.answer)}"
    return None


@invariant(
    "TERMINAL-1",
    Area.TERMINAL,
    "3",
    "The receipt determines the selected terminal, or why there is none.",
    (SelectTerminal,),
)
def terminal_agrees(case: Case[Request]) -> str | None:
    """The walk of section 3."""
    return same_value(case)


@invariant("TERMINAL-2", Area.TERMINAL, "3", "A selected terminal is a call that nothing continues.", (SelectTerminal,))
def terminal_is_leaf(case: Case[SelectTerminal]) -> str | None:
    """Otherwise generated tokens are lost from the row."""
    if not isinstance(case.answer, Accepted) or case.answer.value.terminal_model_call_id is None:
        return None
    terminal = case.answer.value.terminal_model_call_id
    if any(record.parent_call_id == terminal for record in case.request.records):
        return f"{terminal} has children"
    return None
