"""Section 10: sidecars through the sink, both modes of replay, and the worker's side."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from attrs import asdict
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.route_boundary import align_engine_rows
from rollproof.impl.staged_row import staged_row
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.tensors import from_torch, stage_rows
from rollproof.properties.gate.run import complaint_of
from rollproof.properties.strategies.rollouts.route_boundary import EXAMPLE
from rollproof.properties.strategies.rollouts.staged_calls import staged_call
from rollproof.properties.strategies.streams.route_boundary import replays
from rollproof.spec.constants import ROUTE_BOUNDARY
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.oracle import answer
from rollproof.spec.rejections import Code, Rejected

CALLS = [
    staged_call((0, 1, 2), 2, rollout_id="g_g0", call_id="c1", extras=dict(EXAMPLE.script[0].extras)),
]
CALLS.append(
    staged_call(
        (1000, 1001),
        1,
        rollout_id="g_g0",
        call_id="c2",
        parent=CALLS[0],
        before=(0, 1, 2),
        weight_version=1,
        extras=dict(EXAMPLE.script[1].extras),
    )
)


def staged(plane, rows=EXAMPLE.rows):
    stage_rows(plane, "staging", rows)
    return plane


def reassembler(plane, **options):
    names = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 64}
    return RolloutReassembler(plane, **names, router_replay_enabled=True, **options)


def test_staged_rows_have_the_specs_columns():
    for call, scripted in zip(CALLS, EXAMPLE.script, strict=True):
        row = staged_row(SimpleNamespace(**asdict(call), extras=scripted.extras))
        columns = {name: from_torch(column) for name, column in row.items()}
        spec = EXAMPLE.rows[f"g_g0/{call.model_call_id}"]
        for name in (ROUTE_BOUNDARY, "routed_experts", "extras_metadata_json", "extras_digest_bytes"):
            assert columns.get(name) == spec.get(name)


def test_a_sidecar_of_another_token_is_not_staged():
    extras = {**EXAMPLE.script[1].extras, "routed_experts_boundary_index": 3}
    with pytest.raises(ValueError, match="routed_experts_boundary_index: got 3, expected 2, the last token before"):
        staged_row(SimpleNamespace(**asdict(CALLS[1]), extras=extras))


@pytest.mark.parametrize(("choice", "last"), [("as_staged", [0, 1]), ("sentinel", [-1, -1]), ("required", [0, 1])])
def test_both_modes_repair_the_example(choice, last):
    plane = staged(MemoryDataPlane())
    rollout = reassembler(plane, route_boundary=choice).finalize_rollout("g_g0", EXAMPLE.receipt, reward=1.0)
    wanted = [[[10, 11]], [[20, 21]], [[30, 31]], [[40, 41]], [last]]
    assert rollout.routed_experts.tolist() == wanted
    deferred = reassembler(plane, route_boundary=choice, defer_routed_experts_to_policy=True)
    group = deferred.finalize_group(
        "g", ["g_g0"], [EXAMPLE.receipt], [1.0], mask_sample=[False], fallback_weight_version=0, prompt_idx=0
    )
    assert group.metrics["advisory/unrepaired_boundary_tokens"] == 1.0
    plan = group.meta.tags[0]["route_assembly_plan"]
    executor = RoutePlanExecutor(plane, dims=(1, 2), route_boundary=choice)
    batch = executor.replay([plan], [5])
    assert batch.failures == [None]
    assert batch.routes.values().tolist() == wanted


def test_a_lost_sidecar_costs_its_own_row_only():
    renamed = {key.replace("g_g0", "g_g1"): row for key, row in EXAMPLE.changed("c2", {}, ROUTE_BOUNDARY).rows.items()}
    plane = staged(MemoryDataPlane(), {**EXAMPLE.rows, **renamed})
    rollout = reassembler(plane, route_boundary="as_staged").finalize_rollout("g_g0", EXAMPLE.receipt, reward=1.0)
    from rollproof.impl.plan import encode_plan

    good = encode_plan(rollout.route_plan)
    spans = [{**span, "staging_key": span["staging_key"].replace("g_g0", "g_g1")} for span in good["spans"]]
    keys = [span["staging_key"] for span in spans]
    bad = {**good, "spans": spans, "cleanup_staging_keys": keys}
    executor = RoutePlanExecutor(plane, dims=(1, 2))
    batch = executor.replay([good, bad, good], [5, 5, 5], padded_length=6)
    assert batch.failures == [None, "missing_fragment", None]
    assert executor.failures == {"missing_fragment": 1}
    assert batch.routes[1].unique().tolist() == [-1]
    assert torch.equal(batch.routes[0], batch.routes[2])


def test_without_the_capability_a_sidecar_is_refused():
    rollout = reassembler(staged(MemoryDataPlane())).finalize_rollout("g_g0", EXAMPLE.receipt, reward=1.0)
    assert rollout.rejection_reason.startswith("unsupported_route_boundary:c2")


def direct_is_deferred(request):
    answered, expected = ask(Ours(), request), answer(request)
    for name in ("BOUNDARY-10", "ROUTE-12"):
        assert complaint_of(BY_ID[name], request, expected, answered) is None


@settings(max_examples=20, deadline=None, database=None)
@given(replays())
def test_deferred_groups_are_replayed_as_direct_ones(request):
    direct_is_deferred(request)


@pytest.mark.deep
@settings(max_examples=2000, deadline=None, database=None)
@given(replays())
def test_many_deferred_groups_are_replayed_as_direct_ones(request):
    direct_is_deferred(request)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_rows_of_an_engine_keep_their_tokens(dtype):
    rows = torch.tensor([[[5]], [[6]], [[7]]], dtype=dtype)
    assert align_engine_rows(rows, 2, 6).flatten().tolist() == [-1, -1, 5, 6, 7, -1]
    assert align_engine_rows(rows, 0, 3).flatten().tolist() == [5, 6, -1]
    with pytest.raises(Rejected) as rejected:
        align_engine_rows(rows, 0, 6)
    assert rejected.value.code is Code.MISALIGNED_ENGINE_ROUTES


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 1))
def test_every_token_of_a_call_has_its_own_row_or_none(tokens, start, surplus):
    count = tokens - 1 - start + surplus
    if count < 0:
        return
    rows = torch.arange(start, start + count).reshape(count, 1, 1)
    aligned = align_engine_rows(rows, start, tokens).flatten().tolist()
    assert aligned == [position if start <= position < tokens - 1 else -1 for position in range(tokens)]
