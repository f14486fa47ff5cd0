"""Each invariant by itself on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION, MEDIA_TENSOR_COLUMNS, ROUTE_PLAN_TAG
from rollproof.spec.invariants import BY_ID
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plan import encode_plan
from rollproof.spec.plane import Get, PublishedRow, Put, Staging
from rollproof.spec.records import (
    FinalizedGroup,
    FinalizedRollout,
    GroupRequest,
    LinearizedRow,
    LinkSpan,
    ReassemblerConfig,
    RouteAssemblyPlan,
    RouteSpan,
    WeightVersionSpan,
)
from rollproof.spec.requests import (
    Accepted,
    Answer,
    Crashed,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    LinearizeGrowth,
    ParseReceipt,
    Refused,
    RolloutAnswer,
)
from rollproof.spec.rules.lineage import MAX_GROWTH
from rollproof.spec.rules.routes import is_sentinel
from rollproof.spec.tensor import Tensor


def complaint(name: str, request: Any, expected: Answer, actual: Answer) -> str | None:
    return BY_ID[name].check(request, expected, actual)


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("actual", [Crashed("KeyError"), Refused("identity_mismatch: r"), Refused("")])
def test_a_value_that_is_no_receipt_is_reported_as_such(actual: Answer) -> None:
    assert complaint("RECEIPT-3", ParseReceipt(None), Refused("invalid_receipt"), actual)


@pytest.mark.parametrize("text", ["", ": a reason", ":"])
def test_what_follows_the_code_of_a_refusal_is_free(text: str) -> None:
    refused = Refused(f"invalid_receipt{text}")
    assert complaint("RECEIPT-3", ParseReceipt(None), Refused("invalid_receipt"), refused) is None


# ── lineages ────────────────────────────────────────────────────────────────────────────────────────────────────────

ROW = LinearizedRow(
    rollout_id="r",
    token_ids=(5, 6, 7, 8),
    token_mask=(0.0, 1.0, 0.0, 1.0),
    logprobs=(0.0, -1.0, 0.0, -2.0),
    prompt_len=1,
    model_call_ids=("b", "c"),
    weight_versions=(3, 4),
    weight_version_spans=(WeightVersionSpan("b", 0, 2, 3), WeightVersionSpan("c", 2, 4, 4)),
    link_spans=(LinkSpan("b", 1, 1), LinkSpan("c", 1, 1)),
    extras_commitments=(),
)


def versioned(**changes: Any) -> LinearizedRow:
    first, last = ROW.weight_version_spans
    return evolve(ROW, weight_version_spans=(first, evolve(last, **changes)))


def test_spans_that_tile_a_row_pass() -> None:
    assert complaint("LINEAGE-2", None, Accepted(ROW), Accepted(ROW)) is None


@pytest.mark.parametrize(
    "row",
    [
        versioned(model_call_id="a"),
        versioned(model_call_id="d"),
        versioned(start=1),
        versioned(start=3),
        versioned(end=3),
        versioned(end=5),
        evolve(ROW, token_mask=(0.0, 1.0, 0.0)),
        evolve(ROW, token_mask=(0.0, 1.0, 0.0, 1.0, 1.0)),
        evolve(ROW, logprobs=(0.0, -1.0, 0.0)),
        evolve(ROW, logprobs=(0.0,) * 5),
        evolve(ROW, token_mask=(0.0, 1.0, 1.0, 1.0)),
        evolve(ROW, link_spans=(LinkSpan("b", 1, 1), LinkSpan("c", 0, 2))),
        evolve(ROW, token_ids=(5, 6, 7, 8, 9), token_mask=(*ROW.token_mask, 0.0), logprobs=(*ROW.logprobs, 0.0)),
    ],
)
def test_spans_that_do_not_tile_a_row_are_noticed(row: LinearizedRow) -> None:
    assert complaint("LINEAGE-2", None, Accepted(ROW), Accepted(row))


def test_growth_is_compared_exactly() -> None:
    """MAX_GROWTH * 7 / 3 is no whole number."""
    request = LinearizeGrowth(3, 7)
    most = math.floor(1000 * MAX_GROWTH * 7 / 3)
    assert complaint("LINEAGE-5", request, Accepted(()), Accepted((1000, most))) is None
    assert complaint("LINEAGE-5", request, Accepted(()), Accepted((1000, most + 1)))
    assert complaint("LINEAGE-5", LinearizeGrowth(2, 4), Accepted(()), Accepted((10, 30))) is None


@pytest.mark.parametrize("actual", ["duplicate_snapshot", "wrong_rollout"])
def test_another_violation_is_noticed_whichever_comes_first_in_the_alphabet(actual: str) -> None:
    expected = Refused("orphan_call")
    assert complaint("LINEAGE-3", None, expected, Refused("orphan_call: c")) is None
    assert complaint("LINEAGE-3", None, expected, Refused(actual))


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def rejected(reason: str) -> Answer:
    return Accepted(RolloutAnswer((), FinalizedRollout("r", False, reason, 0.0)))


VALID = Accepted(RolloutAnswer((), FinalizedRollout("r", True, None, 0.0, token_ids=(5,))))
FINALIZE = FinalizeRollout(ReassemblerConfig(), "r", None, 0.0, Staging())


@pytest.mark.parametrize(
    "expected, actual",
    [
        ("missing_receipt", "invalid_receipt"),
        ("rebuild_failed:orphan: c", "rebuild_failed:no_root: c"),
        ("rollout_failed:oom", "rollout_failed:oo"),
        ("rollout_failed:oom", "rollout_failed:oom2"),
        ("route_assembly:missing_fragment", "route_assembly:fragment_rank"),
    ],
)
def test_another_reason_is_noticed(expected: str, actual: str) -> None:
    assert complaint("ROLLOUT-5", FINALIZE, rejected(expected), rejected(actual))
    assert complaint("ROLLOUT-5", FINALIZE, rejected(expected), rejected(f"{expected}: more words")) is None


@pytest.mark.parametrize("pair", [(VALID, rejected("missing_receipt")), (rejected("missing_receipt"), VALID)])
def test_which_rejection_it_is_says_nothing_about_valid_rows(pair: tuple[Answer, Answer]) -> None:
    assert complaint("ROLLOUT-5", FINALIZE, *pair) is None
    assert complaint("ROLLOUT-5", FINALIZE, pair[0], Crashed("KeyError")) is None


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def group(lowest: int, highest: int, **changes: Any) -> FinalizedGroup:
    found = FinalizedGroup(
        sample_ids=("g_g0",),
        fields=frozenset(),
        sequence_lengths=(1,),
        tags=({"weight_version": lowest},),
        group_min_wv=lowest,
        group_max_wv=highest,
        staging_keys=(),
        canonical_output_tokens=0,
    )
    return evolve(found, **changes)


def column(value: float) -> PublishedRow:
    return PublishedRow({"total_reward": Tensor.of("float32", [value], ())}, {})


REQUEST = GroupRequest("g", ("g_g0",), ({},), (0.0,), (False,), fallback_weight_version=9)
ROLLOUTS = (
    FinalizedRollout("g_g0", True, None, 0.0, min_wv=3, max_wv=4),
    FinalizedRollout("g_g1", True, None, 0.0, min_wv=2, max_wv=6),
    FinalizedRollout("g_g2", False, "missing_receipt", 0.0),
)


def once(*_: object) -> FinalizeGroups:
    return FinalizeGroups(ReassemblerConfig(), (GroupStep(REQUEST),))


def ranged(lowest: int, highest: int, rollouts: tuple[FinalizedRollout, ...], **changes: Any) -> Answer:
    return Accepted((GroupOutcome((), group(lowest, highest, **changes), rollouts=rollouts),))


@pytest.mark.parametrize("lowest, highest", [(1, 6), (3, 6), (2, 5), (2, 7), (3, 5), (9, 9)])
def test_a_range_of_weight_versions_that_is_not_the_valid_rows_is_noticed(lowest: int, highest: int) -> None:
    right = ranged(2, 6, ROLLOUTS)
    assert complaint("GROUP-9", once(), right, right) is None
    assert complaint("GROUP-9", once(), right, ranged(lowest, highest, ROLLOUTS))


@pytest.mark.parametrize("version", [1, 3, None])
def test_a_tag_of_another_weight_version_is_noticed(version: int | None) -> None:
    right = ranged(2, 6, ROLLOUTS)
    assert complaint("GROUP-9", once(), right, ranged(2, 6, ROLLOUTS, tags=({"weight_version": version},)))
    assert complaint("GROUP-9", once(), right, ranged(2, 6, ROLLOUTS, tags=())) is None


def test_the_fallback_is_for_groups_without_a_valid_row() -> None:
    right = ranged(9, 9, ROLLOUTS[2:])
    assert complaint("GROUP-9", once(), right, right) is None
    assert complaint("GROUP-9", once(), right, ranged(0, 0, ROLLOUTS[2:]))


def put(value: float) -> GroupOutcome:
    return GroupOutcome((Put("train", ("g_g0",), (column(value),)),))


def test_a_retry_that_publishes_other_rows_is_noticed() -> None:
    """A retry is an equal request, not the same object."""
    twice = FinalizeGroups(ReassemblerConfig(), (GroupStep(REQUEST), GroupStep(evolve(REQUEST))))
    right, wrong = Accepted((put(1.0), put(1.0))), Accepted((put(1.0), put(2.0)))
    assert complaint("GROUP-16", twice, right, right) is None
    assert complaint("GROUP-16", twice, right, wrong)
    assert complaint("GROUP-16", once(), Accepted((put(1.0),)), Accepted((put(2.0),))) is None


COLUMNS = {
    "input_ids": Tensor.of("int64", [5, 6], (2,)),
    "input_lengths": Tensor.of("int64", [2], ()),
    "generation_logprobs": Tensor.of("float32", [0.0, -1.0], (2,)),
    "token_mask": Tensor.of("float32", [0.0, 1.0], (2,)),
    "sample_mask": Tensor.of("float32", [1.0], ()),
    "prompt_ids_for_adv": Tensor.of("int64", [5], (1,)),
    "total_reward": Tensor.of("float32", [1.0], ()),
    "mask_sample": Tensor.of("bool", [False], ()),
    "truncated": Tensor.of("bool", [False], ()),
}


def published(tags: dict[str, Any] | None = None, **columns: Tensor) -> Answer:
    put = Put("train", ("g_g0",), (PublishedRow(COLUMNS | columns, tags or {}),))
    rollout = FinalizedRollout("g_g0", True, None, 1.0, token_ids=(5, 6))
    return Accepted((GroupOutcome((put,), group(2, 6), rollouts=(rollout,)),))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_of_another_dtype_or_rank_is_noticed(name: str) -> None:
    right = COLUMNS[name]
    other = "int32" if right.dtype != "int32" else "int64"
    assert complaint("GROUP-11", once(), published(), published()) is None
    for wrong in (
        Tensor.of(other, [int(value) for value in right.values()], right.shape),
        Tensor(right.dtype, (*right.shape, 1), right.data),
    ):
        assert complaint("GROUP-11", once(), published(), published(**{name: wrong}))


@pytest.mark.parametrize("name", ["input_ids", "token_mask", "generation_logprobs"])
def test_token_columns_that_differ_in_length_are_noticed(name: str) -> None:
    right = COLUMNS[name]
    wrong = Tensor.of(right.dtype, [*right.values(), 0], (3,))
    assert complaint("GROUP-11", once(), published(), published(**{name: wrong}))
    assert complaint("GROUP-11", once(), published(), published(input_lengths=Tensor.of("int64", [3], ())))


def test_an_answer_that_ends_early_is_judged_as_far_as_it_goes() -> None:
    twice = FinalizeGroups(ReassemblerConfig(), (GroupStep(REQUEST), GroupStep(REQUEST)))
    assert complaint("GROUP-11", twice, published(), published()) is None


@pytest.mark.parametrize("limit, truncated", [(1, True), (2, True), (3, False)])
def test_a_wrong_mark_of_truncation_is_noticed_either_way(limit: int, truncated: bool) -> None:
    request = FinalizeGroups(ReassemblerConfig(max_seq_len=limit), (GroupStep(REQUEST),))
    for marked in (False, True):
        found = complaint("GROUP-14", request, published(), published(truncated=Tensor.of("bool", [marked], ())))
        assert (found is None) == (marked is truncated)


def planned(*keys: str) -> Answer:
    spans = tuple(
        RouteSpan(
            staging_key=key,
            carry_len=1,
            generation_len=1,
            staged_route_len=2,
            extras_digest_version=EXTRAS_DIGEST_VERSION,
            extras_digest="0" * 64,
        )
        for key in keys
    )
    return published(
        {ROUTE_PLAN_TAG: encode_plan(RouteAssemblyPlan("staging", spans, ("r/a", "r/b", "r/c"), 2 * len(keys)))}
    )


@pytest.mark.parametrize("keys", [("r/a",), ("r/b", "r/a"), ("r/a", "r/c"), ("r/a", "r/b", "r/c")])
def test_a_plan_with_other_spans_is_noticed(keys: tuple[str, ...]) -> None:
    assert complaint("ROUTE-16", once(), planned("r/a", "r/b"), planned("r/a", "r/b")) is None
    assert complaint("ROUTE-16", once(), planned("r/a", "r/b"), planned(*keys))


def test_what_a_group_was_made_of_does_not_tell_outcomes_apart() -> None:
    assert GroupOutcome((), rollouts=ROLLOUTS, dims=(1, 2)) == GroupOutcome(())
    assert GroupOutcome((), group(2, 6)) != GroupOutcome(())


def test_a_row_without_tokens_has_no_route() -> None:
    assert is_sentinel(Tensor.of("int16", [], (0, 1, 1)))
    assert is_sentinel(Tensor.of("int16", [-1, -1], (2, 1, 1)))
    assert not is_sentinel(Tensor.of("int16", [-1, 0], (2, 1, 1)))


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "wrong",
    [
        GroupOutcome((Put("train", ("g_g0",), (column(2.0),)),), group(2, 6)),
        GroupOutcome((Put("train", ("g_g0",), (column(1.0),)),), group(2, 7)),
        GroupOutcome((Get("staging", (), ()),), group(2, 6)),
    ],
)
def test_a_group_with_media_agrees_in_its_rows_and_in_its_result(wrong: GroupOutcome) -> None:
    right = GroupOutcome((Put("train", ("g_g0",), (column(1.0),)),), group(2, 6))
    assert complaint("MEDIA-11", once(), Accepted((right,)), Accepted((right,))) is None
    assert complaint("MEDIA-11", once(), Accepted((right,)), Accepted((wrong,)))


def test_media_that_are_read_twice_are_noticed() -> None:
    read = Get("staging", ("r/a",), (MEDIA_TENSOR_COLUMNS[0],))
    once_read, twice_read = (evolve(VALID, value=evolve(VALID.value, effects=(read,) * count)) for count in (1, 2))
    assert complaint("MEDIA-5", FINALIZE, once_read, once_read) is None
    assert complaint("MEDIA-5", FINALIZE, once_read, twice_read)


# ── a contract without an answer ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [Refused("refused: data: 4 bytes"), Crashed("KeyError")])
def test_a_contract_that_has_no_answer_is_noticed(answer: Answer) -> None:
    """Else whatever is compared with it would agree."""
    right = ranged(2, 6, ROLLOUTS)
    assert complaint("GROUP-1", once(), right, right) is None
    assert "contract" in str(complaint("GROUP-1", once(), answer, right))
    assert complaint("ROLLOUT-1", FINALIZE, VALID, VALID) is None
    assert "contract" in str(complaint("ROLLOUT-1", FINALIZE, answer, VALID))
