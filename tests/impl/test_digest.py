"""Section 2: golden values, and the same answers as the spec."""

from __future__ import annotations

import pytest
from attrs import evolve

from rollproof.impl import digest
from rollproof.spec import digest as spec
from rollproof.spec.records import StagedCall

GOLDEN_CALL = StagedCall(
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


def nested(depth: int) -> dict:
    value: object = 0
    for _ in range(depth - 1):
        value = [value]
    return {"deep": value}


def test_golden_values():
    assert digest.extras_digest({"routed_experts": [[[1, 2]], [[3, 4]]]}) == GOLDEN_CALL.extras_digest
    expected = "1122c7fe7e914c809eb9b1c09b26d94a50c1eb2790e7430fbcd8363b846ccf27"
    assert digest.call_digest(GOLDEN_CALL) == expected


@pytest.mark.parametrize("ids", [(), (0,), (2**63,), (2**64 - 1, 1), tuple(range(50))])
def test_token_digests_are_the_specs(ids):
    assert digest.prefix_digest(ids) == spec.prefix_digest(ids)
    assert digest.chain_digest(None, ids) == spec.chain_digest(None, ids)
    assert digest.chain_digest("ab" * 32, ids) == spec.chain_digest("ab" * 32, ids)


@pytest.mark.parametrize("ids", [(-1,), (2**64,), (True,), (1.0,), ("1",), (None,)])
def test_tokens_outside_their_domain_have_no_digest(ids):
    with pytest.raises(ValueError, match=r"token_ids\[0\]: got "):
        digest.prefix_digest(ids)
    with pytest.raises(ValueError, match=r"token_ids\[0\]: got "):
        digest.chain_digest(None, ids)


@pytest.mark.parametrize("parent", ["", "AB" * 32, "é" * 64, "ab" * 31, 5, b"ab" * 32])
def test_a_parent_hash_is_64_lowercase_hex_characters(parent):
    with pytest.raises(ValueError, match="64 lowercase hex"):
        digest.chain_digest(parent, (1,))


@pytest.mark.parametrize(
    "extras",
    [
        None,
        {},
        {"a": None, "b": True, "c": False, "d": -(2**63), "e": 2**63 - 1, "f": -0.0, "g": "é", "h": [], "i": {}},
        {"é": 1, "z": 2, "\U0001f600": 3, "": [[1.5, "x"], {"k": [None]}]},
        nested(64),
    ],
)
def test_extras_digests_are_the_specs(extras):
    assert digest.extras_digest(extras) == spec.extras_digest(extras)


@pytest.mark.parametrize(
    "extras",
    [
        [],
        "x",
        {"a": 2**63},
        {"a": -(2**63) - 1},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": (1,)},
        {"a": b""},
        {"a": "\ud800"},
        {"\ud800": 1},
        {1: 2},
        {"a": {1: 2}},
        nested(65),
        nested(100_000),
    ],
)
def test_extras_outside_their_domain_have_no_digest(extras):
    with pytest.raises(ValueError, match=r"^(extras|string): got .*, expected "):
        digest.extras_digest(extras)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids_delta": (10, 2**63)},
        {"token_ids_delta": (10, -1)},
        {"token_ids_delta": (10, True)},
        {"token_ids_delta": (10,)},
        {"token_mask_delta": (-0.0, 1.0)},
        {"token_mask_delta": (0, 1)},
        {"token_mask_delta": (0.5, 1.0)},
        {"generation_log_probs_delta": (-0.0, -0.25)},
        {"generation_log_probs_delta": (0.0, 0.1)},
        {"generation_log_probs_delta": (0.0, float("nan"))},
        {"generation_log_probs_delta": (0.0, float("-inf"))},
        {"generation_log_probs_delta": (0.0, 1e300)},
        {"rollout_id": "a/b"},
        {"rollout_id": ""},
        {"rollout_id": "\ud800"},
        {"model_call_id": 5},
        {"parent_call_id": ""},
        {"parent_call_id": None},
        {"mode": "text"},
        {"mode": None},
        {"prev_len": 2},
        {"prev_len": -1, "cum_len": 1},
        {"weight_version": 2**63},
        {"weight_version": True},
        {"schema_version": 3},
        {"digest_version": 2.0},
        {"extras_digest_version": 2},
        {"extras_digest": "0" * 63},
        {"chain_hash": None},
        {"delta_len": 0, "cum_len": 3, **dict.fromkeys(("token_ids_delta", "token_mask_delta"), ())},
    ],
)
def test_calls_that_break_a_rule_have_no_digest(changes):
    call = evolve(GOLDEN_CALL, **changes)
    with pytest.raises(ValueError, match=r"expected|not finite"):
        spec.call_digest(call)
    with pytest.raises(ValueError, match=r"expected|not finite"):
        digest.call_digest(call)
