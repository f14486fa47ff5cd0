"""Each invariant of rollouts alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import pytest
from answers import FINALIZE, VALID, complaint, rejected

from rollproof.spec.judge.requests import Answer, Crashed


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
def test_rollout_5_notices_another_reason(expected: str, actual: str) -> None:
    assert complaint("ROLLOUT-5", FINALIZE, rejected(expected), rejected(actual))
    assert complaint("ROLLOUT-5", FINALIZE, rejected(expected), rejected(f"{expected}: more words")) is None


@pytest.mark.parametrize("pair", [(VALID, rejected("missing_receipt")), (rejected("missing_receipt"), VALID)])
def test_rollout_5_compares_rejections_only(pair: tuple[Answer, Answer]) -> None:
    assert complaint("ROLLOUT-5", FINALIZE, *pair) is None
    assert complaint("ROLLOUT-5", FINALIZE, pair[0], Crashed("KeyError")) is None
