"""Groups show the shapes they promise."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import InvalidArgument

from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.streams.group import Course, Mix, groups
from rollproof.properties.strategies.streams.group_arguments import contradictory_groups
from rollproof.spec.judge.oracle import answer
from rollproof.spec.outcomes import Failure
from rollproof.spec.plane import Clear

FIND = settings(
    max_examples=3000,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
FAST = settings(max_examples=60, database=None, deadline=None, suppress_health_check=list(HealthCheck))


def outcomes(request):
    return answer(realize_request(request)).value


def first(request):
    return request.steps[0].request


def reasons(request):
    return [rollout.rejection_reason for rollout in outcomes(request)[0].rollouts]


def valid_rows(request):
    return [rollout for outcome in outcomes(request) for rollout in outcome.rollouts if rollout.valid]


def pads(request):
    return any(request.config.pad_token_id in rollout.token_ids for rollout in valid_rows(request))


def truncated(request):
    return any(len(rollout.token_ids) >= request.config.max_seq_len for rollout in valid_rows(request))


def manifest_5(request):
    return any(type(receipt) is dict and receipt.get("manifest") == 5 for receipt in first(request).receipts)


def later_read(request):
    return outcomes(request)[0].failure is Failure.READ and request.steps[0].faults.failing_get > 0


def foreign_keys(request):
    outcome = outcomes(request)[0]
    listed = {key for rollout in outcome.rollouts for key in rollout.staging_keys}
    cleared = {key for effect in outcome.effects if isinstance(effect, Clear) for key in effect.keys}
    return bool(cleared) and bool(listed & set(request.staging.rows) - cleared)


MIXED = groups(mix=Mix.MIXED)
SEVERAL = groups(course=Course.SEVERAL, max_rollouts=4)
FAULTS = groups(course=Course.FAULTS, max_rollouts=4)

SHAPES = {
    "16 rollouts": (MIXED, lambda r: len(first(r).rollout_ids) == 16),
    "one rollout": (MIXED, lambda r: len(first(r).rollout_ids) == 1),
    "accepted and rejected": (MIXED, lambda r: None in reasons(r) and any(reasons(r))),
    "a missing receipt": (MIXED, lambda r: None in first(r).receipts and len(first(r).receipts) > 1),
    "an unusable reward": (MIXED, lambda r: any((reason or "").startswith("invalid_reward") for reason in reasons(r))),
    "no valid row": (MIXED, lambda r: None not in reasons(r)),
    "padding that was generated": (groups(mix=Mix.VALID), pads),
    "a truncated row": (groups(mix=Mix.VALID), truncated),
    "outside the vocabulary": (MIXED, lambda r: r.config.vocab_size is not None and any(reasons(r))),
    "weight 0.0": (MIXED, lambda r: first(r).loss_multiplier == 0.0),
    "foreign keys": (MIXED, foreign_keys),
    "a slash in the group id": (MIXED, lambda r: "/" in first(r).group_id),
    "own rollout ids": (MIXED, lambda r: first(r).canonical_sample_ids not in (None, first(r).rollout_ids)),
    "masked samples": (MIXED, lambda r: set(first(r).mask_sample) == {True, False}),
    "manifest 5": (groups(mix=Mix.HOSTILE), manifest_5),
    "a put that fails, then succeeds": (FAULTS, lambda r: [o.failure for o in outcomes(r)] == [Failure.PUT, None]),
    "a read that fails": (FAULTS, lambda r: outcomes(r)[0].failure is Failure.READ),
    "a later read that fails": (FAULTS, later_read),
    "a clear that fails": (FAULTS, lambda r: outcomes(r)[0].failure is Failure.CLEAR),
    "several groups": (SEVERAL, lambda r: len({step.request.group_id for step in r.steps}) > 1),
    "a retry between groups": (SEVERAL, lambda r: len(r.steps) > 3),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_have_this_shape(shape):
    strategy, holds = SHAPES[shape]
    assert find(strategy, holds, settings=FIND)


@FAST
@given(groups(mix=Mix.VALID))
def test_valid_groups_are_rejected_for_their_rewards_alone(request):
    assert all(reason is None or reason.startswith("invalid_reward") for reason in reasons(request))


@pytest.mark.parametrize("mix", Mix)
@pytest.mark.parametrize("course", Course)
def test_every_group_has_an_outcome(mix, course):
    @settings(FAST, max_examples=20)
    @given(groups(mix=mix, course=course, max_rollouts=3))
    def check(request):
        assert len(outcomes(request)) == len(request.steps)
        assert all(outcome.failure is not Failure.CALLER for outcome in outcomes(request))

    check()


@FAST
@given(contradictory_groups())
def test_contradictory_arguments_are_the_callers_error(request):
    assert outcomes(request)[0].failure is Failure.CALLER


def test_wrong_arguments_are_named():
    with pytest.raises(InvalidArgument, match="max_rollouts"):
        groups(max_rollouts=0)
