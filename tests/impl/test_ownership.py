"""What was verified is what is published: a plane that uses its buffers again, and columns that hold no elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from groups import MODES, OPTIONS, REWARDS, staged_group
from hypothesis import HealthCheck, Phase, given, seed, settings
from tensordict import TensorDict, TensorDictBase

from rollproof.impl.assembly import execute
from rollproof.impl.bundles import read_staged
from rollproof.impl.columns import column_rows, read_ragged
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.plan import RouteAssemblyPlan, RouteSpan
from rollproof.impl.policy import RoutePlanExecutor, _fragments
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.recovery import run
from rollproof.impl.rollout import usable_reward
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.forms import FORMS, AsItIs, with_forms
from rollproof.properties.adapters.ours import Ours, OursByGroup
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, RolloutPlan, group_of
from rollproof.properties.strategies.rollouts.recipes import Form
from rollproof.properties.strategies.streams import group, media, rollout, routes
from rollproof.spec.constants import EXTRAS_DIGEST_VERSION
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area, FinalizeGroups, FinalizeRollout, ReplayGroup
from rollproof.spec.rejections import Rejected
from rollproof.spec.rollout import is_usable_reward
from rollproof.spec.rollout import usable_reward as spec_reward


class ReusesItsBuffers(MemoryDataPlane):
    """The memory of every answer holds something else as soon as the next operation begins."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: list[torch.Tensor] = []

    def spoil(self) -> None:
        for tensor in self.lent:
            tensor.fill_(1)
        self.lent = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.spoil()
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        for name in answer.keys():  # noqa: SIM118
            column = answer.get(name)
            if isinstance(column, torch.Tensor):
                self.lent.append(column.values() if column.is_nested else column)
            else:
                self.lent += [row for row in column.tolist() if isinstance(row, torch.Tensor)]
        return answer

    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        self.spoil()
        super().put_samples(sample_ids, partition_id, fields, tags)

    def clear_samples(self, sample_ids, partition_id):
        self.spoil()
        super().clear_samples(sample_ids, partition_id)


class OverReusedBuffers(Ours):
    """Ours over such a plane."""

    make_plane = ReusesItsBuffers


class OverReusedBuffersByGroup(OursByGroup):
    """Ours over such a plane, with one read for all rollouts of a group."""

    make_plane = ReusesItsBuffers


READING = [
    stream
    for module, area in ((rollout, Area.ROLLOUT), (group, Area.GROUP), (routes, Area.ROUTES), (media, Area.MEDIA))
    for stream in module.streams(area)
    if stream.weight
]


@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.deep)])
@pytest.mark.parametrize("stream", READING, ids=lambda stream: f"{stream.area}-{stream.name}")
def test_a_plane_that_reuses_its_buffers_changes_no_row(stream, examples):
    """In all modes: text, direct and deferred routes, media."""

    @seed(1)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(stream.strategy)
    def holds(request: Any) -> None:
        if not isinstance(request, FinalizeGroups | FinalizeRollout | ReplayGroup):
            return
        expected, actual = answer(request), ask(OverReusedBuffers(), request)
        found = [item.check(request, expected, actual) for item in CATALOGUE if item.covers(request)]
        assert [complaint for complaint in found if complaint] == []
        if isinstance(request, FinalizeGroups):
            assert ask(OverReusedBuffersByGroup(), request) == ask(OursByGroup(), request)

    holds()


@pytest.mark.parametrize("reads", ["rollout", "group"])
def test_media_read_into_the_memory_of_routes_change_no_route(make, reads):
    published = []
    for plane in (MemoryDataPlane(), ReusesItsBuffers()):
        rollout_ids, receipts = staged_group(make, plane, media=True)
        finalizer = make.reassembler(plane, capture_media=True, reads=reads, **MODES["direct"])
        group = finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS)
        assert group.valid_row_count == 2
        answer = plane.get_samples(group.meta.sample_ids, TRAIN, ["routed_experts", "pixel_values"])
        published.append({name: [row.tolist() for row in column_rows(column)] for name, column in answer.items()})
    assert published[0] == published[1]
    assert set(published[0]) == {"routed_experts", "pixel_values"}


# ── layouts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GROUP = group_of(1, [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((2, 3),))], [])
KEYS = list(GROUP.rows)
DAMAGED = GROUP.request.rollout_ids[0]


class Odd(MemoryDataPlane):
    """One column of the first rollout's rows is answered in an odd form."""

    def __init__(self, name: str, form: Form) -> None:
        super().__init__()
        self.name, self.form = name, form

    def get_samples(self, sample_ids, partition_id, select_fields) -> TensorDictBase:
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        if not sample_ids[0].startswith(DAMAGED) or self.name not in answer:
            return answer
        return with_forms(answer, {self.name: self.form})


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize(
    "name",
    ["token_ids_delta", "token_mask_delta", "delta_len", "chain_hash_present", "digest_bytes", "extras_metadata_json"],
)
def test_a_column_without_elements_rejects_its_own_rollout_only(form, name):
    plane = Odd(name, form)
    stage_rows(plane, STAGING, GROUP.rows)
    reassembler = RolloutReassembler(
        plane, partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=CONFIG.max_seq_len
    )
    rollout = reassembler.finalize_rollout(DAMAGED, GROUP.request.receipts[0], reward=1.0)
    assert rollout.rejection_reason.startswith(f"invalid_staging_row: {DAMAGED}/")
    assert f": {name}: " in rollout.rejection_reason
    group = run(reassembler, GROUP.request)
    assert group.valid_row_count == 1


def test_offsets_beyond_the_values_are_refused():
    values = torch.arange(4)
    column = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 9]))
    with pytest.raises(ValueError, match=r"ids: got offsets \[0, 3, 9\], expected ascending ones within 4 values"):
        read_ragged(TensorDict({"ids": column}, batch_size=[2]), "ids", torch.int64)


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────────────────────────

NUMBERS = [
    (np.float32(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.int64(3), 3.0),
    (np.uint8(3), 3.0),
    (np.array(2.0), 2.0),
    (torch.tensor(0.5), 0.5),
    (torch.tensor(3), 3.0),
    (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (np.bool_(True), None),
    (np.array(True), None),
    (torch.tensor(True), None),
    (np.float32("nan"), None),
    (torch.tensor(float("inf")), None),
    (np.array([1.0]), None),
    (torch.ones(1), None),
    (np.complex64(1), None),
    (np.array("1"), None),
    (np.datetime64(0, "s"), None),
    (torch.empty((), device="meta"), None),
    (np.float64(1e39), None),
]


@pytest.mark.parametrize(("reward", "expected"), NUMBERS, ids=lambda value: f"{type(value).__name__}-{value!r}")
def test_a_reward_is_a_number_or_a_0_dimensional_one(reward, expected):
    assert usable_reward(reward) == expected
    assert (spec_reward(reward), is_usable_reward(reward)) == (expected or 0.0, expected is not None)


@pytest.mark.parametrize("reward", [np.float32(0.5), torch.tensor(0.5)])
def test_scalar_rewards_reach_the_rows(reward):
    plane = MemoryDataPlane()
    stage_rows(plane, STAGING, GROUP.rows)
    reassembler = RolloutReassembler(
        plane, partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=CONFIG.max_seq_len
    )
    group = reassembler.finalize_group(
        "g1",
        list(GROUP.request.rollout_ids),
        list(GROUP.request.receipts),
        [reward, reward],
        mask_sample=[False, False],
        fallback_weight_version=0,
        prompt_idx=0,
        loss_multiplier=np.float32(1.0),
    )
    assert group.valid_row_count == 2
    assert plane.get_samples(group.meta.sample_ids, TRAIN, ["total_reward"])["total_reward"].tolist() == [0.5, 0.5]


# ── media and routes ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", Form)
def test_media_and_routes_in_odd_forms_are_refused(form):
    column = torch.zeros(1, 3, dtype=torch.int32)
    good = {"media_imgs": torch.zeros(1, 1, 3), "media_imgs_sizes": torch.ones(1, 1, 2, dtype=torch.int32)}
    good["media_num_frames"] = torch.zeros(1, 1, dtype=torch.int32)
    assert len(read_staged(AsItIs(good, 1), ["r/c0"], has_frames=False)) == 1
    for name in good:
        with pytest.raises(ValueError, match=r".+"):
            read_staged(AsItIs(good | {name: FORMS[form](column)}, 1), ["r/c0"], has_frames=False)
    routed = {
        "routed_experts": torch.zeros(1, 1, 1, 1, dtype=torch.int16),
        "routed_experts_encoding": torch.ones(1, dtype=torch.int64),
        "extras_metadata_json": torch.zeros(1, 2, dtype=torch.uint8),
    }
    assert set(_fragments(AsItIs(routed, 1), ["k"])) == {"k"}
    for name in ("routed_experts_encoding", "extras_metadata_json"):
        with pytest.raises(Rejected):
            _fragments(AsItIs(routed | {name: FORMS[form](column)}, 1), ["k"])
    try:
        fragment = _fragments(AsItIs(routed | {"routed_experts": FORMS[form](column)}, 1), ["k"])["k"]
    except Rejected:
        return
    span = RouteSpan("k", 0, 1, 1, EXTRAS_DIGEST_VERSION, "0" * 64)
    with pytest.raises(Rejected):
        execute(RouteAssemblyPlan(2, STAGING, (span,), ("k",), 1), {"k": fragment}, (1, 1), 1)


def test_the_policy_keeps_the_fragments_of_one_read_through_the_next():
    """One missing row makes it read in halves, and each partition is a read of its own."""
    plane = ReusesItsBuffers()
    for partition in ("p", "q"):
        for index in range(3):
            fields = {
                "routed_experts": torch.full((1, 1, 1, 1, 1), index, dtype=torch.int16),
                "routed_experts_encoding": torch.ones(1, dtype=torch.int64),
                "extras_metadata_json": torch.tensor(list(b"{}"), dtype=torch.uint8)[None],
            }
            plane.put_samples([f"k{index}"], partition, TensorDict(fields, batch_size=[1]))
    keys = [f"k{index}" for index in range(4)]
    spans = tuple(RouteSpan(key, 0, 1, 1, EXTRAS_DIGEST_VERSION, "0" * 64) for key in keys)
    plans = [RouteAssemblyPlan(2, partition, spans, tuple(keys), 4) for partition in ("p", "q")]
    found = RoutePlanExecutor(plane, dims=(1, 1))._fetch(plans)
    for partition in ("p", "q"):
        assert {key: int(one.routes) for key, one in found[partition].items()} == {"k0": 0, "k1": 1, "k2": 2}
