"""Every break breaks the rule it names, and no other."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from rollproof.properties.gate.codes import reachable, reason_of
from rollproof.properties.strategies.breaks.kinds import (
    BREAKS,
    IN_ROLLOUTS,
    break_streams,
    harmless,
    ordered_breaks,
    reason,
    try_edits,
)
from rollproof.properties.strategies.rollouts.draft import Draft, Inapplicable
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area
from rollproof.spec.rejections import Stage
from rollproof.spec.shadowed import HIDDEN_IN_ROLLOUT_BY, SHADOWED_BY

EXAMPLES = 30
FAST = settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("area, code", BREAKS, ids=lambda item: getattr(item, "name", item).lower())
def test_every_request_is_answered_with_the_code(area, code):
    seen = 0

    @FAST
    @given(BREAKS[area, code]())
    def check(request):
        nonlocal seen
        seen += 1
        given_reason = reason_of(answer(realize_request(request)))
        assert given_reason is not None, "accepted"
        wanted = reason(area, code)
        assert given_reason == wanted or given_reason.startswith(f"{wanted}:")

    check()
    assert seen >= EXAMPLES


@pytest.mark.parametrize("area", [Area.RECEIPT, Area.LINEAGE, Area.ROLLOUT])
def test_every_reachable_code_has_a_break(area):
    assert {reason(area, code) for where, code in BREAKS if where is area} == set(reachable(area))


def test_shadowed_codes_have_none():
    shadowed = set(SHADOWED_BY)
    assert not shadowed & {code for _, code in BREAKS}


def test_hidden_codes_are_broken_directly_only():
    hidden = {code for code in HIDDEN_IN_ROLLOUT_BY if code.stage is Stage.REBUILD and code not in SHADOWED_BY}
    assert not {(Area.ROLLOUT, code) for code in hidden} & set(BREAKS)


@pytest.mark.parametrize("area", [Area.LINEAGE, Area.ROLLOUT])
def test_harmless_edits_leave_a_rollout_valid(area):
    @FAST
    @given(harmless(area))
    def check(request):
        assert reason_of(answer(realize_request(request))) is None

    check()


@pytest.mark.parametrize("area, least", [(Area.LINEAGE, 20), (Area.ROLLOUT, 15)])
def test_two_breaks_at_once_reach_many_codes(area, least):
    codes = set()

    @settings(FAST, max_examples=400)
    @given(ordered_breaks(area))
    def check(request):
        given_reason = reason_of(answer(realize_request(request))) or ""
        codes.add(":".join(given_reason.split(":")[:2]) if area is Area.ROLLOUT else given_reason.partition(":")[0])

    check()
    assert len(codes) >= least


def test_streams_are_named_after_stage_and_code():
    names = [stream.name for stream in break_streams(Area.ROLLOUT)]
    assert "break:rollout:missing_staging_row" in names
    assert "break:rebuild:corrupt_digest" in names
    assert "break:row:surplus_token" in names
    assert all(stream.codes or ":all:" in stream.name for stream in break_streams(Area.LINEAGE))


def test_any_edit_can_follow_any_other():
    edits = [edit for edits in IN_ROLLOUTS for edit in edits]
    for first, second in itertools.product(edits, repeat=2):
        for data in (b"\x00" * 32, b"\x07\x02" * 16):
            with contextlib.suppress(Inapplicable):
                first(Draft.of(WORKED_EXAMPLE), Bytes(data))
                try_edits(Draft.of(WORKED_EXAMPLE), (first, second), Bytes(data))
