"""Route assembly plans in the implementation, which travel as those of the spec."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from cases import HYPOTHESIS, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl import plan
from rollproof.properties.adapters.reassembler import spec_plan
from rollproof.properties.strategies.route_wire import PLAN_BREAKS, broken_plans, plans
from rollproof.spec.plan import classify_span, encode_plan, encoded_plan_size, fragment_use
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code


@HYPOTHESIS
@given(plans())
def test_plans_travel_alike(value):
    encoded = plan.encode_plan(value)
    assert encoded == encode_plan(value)
    assert plan.encoded_plan_size(encoded) == encoded_plan_size(value)
    assert spec_plan(plan.decode_plan(json.loads(json.dumps(encoded)))) == value
    for span in value.spans:
        used = plan.use_of(span)
        lengths = span.carry_len, span.generation_len, span.staged_route_len
        assert (used.unrouted, used.first, used.rows) == fragment_use(*lengths)
        assert plan.classify(*lengths) == classify_span(*lengths)


@pytest.mark.parametrize("kind", PLAN_BREAKS)
@settings(HYPOTHESIS, max_examples=20)
@given(data=st.data())
def test_broken_plans_are_refused(kind, data):
    assert outcome(plan.decode_plan, data.draw(broken_plans(kind))) is Code.INVALID_ROUTE_PLAN


@pytest.mark.parametrize("lengths", [(-1, 1, 1), (0, True, 1), (0, 1, 1.0), (2**63, 0, 0)])
def test_classification_takes_lengths_only(lengths):
    with pytest.raises(ValueError, match=r"_len: got .*, expected an integer in"):
        plan.classify(*lengths)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 3},
        {"spans": []},
        {"staging_partition": ""},
        {"expected_token_length": True},
        {"cleanup_staging_keys": ("r/c", "r/c")},
        {"cleanup_staging_keys": ("",)},
        {"spans": (RouteSpan("r/c", 0, 1, 0, 1, "0"),)},
        {"spans": (RouteSpan("", 0, 1, 0, 1, "0" * 64),)},
    ],
)
def test_plans_are_validated_before_they_are_encoded(change):
    valid = RouteAssemblyPlan("s", (), ("r/c",), 1)
    assert outcome(plan.encode_plan, evolve(valid, **change)) is Code.INVALID_ROUTE_PLAN
    assert outcome(encode_plan, evolve(valid, **change)) is Code.INVALID_ROUTE_PLAN
