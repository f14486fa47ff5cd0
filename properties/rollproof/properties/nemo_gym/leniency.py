"""Finding out why an implementation accepts what the contract does not.

A lenient implementation takes some kind of value that is outside the contract's domains. To see whether a disagreement
is that and nothing else, the contract is evaluated again with the offending values moved into their domains. It must
then give exactly the implementation's answer, and it must not if this one kind of value is left as it was. A
disagreement with any other cause stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from rollproof.properties.adapters.protocol import Deviation, same_answer
from rollproof.properties.nemo_gym.examples import examples_of
from rollproof.properties.nemo_gym.layout import WRONG_DIGEST, layout_digest
from rollproof.properties.strategies.rollouts.recipes import realize
from rollproof.spec.digest import call_digest
from rollproof.spec.judge.requests import Accepted, Answer, Area, CallDigest, Linearize, ParseReceipt, Refused, Request
from rollproof.spec.lineage import (
    COMPARED_FIELDS,
    check_graph,
    check_manifest,
    check_pairs,
    check_supported,
    lay_out,
    terminal_chain,
)
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import Receipt, StagedCall
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.values import is_digest

Undo = Callable[[Receipt], Receipt]
"""Puts back into a parsed receipt what was moved out of the raw one."""


def unchanged(call: StagedCall) -> StagedCall:
    """Move nothing in a staged call."""
    return call


def nothing_moved(value: dict[str, Any]) -> Iterator[Undo]:
    """Move nothing in a receipt."""
    return iter(())


@frozen
class Leniency:
    """One kind of value that is accepted against the contract, and how to move it into the contract's domain."""

    id: str
    section: str
    sentence: str
    areas: tuple[Area, ...]
    call: Callable[[StagedCall], StagedCall] = unchanged
    """A staged call with that kind of value replaced."""
    receipt: Callable[[dict[str, Any]], Iterator[Undo]] = nothing_moved
    """Does the same to a raw receipt, in place, and yields how to put back what is read as it was."""


def deviations_of(leniencies: Sequence[Leniency]) -> tuple[Deviation, ...]:
    """Return the deviations that these leniencies amount to, one for each of their areas."""

    def one(own: Leniency, area: Area) -> Deviation:
        def answers(request: Request, expected: Answer) -> Iterator[Answer]:
            return answers_with(own, leniencies, request, expected)

        return Deviation(own.id, area, own.section, own.sentence, answers, examples_of(own.id, area))

    return tuple(one(own, area) for own in leniencies for area in own.areas)


def answers_with(own: Leniency, every: Sequence[Leniency], request: Request, expected: Answer) -> Iterator[Answer]:
    """Yield the answer of an implementation with ``every`` leniency, where it depends on ``own``."""
    if not isinstance(expected, Refused):
        return
    others = [leniency for leniency in every if leniency is not own]
    match request:
        case CallDigest(call):
            digest = layout_digest(call)
            if digest is not None and has_digest(moved(call, every)) and not has_digest(moved(call, others)):
                yield Accepted(digest)
        case Linearize() as linearize_request if expected.code == Code.INVALID_SNAPSHOT.code:
            granted = granted_linearize(linearize_request, every)
            if not same_answer(granted, granted_linearize(linearize_request, others)):
                yield granted
        case ParseReceipt(value):
            value = realize(value)
            receipt = granted_receipt(value, every)
            if receipt is not None and granted_receipt(value, others) is None:
                yield Accepted(receipt)


# ── staged calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def moved(call: StagedCall, granted: Sequence[Leniency]) -> StagedCall:
    """Return the call with what these leniencies grant moved into the contract's domains."""
    for leniency in granted:
        call = leniency.call(call)
    return call


def has_digest(call: StagedCall) -> bool:
    """Return whether the contract gives the call a digest; its own is ignored."""
    try:
        call_digest(evolve(call, digest=WRONG_DIGEST))
    except ValueError:
        return False
    return True


def granted_linearize(request: Linearize, granted: Sequence[Leniency]) -> Answer:
    """Return the contract's answer if the staged calls were checked with these leniencies."""
    receipt, calls = request.receipt, request.calls
    try:
        check_supported(receipt)
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
    """Return manifest rows and calls with the granted values moved, and digests that are right exactly where they were.

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
    """Return the receipt that the contract would read if these leniencies were its own."""
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
