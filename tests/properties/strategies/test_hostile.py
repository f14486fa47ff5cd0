"""Recipes are built as written, at any depth, and hostile input never escapes the spec."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings

from rollproof.properties.strategies.hostile import (
    BigInt,
    JsonText,
    Nest,
    Repeat,
    Rows,
    crowded_receipt,
    hostile_receipts,
    hostile_rollouts,
    hostile_rows,
    odd_values,
    realize,
    realize_request,
    receipt_texts,
)
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import (
    Accepted,
    ExtrasDigest,
    FinalizeGroups,
    GroupStep,
    ParseReceipt,
    PrefixDigest,
    Refused,
)
from rollproof.spec.records import GroupRequest, ReassemblerConfig

MANY = settings(max_examples=400, database=None, deadline=None, suppress_health_check=list(HealthCheck))


def depth(value):
    levels = 0
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else value[""]
        levels += 1
    return levels, value


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("levels", [0, 1, 64, 100_000])
def test_nests_are_as_deep_as_they_say(kind, levels):
    assert depth(realize(Nest(kind, levels, "x"))) == (levels, "x")


def test_nests_of_nests():
    assert depth(realize(Nest("dict", 50_000, Nest("list", 50_000)))) == (100_000, None)


def test_large_values():
    assert realize([BigInt(5000)])[0] == 10**5000
    assert realize(BigInt(3, negative=True)) == -1000
    assert realize({Repeat("k", 3): Repeat("ab", 2)}) == {"kkk": "abab"}


def test_repeated_keys_keep_the_last():
    assert realize(JsonText('{"a": 1, "a": 2}')) == {"a": 2}
    assert math.isnan(realize([JsonText("NaN")])[0])


def test_manifests_of_many_rows():
    rows = realize(Rows({"model_call_id": "c", "prev_len": 0}, 3))
    assert [row["model_call_id"] for row in rows] == ["c0", "c1", "c2"]
    assert realize(Rows({"model_call_id": "c"}, 2, distinct=False)) == [{"model_call_id": "c0"}] * 2


def test_realized_values_are_copies():
    value = {"list": [{}], "tuple": (1, [2])}
    copy = realize(value)
    assert copy == value
    copy["list"][0]["changed"] = True
    copy["tuple"][1].append(3)
    assert value == {"list": [{}], "tuple": (1, [2])}


@pytest.mark.parametrize("wrong", [lambda: Nest("tuple", 1), lambda: Nest("list", -1), lambda: BigInt(-1)])
def test_recipes_check_their_arguments(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


def test_requests_are_realized_where_they_hold_json():
    assert realize_request(ParseReceipt(Repeat("a", 2))) == ParseReceipt("aa")
    assert realize_request(ExtrasDigest(Nest("dict", 1))) == ExtrasDigest({"": None})
    rollout = WORKED_EXAMPLE.finalize(reward=BigInt(2))
    assert realize_request(rollout).reward == 100
    assert realize_request(rollout).receipt is not rollout.receipt
    assert realize_request(PrefixDigest((1,))) == PrefixDigest((1,))


def test_a_retried_group_keeps_its_arguments():
    group = GroupRequest("g", ("g_g0",), (Nest("list", 50_000),), (BigInt(400),), (True,))
    request = realize_request(FinalizeGroups(ReassemblerConfig(), (GroupStep(group), GroupStep(group))))
    first, second = request.steps
    assert first.request is second.request
    assert first.request.rewards == (10**400,)


@MANY
@given(hostile_receipts())
def test_hostile_receipts_are_read_or_refused(request):
    result = answer(realize_request(request))
    assert isinstance(result, Accepted) or (isinstance(result, Refused) and result.code == "invalid_receipt")


def test_a_receipt_of_thousands_of_calls_is_valid():
    receipt = answer(ParseReceipt(realize(crowded_receipt(Bytes(b"\x02"))))).value
    assert len(receipt.manifest) == 4000


@MANY
@given(receipt_texts())
def test_receipt_texts_are_read_or_refused(request):
    result = answer(realize_request(request))
    assert isinstance(result, Accepted) or (isinstance(result, Refused) and result.code == "invalid_receipt")


@MANY
@given(odd_values())
def test_odd_values_are_no_receipts(value):
    assert isinstance(answer(ParseReceipt(realize(value))), Refused)


@MANY
@given(hostile_rollouts())
def test_hostile_rollouts_are_finalized(request):
    result = answer(realize_request(request)).value
    assert result.failure is None
    assert result.rollout.valid or result.rollout.rejection_reason


@MANY
@given(hostile_rows())
def test_hostile_rows_are_finalized(request):
    rollout = answer(realize_request(request)).value.rollout
    assert rollout.valid or rollout.rejection_reason
