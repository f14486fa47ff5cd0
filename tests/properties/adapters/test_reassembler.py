"""A reassembler class without our arguments: ``expect_boundary`` says which rows it is expected to publish (D28)."""

from __future__ import annotations

import pytest

from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.errors import LeftOut
from rollproof.properties.gate.load import AdapterError, load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.spec.constants import AS_STAGED, BOUNDARY_REQUIRED, UNREPAIRED_SENTINEL
from rollproof.spec.judge.requests import Area
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import ReassemblerConfig


def always(choice):
    """Return a reassembler class that repairs boundaries like NeMo RL's, unasked, and knows one choice."""

    class Theirs(RolloutReassembler):
        def __init__(self, dp_client, **arguments):
            super().__init__(dp_client, **arguments, route_boundary=choice)

    return Theirs


class AsStaged(Ours):
    name = "as staged"
    reassembler = always(AS_STAGED)
    expect_boundary = AS_STAGED


class Sentinel(AsStaged):
    name = "sentinel, expected as staged"
    reassembler = always(UNREPAIRED_SENTINEL)


def checked(implementation, area=Area.BOUNDARY, most=2):
    return Check(implementation, (area,), PROFILES["quick"], 0, most, shrink=False).run()


def complaints(report):
    return [(found.invariant.id, found.complaint) for found in report.falsified]


def test_a_class_that_publishes_as_staged_holds_where_that_is_expected():
    report = checked(AsStaged())
    assert (complaints(report), report.left_out) == ([], 0)


@pytest.mark.deep
@pytest.mark.parametrize("area", [Area.BOUNDARY, Area.ROUTES])
def test_such_a_class_reaches_all_that_it_can(area):
    report = checked(AsStaged(), area, None)
    assert (complaints(report), report.left_out, report.not_exercised) == ([], 0, [])


def test_a_class_that_publishes_something_else_is_found():
    assert {"BOUNDARY-9", "BOUNDARY-12"} <= dict(complaints(checked(Sentinel()))).keys()


def test_without_the_option_a_choice_is_asked_for():
    class Unexpected(AsStaged):
        expect_boundary = None

    errors = dict(complaints(checked(Unexpected())))
    assert "TypeError" in errors["BOUNDARY-9"]


def test_a_choice_that_the_class_does_not_have_is_left_out():
    arguments = EXAMPLE.rollout_id, EXAMPLE.receipt, 1.0, Staging(EXAMPLE.rows)
    config = ReassemblerConfig(router_replay_enabled=True, route_boundary=AS_STAGED)
    assert AsStaged().finalize_rollout(config, *arguments).rollout.routed_experts.values()[-2:] == (0, 1)
    with pytest.raises(LeftOut, match="route_boundary: got 'required', but as staged knows 'as_staged' only"):
        AsStaged().build(None, ReassemblerConfig(router_replay_enabled=True, route_boundary=BOUNDARY_REQUIRED))


def test_an_expectation_that_is_no_choice_is_refused(monkeypatch):
    monkeypatch.setattr(AsStaged, "expect_boundary", "repaired")
    with pytest.raises(AdapterError, match="expect_boundary: got 'repaired', expected 'as_staged' or 'sentinel'"):
        load_implementation(f"{__name__}:AsStaged")
