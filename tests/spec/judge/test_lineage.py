"""Each invariant of lineages alone on a wrong answer made by hand: no later one may be needed to notice."""

from __future__ import annotations

import math
from typing import Any

import pytest
from answers import complaint
from attrs import evolve

from rollproof.spec.judge.requests import Accepted, LinearizeGrowth, Refused
from rollproof.spec.judge.rules.lineage import MAX_GROWTH
from rollproof.spec.records import LinearizedRow, LinkSpan, WeightVersionSpan

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


def test_lineage_2_passes_spans_that_tile_a_row() -> None:
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
def test_lineage_2_notices_spans_that_do_not_tile_a_row(row: LinearizedRow) -> None:
    assert complaint("LINEAGE-2", None, Accepted(ROW), Accepted(row))


def test_lineage_5_compares_growth_exactly() -> None:
    """MAX_GROWTH * 7 / 3 is not a whole number."""
    request = LinearizeGrowth(3, 7)
    most = math.floor(1000 * MAX_GROWTH * 7 / 3)
    assert complaint("LINEAGE-5", request, Accepted(()), Accepted((1000, most))) is None
    assert complaint("LINEAGE-5", request, Accepted(()), Accepted((1000, most + 1)))
    assert complaint("LINEAGE-5", LinearizeGrowth(2, 4), Accepted(()), Accepted((10, 30))) is None


@pytest.mark.parametrize("actual", ["duplicate_snapshot", "wrong_rollout"])
def test_lineage_3_notices_another_violation(actual: str) -> None:
    expected = Refused("orphan_call")
    assert complaint("LINEAGE-3", None, expected, Refused("orphan_call: c")) is None
    assert complaint("LINEAGE-3", None, expected, Refused(actual))
