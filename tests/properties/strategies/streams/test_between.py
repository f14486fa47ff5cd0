"""Groups in which a rejected rollout is between two valid ones: every code, by construction."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from rollproof.properties.gate.codes import met, reachable
from rollproof.properties.gate.run import exercise
from rollproof.properties.strategies.breaks.kinds import reason
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.rollouts.routed import ROLLOUT_BREAKS
from rollproof.properties.strategies.streams import between
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, ChainMedia, FinalizeGroups
from rollproof.spec.rejections import Code


def rollouts(request):
    (outcome,) = answer(realize_request(request)).value
    return outcome.rollouts


def test_every_code_of_a_rollout_is_met_between_valid_siblings():
    met = set()
    for request in between.edited():
        first, middle, last = rollouts(request)
        assert (first.valid, middle.valid, last.valid) == (True, False, True)
        code, _, rest = middle.rejection_reason.partition(":")
        met.add(f"{code}:{rest.partition(':')[0]}" if code == Code.REBUILD_FAILED.code else code)
    assert met == set(reachable(Area.ROLLOUT))


def test_every_media_sibling_is_valid_and_has_its_own_pixels():
    kinds = set()
    for request in between.pictured():
        kinds.add(type(request))
        if isinstance(request, FinalizeGroups):
            found = rollouts(request)
            assert [rollout.rejection_reason for rollout in found] == [None] * len(found)
            assert len(found) > 1
        else:
            assert isinstance(answer(request), Accepted)
    assert {FinalizeGroups, ChainMedia} < kinds


def drawn(strategy, count=5):
    requests = []
    exercise(strategy, requests.append, count, 0, (Phase.generate,))
    return requests


@pytest.mark.parametrize("code", between.EDITS, ids=lambda code: code.name.lower())
@pytest.mark.parametrize("base", [between.DIRECT, between.DEFERRED], ids=["direct", "deferred"])
def test_every_code_of_a_rollout_is_met_in_routed_groups(base, code):
    wanted = reason(Area.ROLLOUT, code)
    for request in drawn(between.beside_broken(base, code), 3):
        assert rollouts(request)[1].rejection_reason.startswith(wanted)
        assert wanted in {reach.code for reach in met(Area.ROUTES, request, answer(realize_request(request)))}


def test_streams_of_one_code_reach_one_with_every_request():
    """Deferred groups accept what only an assembly can see; the replay finds it."""
    for area in (Area.GROUP, Area.ROUTES, Area.MEDIA):
        for stream in between.streams(area):
            for request in [] if stream.every else drawn(stream.strategy, 2):
                reached = met(area, request, answer(realize_request(request)))
                assert reached or stream.name.startswith("deferred:beside:route_assembly"), stream.name


@pytest.mark.parametrize("reason", ROLLOUT_BREAKS)
def test_bad_routes_are_between_good_ones(reason):
    for request in drawn(between.beside_bad_routes(between.DIRECT, reason)):
        first, middle, last = rollouts(request)
        assert first.valid
        assert last.valid
        assert middle.rejection_reason.startswith(reason.rstrip(":"))
    assert drawn(between.beside_bad_routes(between.DEFERRED, reason))


@pytest.mark.parametrize("code", between.BAD_MEDIA, ids=lambda code: code.code)
def test_bad_media_are_between_good_ones(code):
    for request in drawn(between.beside_bad_media(code)):
        first, middle, last = rollouts(request)
        assert first.valid
        assert last.valid
        assert middle.rejection_reason.startswith(code.code)
