"""Answers made by hand, and what an invariant says about them."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Accepted, Answer, FinalizeGroups, FinalizeRollout, GroupStep, RolloutAnswer
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import PublishedRow, Put
from rollproof.spec.records import FinalizedGroup, FinalizedRollout, GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor


def complaint(name: str, request: Any, expected: Answer, actual: Answer) -> str | None:
    return BY_ID[name].check(request, expected, actual)


def rejected(reason: str) -> Answer:
    return Accepted(RolloutAnswer((), FinalizedRollout("r", False, reason, 0.0)))


VALID = Accepted(RolloutAnswer((), FinalizedRollout("r", True, None, 0.0, token_ids=(5,))))
FINALIZE = FinalizeRollout(ReassemblerConfig(), "r", None, 0.0, Staging())


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
