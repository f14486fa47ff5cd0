"""Routes of staged rows, rollouts and groups in the implementation: the same answers as the spec."""

from __future__ import annotations

import pytest
from attrs import evolve
from cases import HYPOTHESIS
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staged_row import route_columns, staged_row
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.tensors import from_torch, stage_rows
from rollproof.properties.strategies.rollouts.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    broken_routed_rollouts,
    routed_rollouts,
    stage,
)
from rollproof.properties.strategies.rollouts.routed_histories import routed_histories
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, FinalizeGroups, FinalizeRollout, GroupStep
from rollproof.spec.judge.staging import Faults, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor

DIRECT = ReassemblerConfig(router_replay_enabled=True)
DEFERRED = ReassemblerConfig(router_replay_enabled=True, defer_routed_experts_to_policy=True)
# ── staging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Record:
    """A staged call with its extras, as a capture core hands it over."""

    def __init__(self, call, extras):
        self.call, self.extras = call, extras

    def __getattr__(self, name):
        return getattr(self.call, name)


@HYPOTHESIS
@given(routed_rollouts())
def test_routes_are_staged_as_the_contract_says(rollout):
    from rollproof.spec.staged import decode_row

    for scripted in rollout.script:
        row = rollout.rows[f"{rollout.rollout_id}/{scripted.call_id}"]
        fields = staged_row(Record(decode_row(row).call, scripted.extras))
        assert {name: from_torch(fields[name]) for name in fields.keys()} == dict(row)  # noqa: SIM118


@pytest.mark.parametrize("payload", [None, "nonsense", [[[1]], [[2]]], {}, "nrlre1:int16:2x1x1:AAAAAA=="])
def test_routes_that_are_none_are_not_staged(payload):
    with pytest.raises(ValueError, match="route"):
        route_columns({ROUTED_EXPERTS: payload}, 1)


# ── rollouts and groups ─────────────────────────────────────────────────────────────────────────────────────────────


def agree(request):
    """Check that every invariant that covers the request holds for our answer."""
    expected, found = answer(request), ask(Ours(), request)
    assert isinstance(expected, Accepted)
    complaints = {
        item.id: complaint
        for item in CATALOGUE
        if item.covers(request) and (complaint := item.check(request, expected, found)) is not None
    }
    assert complaints == {}
    return expected.value, found.value


def finalize(config, rollout):
    return FinalizeRollout(config, rollout.rollout_id, rollout.receipt, 1.0, Staging(rollout.rows))


@HYPOTHESIS
@given(routed_rollouts(), st.sampled_from([DIRECT, DEFERRED, ReassemblerConfig()]), st.booleans())
def test_rollouts_agree(rollout, config, known):
    limits = {"num_experts": rollout.num_experts, "routed_dims": rollout.dims if known else None}
    expected, found = agree(finalize(evolve(config, **limits), rollout))
    assert expected.rollout.valid
    routed_reads = [effect for effect in found.effects if ROUTED_EXPERTS in effect.columns]
    assert len(found.effects) <= 2
    assert bool(routed_reads) == config.direct_routes


@HYPOTHESIS
@given(routed_histories(), st.sampled_from([DIRECT, DEFERRED]), st.booleans())
def test_histories_of_any_shape_agree(routed, config, known):
    """Manifests in any order, several roots, dead branches, unusual ids."""
    history, dims = routed
    expected, _ = agree(history.finalize(evolve(config, routed_dims=dims if known else None)))
    assert expected.rollout.valid


@pytest.mark.parametrize("reason", ROLLOUT_BREAKS)
@settings(HYPOTHESIS, max_examples=20)
@given(data=st.data())
def test_forgeries_agree(reason, data):
    rollout = data.draw(broken_routed_rollouts(reason))
    limits = {"num_experts": rollout.num_experts, "routed_dims": rollout.dims}
    expected, _ = agree(finalize(evolve(DIRECT, **limits), rollout))
    assert expected.rollout.rejection_reason.startswith(reason.rstrip(":"))
    agree(finalize(evolve(DEFERRED, **limits), rollout))


@pytest.mark.parametrize("config", [DIRECT, evolve(DIRECT, routed_dims=(1, 1))])
def test_a_fragment_without_dimensions(config):
    """An int where lists belong has a digest, and a column of one element: it is not a fragment of three dimensions."""
    extras = {ROUTED_EXPERTS: 5}
    columns = {
        ROUTED_EXPERTS: Tensor.of("int16", [5]),
        "routed_experts_encoding": Tensor.of("int64", [2]),
        "routed_len": Tensor.of("int64", [1]),
    }
    rollout = stage("g_g0", [RoutedCall("c", None, 0, 1, extras)], "c", columns={"c": columns})
    expected, _ = agree(finalize(config, rollout))
    assert expected.rollout.rejection_reason.startswith("route_assembly:fragment_rank")


class Racing(MemoryDataPlane):
    """The rows of the second read are gone by then."""

    def get_samples(self, sample_ids, partition_id, select_fields):
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        self.clear_samples(sample_ids, partition_id)
        return answer


class Garbling(MemoryDataPlane):
    """Answers the route column with something that is not a tensor."""

    def get_samples(self, sample_ids, partition_id, select_fields):
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        if ROUTED_EXPERTS in select_fields:
            answer.set(ROUTED_EXPERTS, NonTensorStack(*["text"] * len(sample_ids)))
        return answer


@pytest.mark.parametrize(
    ("plane", "reason"), [(Racing, "missing_staging_row"), (Garbling, "route_assembly:missing_fragment")]
)
def test_what_a_data_plane_may_do_in_between(plane, reason):
    script = [
        RoutedCall("c0", None, 0, 1, {ROUTED_EXPERTS: [[[0, 1]]]}),
        RoutedCall("c1", "c0", 0, 1),
    ]
    rollout, made = stage("g_g0", script, "c1"), plane()
    stage_rows(made, "staging", rollout.rows)
    reassembler = RolloutReassembler(
        made, partition_id="t", staging_partition="staging", pad_token_id=0, max_seq_len=8, router_replay_enabled=True
    )
    assert reassembler.finalize_rollout("g_g0", rollout.receipt, reward=1.0).rejection_reason.startswith(reason)


@st.composite
def groups(draw):
    """Draw rollouts with and without routes, of one model or several, some of them broken, some without a receipt."""
    rollouts, receipts = {}, []
    for index in range(draw(st.integers(1, 4))):
        rollout_id = f"g_g{index}"
        kind = draw(st.sampled_from(["whole", "whole", "broken", "absent"]))
        if kind == "absent":
            receipts.append(None)
            continue
        if kind == "whole":
            rollout = draw(routed_rollouts(rollout_id=rollout_id, dims=draw(st.sampled_from([(1, 2), (1, 2), (2, 2)]))))
        else:
            reason = draw(st.sampled_from(sorted(ROLLOUT_BREAKS)))
            rollout = stage_as(rollout_id, draw(broken_routed_rollouts(reason)))
        rollouts |= rollout.rows
        receipts.append(rollout.receipt)
    count = len(receipts)
    rewards = tuple(draw(st.sampled_from([1.0, 0, -2.5, float("nan")])) for _ in receipts)
    request = GroupRequest(
        "g", tuple(f"g_g{index}" for index in range(count)), tuple(receipts), rewards, (False,) * count
    )
    return request, rollouts


def stage_as(rollout_id, rollout):
    """Stage a broken rollout under another id: its receipt names the old one, which is one more way to be broken."""
    return evolve(rollout, rollout_id=rollout_id)


@settings(HYPOTHESIS, max_examples=100)
@given(groups(), st.sampled_from([DIRECT, DEFERRED]), st.sampled_from([None, (1, 2)]))
def test_groups_agree(group, config, dims):
    request, rows = group
    steps = (GroupStep(request, Faults()), GroupStep(evolve(request, group_id="g"), Faults()))
    agree(FinalizeGroups(evolve(config, routed_dims=dims), steps, Staging(rows)))


def test_the_first_accepted_rollout_teaches_the_process():
    """The shape is learned from an accepted rollout, kept for later groups, and a disagreeing one is one row lost."""
    vectors = {2: [[[0, 1]]], 3: [[[0, 1, 2]]], 4: [[[0, 0, 1, 2]]]}
    rows, receipts = {}, []
    for index, width in enumerate([4, 2, 3, 2]):
        rollout = stage(f"g_g{index}", [RoutedCall("c", None, 0, 1, {ROUTED_EXPERTS: vectors[width]})], "c")
        rows |= rollout.rows
        receipts.append(rollout.receipt)
    plane = MemoryDataPlane()
    stage_rows(plane, "staging", rows)
    reassembler = RolloutReassembler(
        plane,
        partition_id="train",
        staging_partition="staging",
        pad_token_id=0,
        max_seq_len=8,
        router_replay_enabled=True,
    )
    ids = [f"g_g{index}" for index in range(4)]
    common = {"mask_sample": [False] * 4, "fallback_weight_version": 0, "prompt_idx": 0}
    group = reassembler.finalize_group("g", ids, receipts, [1.0] * 4, **common)
    assert group.valid_row_count == 2
    assert group.metrics["finalize/capture_failure_reason_route_assembly_count"] == 2.0
    published = plane.get_samples(ids, "train", ["routed_experts"])["routed_experts"].unbind()
    assert [row.tolist() for row in published] == [[[[-1, -1]]], [[[0, 1]]], [[[-1, -1]]], [[[0, 1]]]]
    later = reassembler.finalize_group(
        "h", ["h_g0"], [None], [1.0], mask_sample=[False], fallback_weight_version=0, prompt_idx=0
    )
    assert (later.dropped, later.meta.fields.count("routed_experts")) == (False, 1)


@pytest.mark.parametrize(
    ("rejected", "says"),
    [(True, "1 rejected rollouts staged some, the first for invalid_reward"), (False, "the engine returns")],
)
def test_the_error_for_an_unknown_shape_says_whether_rejected_rollouts_staged_routes(rejected, says):
    lists = {ROUTED_EXPERTS: [[[0, 1]]]}
    rollouts = [
        stage("g_g0", [RoutedCall("c", None, 0, 1)], "c"),
        stage("g_g1", [RoutedCall("c", None, 0, 1, lists)], "c"),
    ]
    plane = MemoryDataPlane()
    stage_rows(plane, "staging", {**rollouts[0].rows, **rollouts[1].rows})
    receipts = [rollouts[0].receipt, None]
    if rejected:
        receipts[1] = rollouts[1].receipt
    arguments = {
        "rewards": [1.0, float("nan")],
        "mask_sample": [False] * 2,
        "fallback_weight_version": 0,
        "prompt_idx": 0,
    }
    places = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 8}
    reassembler = RolloutReassembler(plane, **places, router_replay_enabled=True)
    with pytest.raises(RuntimeError, match=says):
        reassembler.finalize_group("g", ["g_g0", "g_g1"], receipts, **arguments)
    known = RolloutReassembler(plane, **places, router_replay_enabled=True, routed_dims=(1, 2))
    group = known.finalize_group("g", ["g_g0", "g_g1"], receipts, **arguments)
    assert group.valid_row_count == 1
    published = plane.get_samples(["g_g0", "g_g1"], "train", ["routed_experts"])["routed_experts"].unbind()
    assert [row.tolist() for row in published] == [[[[-1, -1]]]] * 2
