"""Section 10: the contract's golden values, what is off by default, and which positions a plan repairs."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from cases import refusal

from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.properties.strategies.rollouts.routes import with_first_name_twice
from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.spec.constants import (
    AS_STAGED,
    BOUNDARY_REQUIRED,
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_CHOICES,
    ROUTE_BOUNDARY_INDEX,
    ROUTED_EXPERTS,
    UNREPAIRED_SENTINEL,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import FinalizeRollout
from rollproof.spec.judge.staging import Staging
from rollproof.spec.plan import decode_plan, encode_plan
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.route_boundary import align_engine_rows, staged_boundary, unrepaired_positions
from rollproof.spec.tensor import Tensor

REPLAY = ReassemblerConfig(router_replay_enabled=True)


def finalized(config, whole=EXAMPLE):
    request = FinalizeRollout(config, whole.rollout_id, whole.receipt, 1.0, Staging(whole.rows))
    return answer(request).value.rollout


def test_extras_with_a_sidecar_have_the_contracts_digest():
    digest = "0ec749bfdb221e8a14c61876f329655a9463dd7fdc7c5068309e606601f45514"
    assert extras_digest(EXAMPLE.script[1].extras) == digest


@pytest.mark.parametrize(
    ("choice", "last"), [(AS_STAGED, (0, 1)), (UNREPAIRED_SENTINEL, (-1, -1)), (BOUNDARY_REQUIRED, (0, 1))]
)
def test_example_is_repaired(choice, last):
    rollout = finalized(evolve(REPLAY, route_boundary=choice))
    assert rollout.rejection_reason is None
    assert rollout.routed_experts == Tensor.of("int16", [10, 11, 20, 21, 30, 31, 40, 41, *last], (5, 1, 2))
    assert rollout.route_plan.schema_version == 3
    assert [span.boundary_token_index for span in rollout.route_plan.spans] == [None, 2]
    assert unrepaired_positions(rollout.route_plan) == (4,)


def test_example_without_the_capability_is_refused_as_ever():
    assert finalized(REPLAY).rejection_reason.startswith("unsupported_route_boundary:c2")
    assert finalized(evolve(REPLAY, defer_routed_experts_to_policy=True)).rejection_reason.startswith(
        "unsupported_route_boundary:c2"
    )


def test_a_choice_that_is_none_is_refused():
    for choice in ROUTE_BOUNDARY_CHOICES:
        assert evolve(REPLAY, route_boundary=choice).route_boundary == choice
    with pytest.raises(ValueError, match="route_boundary: got 'repair', expected None or one of as_staged"):
        evolve(REPLAY, route_boundary="repair")


def test_a_plan_without_sidecars_is_written_as_ever():
    span = RouteSpan("r/c", 1, 1, 2, 1, NO_DIGEST)
    plan = RouteAssemblyPlan("staging", (span,), ("r/c",), 2)
    encoded = encode_plan(plan)
    assert encoded["schema_version"] == 2
    assert list(encoded["spans"][0]) == [
        *("staging_key", "carry_len", "generation_len", "staged_route_len", "extras_digest_version", "extras_digest")
    ]
    newer = {**encoded, "schema_version": 3}
    newer["spans"] = [{**encoded["spans"][0], "boundary_token_index": None, "repair_previous_token": False}]
    assert refusal(decode_plan, newer).code is Code.INVALID_ROUTE_PLAN


@pytest.mark.parametrize("name", [ROUTE_BOUNDARY, ROUTE_BOUNDARY_INDEX])
def test_one_field_alone_is_not_moved(name):
    extras = {field: value for field, value in EXAMPLE.script[1].extras.items() if field != name}
    assert staged_boundary(extras, 3) is None


@pytest.mark.parametrize(
    ("changes", "prev_len"),
    [
        ({}, 0),
        ({}, 4),
        ({ROUTE_BOUNDARY_INDEX: 2.0}, 3),
        ({ROUTE_BOUNDARY_INDEX: None}, 3),
        ({ROUTE_BOUNDARY: "nrlre1:int16:2x1x1:HgAfAA=="}, 3),
        ({ROUTE_BOUNDARY: [[[30, 31]]]}, 3),
        ({ROUTE_BOUNDARY: "HgAfAA=="}, 3),
    ],
)
def test_a_sidecar_that_breaks_its_rules_is_not_staged(changes, prev_len):
    with pytest.raises(Rejected):
        staged_boundary({**EXAMPLE.script[1].extras, **changes}, prev_len)


def test_a_sidecar_without_routes_of_its_own_is_not_staged():
    extras = {name: value for name, value in EXAMPLE.script[1].extras.items() if name != ROUTED_EXPERTS}
    with pytest.raises(Rejected, match=ROUTED_EXPERTS):
        staged_boundary(extras, 3)


def test_staged_sidecar_has_a_column_and_leaves_the_metadata():
    row = EXAMPLE.rows["g_g0/c2"]
    assert row[ROUTE_BOUNDARY] == Tensor.of("int16", [30, 31], (1, 1, 1, 2))
    assert json.loads(row["extras_metadata_json"].data) == {ROUTE_BOUNDARY_INDEX: 2}
    assert ROUTE_BOUNDARY not in EXAMPLE.rows["g_g0/c1"]


def test_unreadable_extras_announce_nothing_and_fail_as_before():
    twice = with_first_name_twice(EXAMPLE.rows["g_g0/c2"]["extras_metadata_json"].data)
    broken = EXAMPLE.changed("c2", {"extras_metadata_json": Tensor("uint8", (1, len(twice)), twice)})
    rollout = finalized(evolve(REPLAY, route_boundary=AS_STAGED), broken)
    assert rollout.rejection_reason.startswith("route_assembly:fragment_integrity")


def test_rows_of_an_engine_are_aligned_by_their_end():
    rows = Tensor.of("int32", [5, 6, 7], (3, 1, 1))
    assert align_engine_rows(rows, 0, 4).values() == (5, 6, 7, -1)
    assert align_engine_rows(rows, 0, 3).values() == (5, 6, -1)
    assert align_engine_rows(rows, 2, 6).values() == (-1, -1, 5, 6, 7, -1)
    assert refusal(align_engine_rows, rows, 0, 6).code is Code.MISALIGNED_ENGINE_ROUTES
    assert refusal(align_engine_rows, rows, 0, 4, 7).code is Code.FRAGMENT_VALUE_RANGE
