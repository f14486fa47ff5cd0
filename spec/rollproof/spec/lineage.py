"""Verifying a rollout's staged calls and laying its terminal chain out as one row (section 4).

``linearize`` is the order of the checks: the first violated rule is the answer. Nothing here reads extras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rollproof.spec.constants import VERSIONS
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
from rollproof.spec.values import call_fault, expect_digest, fault, refusing, show

COMPARED_FIELDS: Final = (
    *("model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("digest", "extras_digest", "chain_hash", "cumulative_hash"),
)
"""Fields that a staged call and its manifest row share, in the order in which they are compared."""


def linearize(receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
    """Return the verified row of the receipt's terminal chain.

    ``calls`` holds one staged call per manifest row, in manifest order. Raises ``Rejected`` with the first violated
    rule of section 4.
    """
    check_supported(receipt)
    check_manifest(receipt)
    if len(calls) != len(receipt.manifest):
        expected = f"{len(receipt.manifest)}, one per row"
        raise Rejected(Code.ROW_COUNT_MISMATCH, fault("staged calls", len(calls), expected))
    check_pairs(receipt, calls)
    records = {record.model_call_id: record for record in receipt.manifest}
    check_graph(records)
    chain = terminal_chain(receipt, records)
    by_id = {call.model_call_id: call for call in calls}
    return lay_out(receipt.rollout_id, [by_id[record.model_call_id] for record in chain])


def refused(code: Code, call_id: str, field: str, value: object, expected: str) -> Rejected:
    """Return the rejection of a rollout for one field of one call."""
    return Rejected(code, call_fault(call_id, field, value, expected))


def check_supported(receipt: Receipt) -> None:
    """Check steps 1 and 2: supported versions, and a rollout that succeeded."""
    for field, supported in VERSIONS.items():
        if getattr(receipt, field) != supported:
            code = Code[f"UNSUPPORTED_{field.removesuffix('_version').upper()}"]
            raise Rejected(code, f"receipt: {fault(field, getattr(receipt, field), str(supported))}")
    if receipt.failure_reason is not None:
        raise Rejected(Code.REBUILD_ROLLOUT_FAILED, receipt.failure_reason)
    if receipt.capture_poisoned:
        raise Rejected(Code.REBUILD_CAPTURE_POISONED)
    if not receipt.manifest:
        raise Rejected(Code.EMPTY_MANIFEST)


def check_manifest(receipt: Receipt) -> None:
    """Check step 3: distinct calls and keys, whichever repeats first."""
    call_ids, keys = set(), set()
    for record in receipt.manifest:
        if record.model_call_id in call_ids:
            raise Rejected(Code.DUPLICATE_MANIFEST_ROW, repeated(record, "model_call_id"))
        if record.staging_key in keys:
            raise Rejected(Code.REBUILD_DUPLICATE_STAGING_KEY, repeated(record, "staging_key"))
        call_ids.add(record.model_call_id)
        keys.add(record.staging_key)


def repeated(record: CallRecord, field: str) -> str:
    """Return the text of an error: a row of the manifest has the same ``field`` as an earlier one."""
    return call_fault(record.model_call_id, field, getattr(record, field), "another one in every row")


def check_pairs(receipt: Receipt, calls: Sequence[StagedCall]) -> None:
    """Check step 4: each staged call is its manifest row's, unaltered."""
    listed = {record.model_call_id for record in receipt.manifest}
    seen = set()
    for record, call in zip(receipt.manifest, calls, strict=True):
        listed_id = record.model_call_id
        identity = call_fault(listed_id, "model_call_id", call.model_call_id, show(listed_id))
        if call.model_call_id in seen:
            raise Rejected(Code.DUPLICATE_SNAPSHOT, identity)
        if call.model_call_id not in listed:
            raise Rejected(Code.SNAPSHOT_IDENTITY_MISMATCH, identity)
        if call.model_call_id != listed_id:
            raise Rejected(Code.SNAPSHOT_ORDER_MISMATCH, identity)
        seen.add(call.model_call_id)
        if call.rollout_id != receipt.rollout_id:
            raise refused(Code.WRONG_ROLLOUT, listed_id, "rollout_id", call.rollout_id, show(receipt.rollout_id))
        for field in COMPARED_FIELDS:
            staged, expected = getattr(call, field), getattr(record, field)
            if staged != expected:
                raise refused(wrong(field), listed_id, field, staged, f"{show(expected)}, as in the manifest")
        for field in VERSIONS:
            staged, listed_as, of_receipt = (getattr(each, field) for each in (call, record, receipt))
            if len({staged, listed_as, of_receipt}) > 1:
                others = f"that of its manifest row, {show(listed_as)}, and of the receipt, {show(of_receipt)}"
                raise refused(wrong(field), listed_id, field, staged, others)
        with refusing(Code.INVALID_SNAPSHOT, where=f"call {listed_id}"):
            expect_digest("digest", call.digest)
            actual = call_digest(call)
        if actual != call.digest:
            raise refused(Code.CORRUPT_DIGEST, listed_id, "digest", call.digest, show(actual))


def wrong(field: str) -> Code:
    """Return the code of a field in which a staged call is not what the manifest says."""
    return Code[f"WRONG_{field.upper()}"]


def check_graph(records: Mapping[str, CallRecord]) -> None:
    """Check step 5: every parent is there and ends where the call starts, and no walk to the root repeats a call."""
    cyclic = calls_that_reach_a_cycle(records)
    for call_id, record in records.items():
        parent_id = record.parent_call_id
        if parent_id is not None and parent_id not in records:
            raise refused(Code.MISSING_PARENT, call_id, "parent_call_id", parent_id, "a call of the manifest")
        if parent_id is not None and record.prev_len != records[parent_id].cum_len:
            end = f"{records[parent_id].cum_len}, where its parent ends"
            raise refused(Code.PARENT_LENGTH_MISMATCH, call_id, "prev_len", record.prev_len, end)
        if call_id in cyclic:
            raise refused(Code.LINEAGE_CYCLE, call_id, "parent_call_id", parent_id, "a path to a root")


def calls_that_reach_a_cycle(records: Mapping[str, CallRecord]) -> set[str]:
    """Return the calls from which following parents never ends; leaving the manifest is an end.

    Each call is walked over once (decision D5): a walk stops at a call that it, or an earlier walk, has passed.
    """
    endless: dict[str, bool] = {}
    for start in records:
        walk: set[str] = set()
        current: str | None = start
        while current is not None and current in records and current not in walk and current not in endless:
            walk.add(current)
            current = records[current].parent_call_id
        never_ends = current is not None and (current in walk or endless.get(current, False))
        endless |= dict.fromkeys(walk, never_ends)
    return {call_id for call_id, never_ends in endless.items() if never_ends}


def terminal_chain(receipt: Receipt, records: Mapping[str, CallRecord]) -> list[CallRecord]:
    """Return the calls from the root to the terminal one."""
    if receipt.terminal_model_call_id not in records:
        named = receipt.terminal_model_call_id
        raise Rejected(Code.MISSING_TERMINAL, fault("terminal_model_call_id", named, "a call of the manifest"))
    chain = []
    current: str | None = receipt.terminal_model_call_id
    while current is not None:
        chain.append(records[current])
        current = records[current].parent_call_id
    return chain[::-1]


def carry_length(call: StagedCall) -> int:
    """Return how many carry tokens open the call; everything after them must be generated, and something must be."""
    carry_len = 0
    while carry_len < len(call.token_mask_delta) and call.token_mask_delta[carry_len] == 0.0:
        carry_len += 1
    if 0.0 in call.token_mask_delta[carry_len:]:
        field = f"token_mask_delta[{call.token_mask_delta.index(0.0, carry_len)}]"
        raise refused(Code.INVALID_MASK_ORDER, call.model_call_id, field, 0.0, "1.0 once a token is generated")
    if carry_len == len(call.token_mask_delta):
        raise refused(Code.EMPTY_GENERATION, call.model_call_id, "generated tokens", 0, "at least one")
    return carry_len


def lay_out(rollout_id: str, chain: Sequence[StagedCall]) -> LinearizedRow:
    """Do step 6: join the chain's deltas, each checked against the hashes that tie it to its parent."""
    chain_hash = None
    version_spans: list[WeightVersionSpan] = []
    link_spans: list[LinkSpan] = []
    for call in chain:
        chain_hash = chain_digest(chain_hash, call.token_ids_delta)
        if call.chain_hash != chain_hash:
            raise refused(Code.CHAIN_HASH_MISMATCH, call.model_call_id, "chain_hash", call.chain_hash, show(chain_hash))
        carry_len = carry_length(call)
        start = version_spans[-1].end if version_spans else 0
        end = start + len(call.token_ids_delta)
        version_spans.append(WeightVersionSpan(call.model_call_id, start, end, call.weight_version))
        link_spans.append(LinkSpan(call.model_call_id, carry_len, call.delta_len - carry_len))
    token_ids = tuple(token for call in chain for token in call.token_ids_delta)
    token_mask = tuple(mask for call in chain for mask in call.token_mask_delta)
    if 1.0 not in token_mask:
        raise Rejected(Code.EMPTY_TRAINING_ROW, fault("generated tokens", 0, "at least one"))
    last, whole = chain[-1], prefix_digest(token_ids)
    if last.cumulative_hash != whole:
        code, found = Code.CUMULATIVE_HASH_MISMATCH, last.cumulative_hash
        raise refused(code, last.model_call_id, "cumulative_hash", found, show(whole))
    return LinearizedRow(
        rollout_id=rollout_id,
        token_ids=token_ids,
        token_mask=token_mask,
        logprobs=tuple(value for call in chain for value in call.generation_log_probs_delta),
        prompt_len=link_spans[0].carry_len,
        model_call_ids=tuple(call.model_call_id for call in chain),
        weight_versions=tuple(call.weight_version for call in chain),
        weight_version_spans=tuple(version_spans),
        link_spans=tuple(link_spans),
        extras_commitments=tuple(
            ExtrasCommitment(call.model_call_id, call.extras_digest_version, call.extras_digest) for call in chain
        ),
    )
