"""The contract's worked example (section 9) and golden values, followed through every chapter of the spec."""

from __future__ import annotations

import struct

import pytest
from attrs import evolve

from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.group import finalize_group
from rollproof.spec.oracle import answer
from rollproof.spec.outcomes import Failure
from rollproof.spec.plane import Clear, Faults, Get, Put, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig, StagedCall
from rollproof.spec.requests import Accepted
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.rules.records import GOLDEN
from rollproof.spec.staged import decode_row, encode_row


def f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def staged(
    call_id: str, parent: StagedCall | None, ids: list[int], carry: int, lps: list[float], wv: int
) -> StagedCall:
    prefix = [] if parent is None else [10, 11, 12, 13]
    call = StagedCall(
        rollout_id="g7_g0",
        model_call_id=call_id,
        parent_call_id=None if parent is None else parent.model_call_id,
        mode="text" if parent is None else "token_in",
        prev_len=len(prefix),
        delta_len=len(ids),
        cum_len=len(prefix) + len(ids),
        weight_version=wv,
        token_ids_delta=tuple(ids),
        token_mask_delta=(0.0,) * carry + (1.0,) * (len(ids) - carry),
        generation_log_probs_delta=tuple(f32(value) for value in lps),
        extras_digest=extras_digest(None),
        chain_hash=chain_digest(None if parent is None else parent.chain_hash, ids),
        cumulative_hash=prefix_digest(prefix + ids),
        digest="0" * 64,
    )
    return evolve(call, digest=call_digest(call))


C1 = staged("c1", None, [10, 11, 12, 13], 2, [0.0, 0.0, -0.1, -0.2], 4)
C2 = staged("c2", C1, [20, 21, 22], 1, [0.0, -0.3, -0.4], 5)
ROWS = {f"g7_g0/{call.model_call_id}": encode_row(call) for call in (C1, C2)}
COPIED = (
    *("model_call_id", "parent_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("digest", "extras_digest", "chain_hash", "cumulative_hash"),
)
RECEIPT = {
    "rollout_id": "g7_g0",
    "manifest": [
        {name: getattr(call, name) for name in COPIED}
        | {"staging_key": f"g7_g0/{call.model_call_id}", "response_id": f"resp-{call.model_call_id}"}
        for call in (C1, C2)
    ],
    "terminal_model_call_id": "c2",
    "terminal_selection": "declared",
}
CONFIG = ReassemblerConfig(max_seq_len=7)
REQUEST = GroupRequest("g7", ("g7_g0", "g7_g1"), (RECEIPT, None), (1.0, 2), (False, True), fallback_weight_version=9)


@pytest.mark.parametrize(("request_", "value"), GOLDEN, ids=["extras", "call"])
def test_golden_values(request_, value):
    assert answer(request_) == Accepted(value)


def test_rollout():
    outcome = finalize_rollout(CONFIG, "g7_g0", RECEIPT, 1, Staging(ROWS))
    rollout = outcome.rollout
    assert rollout.valid
    assert rollout.token_ids == (10, 11, 12, 13, 20, 21, 22)
    assert rollout.token_mask == (0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0)
    assert rollout.logprobs == tuple(map(f32, (0.0, 0.0, -0.1, -0.2, 0.0, -0.3, -0.4)))
    assert (rollout.prompt_len, rollout.min_wv, rollout.max_wv, rollout.reward) == (2, 4, 5, 1.0)
    assert rollout.staging_keys == ("g7_g0/c1", "g7_g0/c2")


def test_group():
    outcome = finalize_group(CONFIG, REQUEST, Staging(ROWS))
    assert [type(effect) for effect in outcome.effects] == [Get, Put, Clear]
    assert outcome.effects[-1] == Clear("staging", ("g7_g0/c1", "g7_g0/c2"))
    valid, placeholder = outcome.rows
    assert valid.columns["truncated"].values() == (True,)
    assert valid.columns["prompt_ids_for_adv"].values() == (10, 11)
    assert placeholder.columns["prompt_ids_for_adv"].values() == (10, 11)
    assert placeholder.columns["input_ids"].values() == (0,)
    assert placeholder.columns["sample_mask"].values() == (0.0,)
    assert placeholder.columns["truncated"].values() == (False,)
    assert valid.tags == {"weight_version": 4, "prompt_idx": 0, "group_id": "g7"}
    group = outcome.group
    assert (group.group_min_wv, group.group_max_wv, group.canonical_output_tokens) == (4, 5, 4)
    assert (group.valid_row_count, group.total_row_count, group.sequence_lengths) == (1, 2, (7, 1))
    assert group.metrics["finalize/capture_failure_reason_missing_receipt_count"] == 1.0
    assert group.metrics["finalize/token_in_rate"] == 0.5


@pytest.mark.parametrize(
    ("faults", "failure", "effects"),
    [
        (Faults(failing_get=0), Failure.READ, []),
        (Faults(put=True), Failure.PUT, [Get, Put]),
        (Faults(clear=True), Failure.CLEAR, [Get, Put, Clear]),
    ],
)
def test_group_failures(faults, failure, effects):
    staging = Staging(ROWS, faults)
    outcome = finalize_group(CONFIG, REQUEST, staging)
    assert outcome.failure is failure
    assert [type(effect) for effect in outcome.effects] == effects
    assert staging.after(outcome.effects).rows == ROWS


def test_staging_after_a_group_is_empty():
    outcome = finalize_group(CONFIG, REQUEST, Staging(ROWS))
    assert Staging(ROWS).after(outcome.effects).rows == {}


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": (1.0,)},
        {"rollout_ids": (), "receipts": (), "rewards": (), "mask_sample": ()},
        {"rollout_ids": ("g7_g0", "g7_g0")},
        {"loss_multiplier": -1.0},
        {"loss_multiplier": float("nan")},
        {"loss_multiplier": 1e300},
        {"loss_multiplier": 10**400},
        {"loss_multiplier": True},
        {"canonical_sample_ids": ("g7_g1", "g7_g0")},
        {"group_id": "g8"},
    ],
)
def test_contradictory_arguments(change):
    outcome = finalize_group(CONFIG, evolve(REQUEST, **change), Staging(ROWS))
    assert (outcome.failure, outcome.effects) == (Failure.CALLER, ())


def test_rows_survive_the_wire():
    row = decode_row(ROWS["g7_g0/c2"])
    assert row.call == C2
    assert row.key == "g7_g0/c2"
    assert row.extras_metadata_json == b"null"


def test_a_rollout_id_with_a_slash_owns_nothing():
    receipt = RECEIPT | {"rollout_id": "a", "manifest": [RECEIPT["manifest"][0] | {"staging_key": "a/b/c1"}]}
    receipt |= {"terminal_model_call_id": "c1"}
    request = GroupRequest("a/b", ("a/b",), (receipt,), (1.0,), (False,), canonical_sample_ids=("a/b_g0",))
    outcome = finalize_group(CONFIG, request, Staging(ROWS))
    assert outcome.rollouts[0].rejection_reason == "identity_mismatch: a"
    assert not any(isinstance(effect, Clear) for effect in outcome.effects)
