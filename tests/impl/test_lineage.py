"""Section 4: the spec's row or the spec's code, from records and from columns."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import attrs
import pytest
from attrs import evolve

from rollproof.impl.lineage import linearize
from rollproof.properties.adapters.asking import ask, long_chain
from rollproof.properties.adapters.ours import Ours
from rollproof.spec.judge.requests import Accepted, LinearizeGrowth
from rollproof.spec.lineage import linearize as spec_linearize
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import CallRecord
from rollproof.spec.rejections import Code, Rejected

SHARED = [field.name for field in attrs.fields(CallRecord)]


def code(receipt, calls) -> Code | None:
    """Return the spec's code for one input, or None where it accepts; the implementation must agree."""
    (expected, refused), (actual, found) = (attempt(read, receipt, calls) for read in (spec_linearize, linearize))
    assert found is refused
    assert actual == expected
    return refused


def attempt(read, receipt, calls):
    """Return (row, None), or (None, the code of the refusal)."""
    try:
        return read(receipt, calls), None
    except Rejected as rejected:
        return None, rejected.code


def listed(receipt, index, call):
    """Return the receipt with a manifest row that says what the call says."""
    manifest = list(receipt.manifest)
    manifest[index] = evolve(manifest[index], **{name: getattr(call, name) for name in SHARED if hasattr(call, name)})
    return evolve(receipt, manifest=tuple(manifest))


@pytest.fixture
def calls(make):
    return make.two_calls()


@pytest.fixture
def receipt(make, calls):
    return parse_receipt(make.receipt_of(calls))


def test_a_valid_row(receipt, calls):
    assert code(receipt, calls) is None
    row = linearize(receipt, calls)
    assert row.prompt_len == 2
    assert row.token_ids == (10, 11, 12, 13, 20, 21, 22)
    assert row.weight_versions == (4, 5)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"schema_version": 3}, Code.UNSUPPORTED_SCHEMA),
        ({"digest_version": 1}, Code.UNSUPPORTED_DIGEST),
        ({"extras_digest_version": 2}, Code.UNSUPPORTED_EXTRAS_DIGEST),
        ({"failure_reason": "x", "capture_poisoned": True}, Code.REBUILD_ROLLOUT_FAILED),
        ({"capture_poisoned": True}, Code.REBUILD_CAPTURE_POISONED),
        ({"manifest": ()}, Code.EMPTY_MANIFEST),
        ({"terminal_model_call_id": "absent"}, Code.MISSING_TERMINAL),
        ({"terminal_model_call_id": None}, Code.MISSING_TERMINAL),
        ({"rollout_id": "g_g0\0"}, Code.WRONG_ROLLOUT),
    ],
)
def test_receipts_that_cannot_be_rebuilt(receipt, calls, changes, expected):
    assert code(evolve(receipt, **changes), calls) is expected


def test_manifests_that_repeat(receipt, calls):
    first, second = receipt.manifest
    repeated = evolve(receipt, manifest=(first, second, first))
    assert code(repeated, calls) is Code.DUPLICATE_MANIFEST_ROW
    one_key = evolve(receipt, manifest=(first, evolve(second, staging_key=first.staging_key)))
    assert code(one_key, calls) is Code.REBUILD_DUPLICATE_STAGING_KEY
    key_first = evolve(receipt, manifest=(first, evolve(second, staging_key=first.staging_key), first))
    assert code(key_first, calls) is Code.REBUILD_DUPLICATE_STAGING_KEY


def test_calls_that_are_not_the_manifests(receipt, calls):
    first, second = calls
    assert code(receipt, [first]) is Code.ROW_COUNT_MISMATCH
    assert code(receipt, [first, first]) is Code.DUPLICATE_SNAPSHOT
    assert code(receipt, [second, first]) is Code.SNAPSHOT_ORDER_MISMATCH
    assert code(receipt, [first, evolve(second, model_call_id="other")]) is Code.SNAPSHOT_IDENTITY_MISMATCH


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"rollout_id": "other"}, Code.WRONG_ROLLOUT),
        ({"rollout_id": "g_g0\0"}, Code.WRONG_ROLLOUT),
        ({"parent_call_id": "other"}, Code.WRONG_PARENT_CALL_ID),
        ({"mode": "text"}, Code.WRONG_MODE),
        ({"prev_len": 5}, Code.WRONG_PREV_LEN),
        ({"delta_len": 5}, Code.WRONG_DELTA_LEN),
        ({"cum_len": 2**80}, Code.WRONG_CUM_LEN),
        ({"weight_version": 6}, Code.WRONG_WEIGHT_VERSION),
        ({"digest": "0" * 64}, Code.WRONG_DIGEST),
        ({"extras_digest": "x"}, Code.WRONG_EXTRAS_DIGEST),
        ({"chain_hash": "0" * 64}, Code.WRONG_CHAIN_HASH),
        ({"cumulative_hash": "0" * 64}, Code.WRONG_CUMULATIVE_HASH),
        ({"schema_version": 3}, Code.WRONG_SCHEMA_VERSION),
        ({"digest_version": 3}, Code.WRONG_DIGEST_VERSION),
        ({"extras_digest_version": 3}, Code.WRONG_EXTRAS_DIGEST_VERSION),
        ({"token_ids_delta": (20, 21, 2**64)}, Code.INVALID_SNAPSHOT),
        ({"token_mask_delta": (-0.0, 1.0, 1.0)}, Code.INVALID_SNAPSHOT),
        ({"generation_log_probs_delta": (0.0, -0.25, 0.1)}, Code.INVALID_SNAPSHOT),
        ({"token_ids_delta": (20, 21, 23)}, Code.CORRUPT_DIGEST),
    ],
)
def test_calls_that_differ(receipt, calls, changes, expected):
    assert code(receipt, [calls[0], evolve(calls[1], **changes)]) is expected


def test_an_earlier_row_comes_before_an_earlier_rule(receipt, calls):
    first = evolve(calls[0], token_ids_delta=(10, 11, 12, 14))
    assert code(receipt, [first, evolve(calls[1], rollout_id="other")]) is Code.CORRUPT_DIGEST
    assert code(receipt, [evolve(calls[0], token_ids_delta=(-1,)), calls[1]]) is Code.INVALID_SNAPSHOT
    unlisted = listed(receipt, 0, evolve(calls[0], schema_version=3))
    assert code(unlisted, [evolve(calls[0], schema_version=3), calls[1]]) is Code.WRONG_SCHEMA_VERSION


def rewired(make, calls, **changes):
    """Return receipt and calls whose second call was changed and sealed again, in the manifest too."""
    second = make.sealed(evolve(calls[1], **changes))
    return listed(parse_receipt(make.receipt_of(calls)), 1, second), [calls[0], second]


def test_linearize_refuses_broken_graphs(make, calls):
    assert code(*rewired(make, calls, parent_call_id="absent")) is Code.MISSING_PARENT
    assert code(*rewired(make, calls, prev_len=5, cum_len=8)) is Code.PARENT_LENGTH_MISMATCH
    third = make.add_call(calls, [30], 0, parent=calls[1])
    looped = make.sealed(evolve(calls[1], parent_call_id=third.model_call_id))
    receipt = listed(parse_receipt(make.receipt_of(calls)), 1, looped)
    assert code(receipt, [calls[0], looped, third]) is Code.PARENT_LENGTH_MISMATCH
    order = [2, 1, 0]
    turned = evolve(receipt, manifest=tuple(receipt.manifest[index] for index in order))
    assert code(turned, [[calls[0], looped, third][index] for index in order]) is Code.LINEAGE_CYCLE


def test_linearize_refuses_broken_rows(make, calls):
    assert code(*rewired(make, calls, chain_hash="0" * 64)) is Code.CHAIN_HASH_MISMATCH
    unordered = {"token_mask_delta": (1.0, 0.0, 1.0), "generation_log_probs_delta": (0.0, 0.0, -0.25)}
    assert code(*rewired(make, calls, **unordered)) is Code.INVALID_MASK_ORDER
    carry_only = {"token_mask_delta": (0.0,) * 3, "generation_log_probs_delta": (0.0,) * 3}
    assert code(*rewired(make, calls, **carry_only)) is Code.EMPTY_GENERATION
    assert code(*rewired(make, calls, cumulative_hash="0" * 64)) is Code.CUMULATIVE_HASH_MISMATCH
    both = {"chain_hash": "0" * 64, **unordered}
    assert code(*rewired(make, calls, **both)) is Code.CHAIN_HASH_MISMATCH


def test_dead_branches_and_manifest_order(make):
    calls = make.two_calls()
    make.add_call(calls, [30], 0, parent=calls[0])
    make.add_call(calls, [40, 41], 1)
    make.add_call(calls, [50], 0, parent=calls[2])
    order = [4, 1, 0, 3, 2]
    receipt = parse_receipt(make.receipt_of(calls))
    shuffled = evolve(receipt, manifest=tuple(receipt.manifest[index] for index in order))
    assert code(receipt, calls) is None
    assert code(shuffled, [calls[index] for index in order]) is None


def test_random_damage(make):
    rng = random.Random(11)
    codes = Counter()
    for _ in range(600):
        calls = make.random_calls(rng, "g_g0")
        receipt = parse_receipt(make.receipt_of(calls))
        index = rng.randrange(len(calls))
        damage = {
            "token_ids_delta": (rng.randrange(-1, 3),) * calls[index].delta_len,
            "token_mask_delta": tuple(rng.choice([0.0, 1.0, -0.0]) for _ in range(calls[index].delta_len)),
            "parent_call_id": rng.choice([None, "c0", calls[-1].model_call_id]),
            "prev_len": rng.randrange(4),
            "mode": rng.choice(["text", "token_in"]),
            "chain_hash": "ab" * 32,
        }
        name = rng.choice([*damage, None])
        call = calls[index] if name is None else evolve(calls[index], **{name: damage[name]})
        if rng.random() < 0.6:
            with contextlib.suppress(ValueError):
                call = make.sealed(call)
        if rng.random() < 0.6:
            receipt = listed(receipt, index, call)
        calls[index] = call
        codes[code(receipt, calls)] += 1
    assert codes[None] > 50
    assert len(codes) >= 8


def test_work_grows_linearly():
    answer = ask(Ours(), LinearizeGrowth(few=200, many=800))
    assert isinstance(answer, Accepted)
    few, many = answer.value
    assert many < 4.5 * few


def test_linearize_tells_a_missing_parent_from_a_circle_of_many_calls(make):
    # More calls than Python has shared small integers: positions are compared by value.
    receipt, calls = long_chain(301)
    for parent, expected in (("absent", Code.MISSING_PARENT), ("c300", Code.LINEAGE_CYCLE)):
        second = make.sealed(evolve(calls[1], parent_call_id=parent))
        given = listed(receipt, 1, second)
        turned = evolve(given, manifest=given.manifest[::-1])
        assert code(turned, [calls[0], second, *calls[2:]][::-1]) is expected
