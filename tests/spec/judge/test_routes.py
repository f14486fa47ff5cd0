"""Each invariant of routes alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import pytest
from answers import complaint, once, published

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION, ROUTE_PLAN_TAG
from rollproof.spec.judge.requests import Answer
from rollproof.spec.judge.rules.routes import is_sentinel
from rollproof.spec.plan import encode_plan
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.tensor import Tensor


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


def test_a_row_without_tokens_has_no_route() -> None:
    assert is_sentinel(Tensor.of("int16", [], (0, 1, 1)))
    assert is_sentinel(Tensor.of("int16", [-1, -1], (2, 1, 1)))
    assert not is_sentinel(Tensor.of("int16", [-1, 0], (2, 1, 1)))
