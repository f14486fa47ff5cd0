"""Telling apart why an implementation accepts what the contract does not.

A lenient implementation takes some kind of value that lies outside the contract's domains. To see whether a
disagreement is that and nothing else, the contract is asked again with the offending values moved into their domains.
It must then give exactly the implementation's answer, and it must not if this one kind of value is left as it was. A
disagreement with any other cause stays one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from rollproof.properties.protocol import Deviation
from rollproof.properties.strategies.recipes import realize_request
from rollproof.spec.digest import CALL_DOMAIN, call_digest, float32s, hash_bytes, sha256, sized, text, tokens, u64
from rollproof.spec.invariant import difference
from rollproof.spec.lineage import (
    COMPARED_FIELDS,
    check_graph,
    check_manifest,
    check_pairs,
    check_receipt_state,
    lay_out,
    terminal_chain,
)
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import Receipt, StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.requests import Accepted, Answer, Area, CallDigest, Linearize, ParseReceipt, Refused, Request
from rollproof.spec.values import is_digest

Undo = Callable[[Receipt], Receipt]
"""Puts back into a parsed receipt what was moved out of the raw one."""


WRONG_DIGEST: Final = "0" * 64
"""Stands for a digest that was wrong already: moving a value must not make it right."""


def unchanged(call: StagedCall) -> StagedCall:
    """Moves nothing in a staged call."""
    return call


def nothing_moved(value: dict[str, Any]) -> Iterator[Undo]:
    """Moves nothing in a receipt."""
    return iter(())


@frozen
class Leniency:
    """One kind of value that is taken though the contract does not, and how to move it into the contract's domain."""

    id: str
    section: str
    sentence: str
    areas: tuple[Area, ...]
    call: Callable[[StagedCall], StagedCall] = unchanged
    """A staged call with that kind of value replaced."""
    receipt: Callable[[dict[str, Any]], Iterator[Undo]] = nothing_moved
    """Does the same to a raw receipt, in place, and yields how to put back what is read as it was."""


def deviations_of(leniencies: Sequence[Leniency]) -> tuple[Deviation, ...]:
    """The deviations that these leniencies amount to, one for each of their areas."""

    def one(own: Leniency, area: Area) -> Deviation:
        def applies(request: Request, expected: Answer, actual: Answer) -> bool:
            return explains(own, leniencies, request, expected, actual)

        return Deviation(own.id, area, own.section, own.sentence, applies)

    return tuple(one(own, area) for own in leniencies for area in own.areas)


def explains(own: Leniency, every: Sequence[Leniency], request: Request, expected: Answer, actual: Answer) -> bool:
    """Whether a disagreement is ``own``, perhaps together with others of ``every`` leniency of the implementation."""
    others = [leniency for leniency in every if leniency is not own]
    if not isinstance(expected, Refused):
        return False
    match realize_request(request):
        case CallDigest(call) if isinstance(actual, Accepted):
            laid_out = bool(actual.value == layout_digest(call))
            return laid_out and has_digest(moved(call, every)) and not has_digest(moved(call, others))
        case Linearize() as request if expected.code == Code.INVALID_SNAPSHOT.code:
            full, without = granted_linearize(request, every), granted_linearize(request, others)
            return agree(full, actual) and not agree(without, actual)
        case ParseReceipt(value) if isinstance(actual, Accepted):
            return granted_receipt(value, every) == actual.value and granted_receipt(value, others) is None
    return False


def agree(one: Answer, other: Answer) -> bool:
    """The same row bit for bit, or the same code."""
    if isinstance(one, Accepted) and isinstance(other, Accepted):
        return difference(one.value, other.value) is None
    return isinstance(one, Refused) and isinstance(other, Refused) and one.code == other.code


# ── staged calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def moved(call: StagedCall, granted: Sequence[Leniency]) -> StagedCall:
    """The call with what these leniencies grant moved into the contract's domains."""
    for leniency in granted:
        call = leniency.call(call)
    return call


def layout_digest(call: StagedCall) -> str | None:
    """What the byte layout of section 2 gives for a call, in the domain or not; None where it cannot be laid out."""
    try:
        return sha256(
            CALL_DOMAIN,
            bytes([call.schema_version, call.digest_version, call.extras_digest_version])
            + text(call.rollout_id)
            + text(call.model_call_id)
            + (b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id))
            + text(call.mode)
            + b"".join(u64(value) for value in (call.prev_len, call.delta_len, call.cum_len, call.weight_version))
            + sized(tokens(call.token_ids_delta))
            + sized(float32s(call.token_mask_delta))
            + sized(float32s(call.generation_log_probs_delta))
            + hash_bytes(call.extras_digest)
            + b"".join(b"\x01" + hash_bytes(value) for value in (call.chain_hash, call.cumulative_hash)),
        )
    except (TypeError, ValueError, OverflowError, struct.error):
        return None


def has_digest(call: StagedCall) -> bool:
    """Whether the contract gives the call a digest; its own is not looked at."""
    try:
        call_digest(evolve(call, digest=WRONG_DIGEST))
    except ValueError:
        return False
    return True


def granted_linearize(request: Linearize, granted: Sequence[Leniency]) -> Answer:
    """The contract's answer if the staged calls were checked with these leniencies."""
    receipt, calls = request.receipt, request.calls
    try:
        check_receipt_state(receipt)
        check_manifest(receipt)
        if len(calls) != len(receipt.manifest):
            raise Rejected(Code.ROW_COUNT_MISMATCH)
        check_pairs(*moved_pairs(receipt, calls, granted))
        records = {record.model_call_id: record for record in receipt.manifest}
        check_graph(records)
        by_id = {call.model_call_id: call for call in calls}
        chain = [by_id[record.model_call_id] for record in terminal_chain(receipt, records)]
        return Accepted(lay_out(receipt.rollout_id, chain))
    except Rejected as rejected:
        return Refused(rejected.reason)


def moved_pairs(
    receipt: Receipt, calls: Sequence[StagedCall], granted: Sequence[Leniency]
) -> tuple[Receipt, list[StagedCall]]:
    """Manifest rows and calls with the granted values moved, and digests that are right exactly where they were.

    A pair that differs in the rollout or in a compared field stays as it is: there the difference is the answer.
    """
    renamed = moved(evolve(calls[0], rollout_id=receipt.rollout_id), granted).rollout_id
    records = []
    moved_calls = []
    for record, call in zip(receipt.manifest, calls, strict=True):
        if call.rollout_id == receipt.rollout_id:
            if all(getattr(call, name) == getattr(record, name) for name in COMPARED_FIELDS):
                right = layout_digest(call) == call.digest
                call = moved(call, granted)
                if right and has_digest(call):
                    call = evolve(call, digest=call_digest(call))
                elif is_digest(call.digest):
                    call = evolve(call, digest=WRONG_DIGEST)
                record = evolve(record, **{name: getattr(call, name) for name in COMPARED_FIELDS})
            call = evolve(call, rollout_id=renamed)
        records.append(record)
        moved_calls.append(call)
    return evolve(receipt, rollout_id=renamed, manifest=tuple(records)), moved_calls


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def granted_receipt(value: Any, granted: Sequence[Leniency]) -> Receipt | None:
    """The receipt that the contract would read if these leniencies were its own."""
    if type(value) is not dict:
        return None
    value = dict(value)
    if type(value.get("manifest")) in (list, tuple):
        rows = [dict(row) if type(row) is dict else row for row in value["manifest"]]
        value["manifest"] = type(value["manifest"])(rows)
    undo = [step for leniency in granted for step in leniency.receipt(value)]
    try:
        receipt = parse_receipt(value)
    except Rejected:
        return None
    for step in undo:
        receipt = step(receipt)
    return receipt
