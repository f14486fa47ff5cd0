"""Route assembly plans: how spans are classified, and what is written down and read back."""

from __future__ import annotations

import itertools
import json

import pytest
from attrs import evolve
from cases import HYPOTHESIS, every, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.strategies.route_wire import PLAN_BREAKS, broken_plans, plans
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.spec.plan import (
    SpanMode,
    check_fields,
    classify_span,
    decode_plan,
    encode_plan,
    encoded_plan_size,
    fragment_use,
    placeholder_plan,
)
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code


def test_classification_is_exhaustively_right():
    for carry, generation, staged in itertools.product(range(6), repeat=3):
        mode = classify_span(carry, generation, staged)
        unrouted, first, used = fragment_use(carry, generation, staged)
        assert unrouted + used == carry + generation
        assert 0 <= first <= first + used <= staged
        if staged and staged == carry + generation:
            assert (mode, unrouted) == (SpanMode.FULL, 0)
        elif 0 < generation <= staged:
            assert (mode, unrouted, first + used) == (SpanMode.TAIL, carry, staged)
        else:
            assert (mode, used) == (SpanMode.SENTINEL, 0)


@pytest.mark.parametrize("length", [-1, True, 1.0, None, 2**63])
def test_classification_takes_lengths_only(length):
    for position in range(3):
        arguments = [1, 1, 1]
        arguments[position] = length
        with pytest.raises(ValueError, match="expected an integer"):
            classify_span(*arguments)


@HYPOTHESIS
@given(plans())
def test_plans_survive_json(plan):
    encoded = encode_plan(plan)
    travelled = json.loads(json.dumps(encoded))
    assert decode_plan(travelled) == plan
    assert encode_plan(decode_plan(travelled)) == travelled
    assert encoded_plan_size(plan) == len(json.dumps(encoded).replace(": ", ":").replace(", ", ","))


@pytest.mark.parametrize("kind", PLAN_BREAKS)
@settings(HYPOTHESIS, max_examples=20)
@given(data=st.data())
def test_plans_are_decoded_strictly(kind, data):
    assert refusal(decode_plan, data.draw(broken_plans(kind))).code is Code.INVALID_ROUTE_PLAN


def test_decode_plan_names_other_schema_versions():
    plan = encode_plan(placeholder_plan(ReassemblerConfig(), ("r/c",)))
    assert "schema_version: got 4" in refusal(decode_plan, {**plan, "schema_version": 4, "spans": 0, "more": 1}).detail


def test_encoded_size_escapes_non_ascii():
    plan = RouteAssemblyPlan("é", (), ("\U0001f600",), 1)
    assert encoded_plan_size(plan) - encoded_plan_size(evolve(plan, staging_partition="e")) == len("\\u00e9") - 1


@pytest.mark.parametrize(
    "change",
    [
        {"spans": []},
        {"cleanup_staging_keys": ["r/c"]},
        {"schema_version": 3},
        {"schema_version": True},
        {"expected_token_length": 1.0},
        {"staging_partition": ""},
    ],
)
def test_a_plan_is_checked_before_it_is_encoded(change):
    assert (
        refusal(encode_plan, evolve(RouteAssemblyPlan("s", (), ("r/c",), 1), **change)).code is Code.INVALID_ROUTE_PLAN
    )


@every(first=range(3), second=range(3))
def test_span_keys_are_owned_and_distinct(first: int, second: int) -> bool:
    """A plan's spans have distinct keys, all of them among the keys that it cleans up."""
    keys = ("r/a", "r/b", "other/a")
    spans = tuple(RouteSpan(pick(keys, index), 0, 1, 0, 1, NO_DIGEST) for index in (first, second))
    plan = RouteAssemblyPlan("staging", spans, ("r/a", "r/b"), 2)
    return accepted(check_fields, plan) == (first != second and first < 2 and second < 2)
