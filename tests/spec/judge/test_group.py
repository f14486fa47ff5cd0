"""Each invariant of groups alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import pytest
from answers import COLUMNS, FINALIZE, REQUEST, ROLLOUTS, VALID, column, complaint, once, published, ranged
from attrs import evolve

from rollproof.spec.judge.requests import Accepted, Answer, Crashed, FinalizeGroups, GroupStep, Refused
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Put
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.tensor import Tensor


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


def test_group_9_keeps_the_fallback_for_groups_without_a_valid_row() -> None:
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


def test_group_11_judges_an_answer_that_ends_early_as_far_as_it_goes() -> None:
    twice = FinalizeGroups(ReassemblerConfig(), (GroupStep(REQUEST), GroupStep(REQUEST)))
    assert complaint("GROUP-11", twice, published(), published()) is None


@pytest.mark.parametrize("truncated", [False, True])
def test_a_wrong_mark_of_truncation_is_noticed_either_way(truncated: bool) -> None:
    right, wrong = (published(truncated=Tensor.of("bool", [mark], ())) for mark in (truncated, not truncated))
    assert complaint("GROUP-14", once(), right, right) is None
    assert complaint("GROUP-14", once(), right, wrong)


@pytest.mark.parametrize("answer", [Refused("refused: data: 4 bytes"), Crashed("KeyError")])
def test_a_contract_that_has_no_answer_is_noticed(answer: Answer) -> None:
    """Else whatever is compared with it would agree."""
    right = ranged(2, 6, ROLLOUTS)
    assert complaint("GROUP-1", once(), right, right) is None
    assert "contract" in str(complaint("GROUP-1", once(), answer, right))
    assert complaint("ROLLOUT-1", FINALIZE, VALID, VALID) is None
    assert "contract" in str(complaint("ROLLOUT-1", FINALIZE, answer, VALID))
