"""Verifying a rollout's staged calls and laying its terminal chain out as one row (section 4).

``linearize`` is the order of the checks: the first violated rule is the answer. Nothing here reads extras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rollproof.spec.constants import DIGEST_VERSION, EXTRAS_DIGEST_VERSION, SCHEMA_VERSION
from rollproof.spec.digest import call_digest, chain_digest, prefix_digest
from rollproof.spec.records import (
    CallRecord,
    ExtrasCommitment,
    LinearizedRow,
    LinkSpan,
    Receipt,
    StagedCall,
    WeightVersionSpan,
)
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.values import expect, is_digest, show

COMPARED_FIELDS: Final = {
    "model_call_id": Code.WRONG_MODEL_CALL_ID,
    "parent_call_id": Code.WRONG_PARENT_CALL_ID,
    "mode": Code.WRONG_MODE,
    "prev_len": Code.WRONG_PREV_LEN,
    "delta_len": Code.WRONG_DELTA_LEN,
    "cum_len": Code.WRONG_CUM_LEN,
    "weight_version": Code.WRONG_WEIGHT_VERSION,
    "digest": Code.WRONG_DIGEST,
    "extras_digest": Code.WRONG_EXTRAS_DIGEST,
    "chain_hash": Code.WRONG_CHAIN_HASH,
    "cumulative_hash": Code.WRONG_CUMULATIVE_HASH,
}
"""Fields that a staged call and its manifest row share, in the order in which they are compared."""

VERSION_FIELDS: Final = {
    "schema_version": (SCHEMA_VERSION, Code.UNSUPPORTED_SCHEMA, Code.WRONG_SCHEMA_VERSION),
    "digest_version": (DIGEST_VERSION, Code.UNSUPPORTED_DIGEST, Code.WRONG_DIGEST_VERSION),
    "extras_digest_version": (
        EXTRAS_DIGEST_VERSION,
        Code.UNSUPPORTED_EXTRAS_DIGEST,
        Code.WRONG_EXTRAS_DIGEST_VERSION,
    ),
}


def linearize(receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
    """The verified row of the receipt's terminal chain.

    ``calls`` holds one staged call per manifest row, in manifest order. Raises ``Rejected`` with the first violated
    rule of section 4.
    """
    check_receipt_state(receipt)
    check_manifest(receipt)
    if len(calls) != len(receipt.manifest):
        raise Rejected(Code.ROW_COUNT_MISMATCH, f"{len(calls)} calls for {len(receipt.manifest)} manifest rows")
    check_pairs(receipt, calls)
    records = {record.model_call_id: record for record in receipt.manifest}
    check_graph(records)
    chain = terminal_chain(receipt, records)
    by_id = {call.model_call_id: call for call in calls}
    return lay_out(receipt.rollout_id, [by_id[record.model_call_id] for record in chain])


def check_receipt_state(receipt: Receipt) -> None:
    """Steps 1 and 2: supported versions, and a rollout that succeeded."""
    for field, (supported, unsupported, _) in VERSION_FIELDS.items():
        if getattr(receipt, field) != supported:
            raise Rejected(unsupported, f"receipt {field} is {show(getattr(receipt, field))}, not {supported}")
    if receipt.failure_reason is not None:
        raise Rejected(Code.REBUILD_ROLLOUT_FAILED, receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.REBUILD_CAPTURE_POISONED)
    if not receipt.manifest:
        raise Rejected(Code.EMPTY_MANIFEST)


def check_manifest(receipt: Receipt) -> None:
    """Step 3: distinct calls and keys, whichever repeats first."""
    call_ids, keys = set(), set()
    for record in receipt.manifest:
        if record.model_call_id in call_ids:
            raise Rejected(Code.DUPLICATE_MANIFEST_ROW, record.model_call_id)
        if record.staging_key in keys:
            raise Rejected(Code.REBUILD_DUPLICATE_STAGING_KEY, record.staging_key)
        call_ids.add(record.model_call_id)
        keys.add(record.staging_key)


def check_pairs(receipt: Receipt, calls: Sequence[StagedCall]) -> None:
    """Step 4: each staged call is its manifest row's, unaltered."""
    listed = {record.model_call_id for record in receipt.manifest}
    seen = set()
    for record, call in zip(receipt.manifest, calls, strict=True):
        where = f"call {record.model_call_id}"
        if call.model_call_id in seen:
            raise Rejected(Code.DUPLICATE_SNAPSHOT, where)
        if call.model_call_id not in listed:
            raise Rejected(Code.SNAPSHOT_IDENTITY_MISMATCH, f"{where}: {show(call.model_call_id)} was not listed")
        if call.model_call_id != record.model_call_id:
            raise Rejected(Code.SNAPSHOT_ORDER_MISMATCH, f"{where}: found {call.model_call_id}")
        seen.add(call.model_call_id)
        if call.rollout_id != receipt.rollout_id:
            raise Rejected(Code.WRONG_ROLLOUT, f"{where}: found rollout {show(call.rollout_id)}")
        for field, code in COMPARED_FIELDS.items():
            staged, expected = getattr(call, field), getattr(record, field)
            if staged != expected:
                raise Rejected(code, f"{where}: staged {show(staged)}, manifest {show(expected)}")
        for field, (_, _, code) in VERSION_FIELDS.items():
            three = getattr(call, field), getattr(record, field), getattr(receipt, field)
            if len(set(three)) > 1:
                raise Rejected(code, f"{where}: call, manifest row and receipt say {three}")
        try:
            expect(is_digest(call.digest), "digest", call.digest, "64 lowercase hex characters")
            actual = call_digest(call)
        except ValueError as error:
            raise Rejected(Code.INVALID_SNAPSHOT, f"{where}: {error}") from None
        if actual != call.digest:
            raise Rejected(Code.CORRUPT_DIGEST, f"{where}: digests to {actual}, carries {call.digest}")


def check_graph(records: Mapping[str, CallRecord]) -> None:
    """Step 5: every call's parent is there, ends where the call starts, and no walk to the root repeats a call."""
    cyclic = calls_that_reach_a_cycle(records)
    for call_id, record in records.items():
        if record.parent_call_id is not None:
            parent = records.get(record.parent_call_id)
            if parent is None:
                raise Rejected(Code.MISSING_PARENT, f"call {call_id}: no call {record.parent_call_id}")
            if record.prev_len != parent.cum_len:
                raise Rejected(
                    Code.PARENT_LENGTH_MISMATCH,
                    f"call {call_id} starts at {record.prev_len}, {record.parent_call_id} ends at {parent.cum_len}",
                )
        if call_id in cyclic:
            raise Rejected(Code.LINEAGE_CYCLE, f"call {call_id}")


def calls_that_reach_a_cycle(records: Mapping[str, CallRecord]) -> set[str]:
    """The calls from which following parents never ends.

    Each call is walked over once (decision D5): a walk stops at a call whose fate is already known.
    """
    ends: dict[str, bool] = {}
    for start in records:
        walk: dict[str, None] = {}
        current: str | None = start
        while current is not None and current in records and current not in ends and current not in walk:
            walk[current] = None
            current = records[current].parent_call_id
        leads_out = ends[current] if current is not None and current in ends else current not in walk
        ends.update(dict.fromkeys(walk, leads_out))
    return {call_id for call_id, leads_out in ends.items() if not leads_out}


def terminal_chain(receipt: Receipt, records: Mapping[str, CallRecord]) -> list[CallRecord]:
    """The calls from the root to the terminal one."""
    if receipt.terminal_model_call_id not in records:
        raise Rejected(Code.MISSING_TERMINAL, show(receipt.terminal_model_call_id))
    chain = []
    current: str | None = receipt.terminal_model_call_id
    while current is not None:
        chain.append(records[current])
        current = records[current].parent_call_id
    return chain[::-1]


def carry_length(call: StagedCall) -> int:
    """How many carry tokens open the call; everything after them must be generated, and something must be."""
    carry_len = 0
    while carry_len < len(call.token_mask_delta) and call.token_mask_delta[carry_len] == 0.0:
        carry_len += 1
    if 0.0 in call.token_mask_delta[carry_len:]:
        raise Rejected(Code.INVALID_MASK_ORDER, f"call {call.model_call_id}")
    if carry_len == len(call.token_mask_delta):
        raise Rejected(Code.EMPTY_GENERATION, f"call {call.model_call_id}")
    return carry_len


def lay_out(rollout_id: str, chain: Sequence[StagedCall]) -> LinearizedRow:
    """Step 6: the chain's deltas back to back, each checked against the hashes that tie it to its parent."""
    token_ids: list[int] = []
    token_mask: list[float] = []
    logprobs: list[float] = []
    version_spans: list[WeightVersionSpan] = []
    link_spans: list[LinkSpan] = []
    chain_hash = None
    for call in chain:
        chain_hash = chain_digest(chain_hash, call.token_ids_delta)
        if call.chain_hash != chain_hash:
            raise Rejected(Code.CHAIN_HASH_MISMATCH, f"call {call.model_call_id}")
        carry_len = carry_length(call)
        start = len(token_ids)
        token_ids += call.token_ids_delta
        token_mask += call.token_mask_delta
        logprobs += call.generation_log_probs_delta
        version_spans.append(WeightVersionSpan(call.model_call_id, start, len(token_ids), call.weight_version))
        link_spans.append(LinkSpan(call.model_call_id, carry_len, call.delta_len - carry_len))
    if 1.0 not in token_mask:
        raise Rejected(Code.EMPTY_TRAINING_ROW)
    if chain[-1].cumulative_hash != prefix_digest(token_ids):
        raise Rejected(Code.CUMULATIVE_HASH_MISMATCH, f"call {chain[-1].model_call_id}")
    return LinearizedRow(
        rollout_id=rollout_id,
        token_ids=tuple(token_ids),
        token_mask=tuple(token_mask),
        logprobs=tuple(logprobs),
        prompt_len=link_spans[0].carry_len,
        model_call_ids=tuple(call.model_call_id for call in chain),
        weight_versions=tuple(call.weight_version for call in chain),
        weight_version_spans=tuple(version_spans),
        link_spans=tuple(link_spans),
        extras_commitments=tuple(
            ExtrasCommitment(call.model_call_id, call.extras_digest_version, call.extras_digest) for call in chain
        ),
    )
