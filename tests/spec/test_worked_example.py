"""The contract's worked example (section 9) and golden values, followed through every chapter of the spec."""

from __future__ import annotations

import struct

import pytest
from attrs import evolve

from rollproof.properties.strategies.rollouts.staged_calls import raw_receipt, staged_call
from rollproof.spec.group import batch_meta, finalize_group
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted
from rollproof.spec.judge.rules.records import GOLDEN
from rollproof.spec.judge.staging import Faults, Staging
from rollproof.spec.outcomes import Failure
from rollproof.spec.plane import Clear, DataPlane, Get, Put
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.rows import row_padding
from rollproof.spec.staged import decode_row, encode_row


def f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


C1 = staged_call(
    [10, 11, 12, 13], 2, rollout_id="g7_g0", call_id="c1", log_probs=[f32(-0.1), f32(-0.2)], weight_version=4
)
C2 = staged_call(
    [20, 21, 22],
    1,
    rollout_id="g7_g0",
    call_id="c2",
    parent=C1,
    before=C1.token_ids_delta,
    log_probs=[f32(-0.3), f32(-0.4)],
    weight_version=5,
)
ROWS = {f"g7_g0/{call.model_call_id}": encode_row(call) for call in (C1, C2)}
RECEIPT = raw_receipt([C1, C2])
CONFIG = ReassemblerConfig(max_seq_len=7)
REQUEST = GroupRequest("g7", ("g7_g0", "g7_g1"), (RECEIPT, None), (1.0, 2), (False, True), fallback_weight_version=9)


@pytest.mark.parametrize(("request_", "value"), GOLDEN, ids=["extras", "call"])
def test_golden_values(request_, value):
    assert answer(request_) == Accepted(value)


def test_worked_example_is_rebuilt_as_a_rollout():
    outcome = finalize_rollout(CONFIG, "g7_g0", RECEIPT, 1, DataPlane(ROWS))
    rollout = outcome.rollout
    assert rollout.valid
    assert rollout.token_ids == (10, 11, 12, 13, 20, 21, 22)
    assert rollout.token_mask == (0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0)
    assert rollout.logprobs == tuple(map(f32, (0.0, 0.0, -0.1, -0.2, 0.0, -0.3, -0.4)))
    assert (rollout.prompt_len, rollout.min_wv, rollout.max_wv, rollout.reward) == (2, 4, 5, 1.0)
    assert rollout.staging_keys == ("g7_g0/c1", "g7_g0/c2")


def test_worked_example_is_published_as_a_group():
    outcome = finalize_group(CONFIG, REQUEST, DataPlane(ROWS))
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
        (Faults(failing_get=0), Failure.READ, [Get]),
        (Faults(put=True), Failure.PUT, [Get, Put]),
        (Faults(clear=True), Failure.CLEAR, [Get, Put, Clear]),
    ],
)
def test_finalize_group_fails_where_an_operation_fails(faults, failure, effects):
    plane = Staging(ROWS, faults).plane()
    outcome = finalize_group(CONFIG, REQUEST, plane)
    assert outcome.failure is failure
    assert [type(effect) for effect in outcome.effects] == effects
    assert plane.rows == ROWS


def test_staging_after_a_group_is_empty():
    plane = DataPlane(ROWS)
    assert finalize_group(CONFIG, REQUEST, plane).failure is None
    assert plane.rows == {}


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
def test_finalize_group_refuses_contradictory_arguments(change):
    outcome = finalize_group(CONFIG, evolve(REQUEST, **change), DataPlane(ROWS))
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
    outcome = finalize_group(CONFIG, request, DataPlane(ROWS))
    assert outcome.rollouts[0].rejection_reason == "identity_mismatch: rollout_id: got 'a', expected 'a/b'"
    assert not any(isinstance(effect, Clear) for effect in outcome.effects)


def test_row_padding_is_fixed_for_columns_with_one_value_per_token():
    row = finalize_group(CONFIG, REQUEST, DataPlane(ROWS)).rows[0]
    assert {name: row_padding(name, 7) for name in row.columns if row_padding(name, 7) is not None} == {
        "input_ids": 7,
        "token_mask": 0.0,
        "generation_logprobs": 0.0,
    }
    assert row_padding("routed_experts", 7) == -1


def test_batch_meta_describes_what_was_published():
    outcome = finalize_group(CONFIG, REQUEST, DataPlane(ROWS))
    meta = batch_meta(CONFIG, outcome.group)
    assert (meta["partition_id"], meta["task_name"]) == (CONFIG.partition_id, "train")
    assert meta["sample_ids"] == ("g7_g0", "g7_g1")
    assert meta["fields"] == set(outcome.rows[0].columns)
    assert meta["sequence_lengths"] == (7, 1)
    assert meta["tags"] == tuple(row.tags for row in outcome.rows)
    assert outcome.group.drop_reason is None
    assert evolve(outcome.group, dropped=True).drop_reason
