"""Groups of every mode: what section 8 says of arguments, configurations and failures is drawn in each."""

from __future__ import annotations

import pytest

from rollproof.properties.gate.run import drawn
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.streams.modes import MODES, streams
from rollproof.spec.constants import GROUP_KEY
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeGroups, FinalizeRollout
from rollproof.spec.outcomes import Failure


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_a_mode_meets_every_argument_and_failure(mode):
    requests = [
        request
        for stream in streams(mode.area)
        if stream.name.startswith(f"{mode.name}: ")
        for request in drawn(stream, 30, 0)
    ]
    groups = [request for request in requests if isinstance(request, FinalizeGroups)]
    asked = [step.request for request in groups for step in request.steps]
    ended = [outcome for request in groups for outcome in answer(realize_request(request)).value]
    rows = [row for outcome in ended for row in outcome.rows or ()]
    whole = [outcome.group for outcome in ended if outcome.group is not None]
    failures = {Failure.READ, Failure.PUT} | (
        {Failure.CLEAR} if not mode.config.defer_routed_experts_to_policy else set()
    )
    assert failures <= {outcome.failure for outcome in ended}
    assert {False, True} <= {row.columns["truncated"].values()[0] for row in rows}
    assert {False, True} <= {row.columns["mask_sample"].values()[0] for row in rows}
    assert {False, True} == {GROUP_KEY in row.columns for row in rows}
    assert len({row.columns["sample_mask"].values()[0] for row in rows}) > 2
    assert any(group.valid_row_count == 0 < group.group_min_wv for group in whole)
    assert any(0 < group.valid_row_count < group.total_row_count for group in whole)
    assert any(group.group_min_wv < group.group_max_wv for group in whole)
    assert any(group.metrics.get("advisory/version_above_current") for group in whole)
    assert len({request.prompt_idx for request in asked}) > 1
    rollouts = [answer(realize_request(one)).value.rollout for one in requests if isinstance(one, FinalizeRollout)]
    assert {False, True} == {rollout.valid for rollout in rollouts}
