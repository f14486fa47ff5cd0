"""What TRL answers on purpose where the contract asks for a refusal."""

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


def of_unusable_rewards(request: Request, expected: Answer) -> Iterator[AnswerClass]:
    """Yield finite values for a batch with a reward that is not."""
    if isinstance(request, AdvantageRequest):
        rows = (*request.first, *request.second)
        if not all(math.isfinite(row.reward) for row in rows):
            yield all_finite


DEVIATIONS: Final = (
    Deviation(
        "unscorable",
        Area.ADVANTAGE,
        "14",
        "A reward that is NaN means that no reward function scored the completion: it is left out of the baseline, and "
        "its value is 0. So is every value that is not finite.",
        of_unusable_rewards,
        (
            AdvantageRequest(
                (ScoredRow("g", "a", (3,), math.nan), ScoredRow("g", "b", (3,), 1.0)),
                (ScoredRow("g", "a", (3,), 0.0), ScoredRow("g", "b", (3,), 1.0)),
            ),
        ),
    ),
)
