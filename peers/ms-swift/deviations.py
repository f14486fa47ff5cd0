"""What ms-swift answers on purpose where the contract asks for a refusal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from rollproof.properties.adapters.protocol import AnswerClass, Deviation
from rollproof.spec.judge.portable import AdvantageRequest
from rollproof.spec.judge.requests import Accepted, Answer, Area, Request
from rollproof.spec.portable import ScoredRow


def all_finite(answer: Answer) -> bool:
    """Return whether all values of both batches are finite."""
    return isinstance(answer, Accepted) and all(map(math.isfinite, (*answer.value.first, *answer.value.second)))


def of_missing_rewards(request: Request, expected: Answer) -> Iterator[AnswerClass]:
    """Yield finite values for a batch in which some reward is NaN, and none is infinite."""
    if isinstance(request, AdvantageRequest):
        rewards = [row.reward for row in (*request.first, *request.second)]
        if any(map(math.isnan, rewards)) and not any(map(math.isinf, rewards)):
            yield all_finite


DEVIATIONS: Final = (
    Deviation(
        "nan-is-zero",
        Area.ADVANTAGE,
        "14",
        "A reward that is NaN means that a reward function does not apply: rewards are added up without it, so that "
        "the rollout has reward 0, also in the baseline of its group.",
        of_missing_rewards,
        (
            AdvantageRequest(
                (ScoredRow("g", "a", (3,), math.nan), ScoredRow("g", "b", (3,), 1.0)),
                (ScoredRow("g", "a", (3,), 0.0), ScoredRow("g", "b", (3,), 1.0)),
            ),
        ),
    ),
)
