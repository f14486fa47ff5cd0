"""Sections 5 and 8: the drop-in class, its effects in order, and the spec's answer to anything it is given."""

from __future__ import annotations

import inspect
import math
import pickle
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from rollproof.impl import reassembler as module
from rollproof.impl.outcomes import FinalizedRow, KVBatchMeta, RolloutOutcome, RowColumns
from rollproof.impl.packed import packed_row
from rollproof.impl.reassembler import CleanupError, FinalizedGroup, FinalizedRollout, PublishError, RolloutReassembler
from rollproof.impl.rollout import owned_keys, usable_reward
from rollproof.spec.rejections import Code, Rejected

GROUP = {"mask_sample": [True], "fallback_weight_version": 9, "prompt_idx": 3}
# ── the reference page ──────────────────────────────────────────────────────────────────────────────────────────────


def parameters(function) -> list[tuple[str, bool, bool]]:
    """Return, per parameter, its name, whether it is keyword-only, and whether it has a default."""
    return [
        (item.name, item.kind is item.KEYWORD_ONLY, item.default is not item.empty)
        for item in inspect.signature(function).parameters.values()
        if item.name != "self"
    ]


def test_loss_multiplier_is_1_by_default():
    assert inspect.signature(RolloutReassembler.finalize_group).parameters["loss_multiplier"].default == 1.0


def test_signatures_are_those_of_the_reference_page():
    assert parameters(RolloutReassembler)[:8] == [
        ("dp_client", False, False),
        ("partition_id", True, False),
        ("staging_partition", True, False),
        ("pad_token_id", True, False),
        ("max_seq_len", True, False),
        ("router_replay_enabled", True, True),
        ("defer_routed_experts_to_policy", True, True),
        ("capture_media", True, True),
    ]
    assert all(ours[1:] == (True, True) for ours in parameters(RolloutReassembler)[8:])
    assert parameters(RolloutReassembler.finalize_rollout) == [
        ("rollout_id", False, False),
        ("receipt", False, False),
        ("reward", True, False),
    ]
    assert parameters(RolloutReassembler.finalize_group)[:9] == [
        ("group_id", False, False),
        ("rollout_ids", False, False),
        ("receipts", False, False),
        ("rewards", False, False),
        ("mask_sample", True, False),
        ("fallback_weight_version", True, False),
        ("prompt_idx", True, False),
        ("loss_multiplier", True, True),
        ("canonical_sample_ids", True, True),
    ]
    assert all(later[1:] == (True, True) for later in parameters(RolloutReassembler.finalize_group)[9:])


def test_results_have_the_fields_of_the_reference_page(make):
    calls = make.two_calls()
    reassembler = make.reassembler(make.plane_of(calls))
    rollout = reassembler.finalize_rollout("g_g0", make.receipt_of(calls), reward=0.5)
    assert isinstance(rollout, FinalizedRollout)
    expected = {
        "rollout_id": "g_g0",
        "valid": True,
        "rejection_reason": None,
        "token_ids": [10, 11, 12, 13, 20, 21, 22],
        "token_mask": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0],
        "logprobs": [0.0, 0.0, -0.25, -0.25, 0.0, -0.25, -0.25],
        "prompt_len": 2,
        "reward": 0.5,
        "staging_keys": ["g_g0/c0", "g_g0/c1"],
        "min_wv": 4,
        "max_wv": 5,
        "routed_experts": None,
        "route_plan": None,
        "media": None,
    }
    assert {name: getattr(rollout, name) for name in expected} == expected
    group = reassembler.finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [0.5], **GROUP)
    assert isinstance(group, FinalizedGroup)
    names = (
        *("meta", "group_min_wv", "group_max_wv", "staging_keys", "canonical_output_tokens", "metrics"),
        *("dropped", "drop_reason", "valid_row_count", "total_row_count"),
    )
    assert all(hasattr(group, name) for name in names)
    assert (group.meta.partition_id, group.meta.task_name, group.meta.sample_ids) == ("train", "train", ["g_g0"])
    assert (group.meta.sequence_lengths, group.meta.size, group.meta.extra_info) == ([7], 1, {})
    assert group.canonical_output_tokens == 4


def test_finalized_rollouts_are_equal_where_all_their_fields_are(make):
    calls = make.two_calls()
    finalize = make.reassembler(make.plane_of(calls)).finalize_rollout
    first, second = (finalize("g_g0", make.receipt_of(calls), reward=1.0) for _ in range(2))
    assert first == second
    assert first != replace(first, token_ids=[11, *first.token_ids[1:]])
    assert first != 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)
    routes = torch.zeros((7, 1, 1), dtype=torch.int16)
    routed = replace(first, routed_experts=routes)
    assert routed != first
    assert routed == replace(first, routed_experts=routes.clone())
    assert routed != replace(first, routed_experts=routes.int())
    seen = replace(first, media={"imgs_sizes": packed_row(torch.ones(1, 2))})
    assert seen == replace(first, media={"imgs_sizes": packed_row(torch.ones(1, 2))})
    assert seen != replace(first, media={"imgs_sizes": packed_row(torch.zeros(1, 2))})
    assert seen != replace(first, media={})
    assert len(RowColumns.empty()) == 0


def test_metadata_is_nemo_rls_own_where_it_is_installed(make, monkeypatch):
    class TheirMeta(KVBatchMeta):
        pass

    theirs = ModuleType("nemo_rl.data_plane")
    theirs.KVBatchMeta = TheirMeta
    monkeypatch.setitem(sys.modules, "nemo_rl", ModuleType("nemo_rl"))
    monkeypatch.setitem(sys.modules, "nemo_rl.data_plane", theirs)
    from rollproof.impl import outcomes

    outcomes._meta_class.cache_clear()
    calls = make.two_calls()
    group = make.reassembler(make.plane_of(calls)).finalize_group("g", ["g_g0"], [None], [0.5], **GROUP)
    outcomes._meta_class.cache_clear()
    assert type(group.meta) is TheirMeta


def test_deferred_routes_need_router_replay(make):
    with pytest.raises(ValueError, match="router_replay_enabled"):
        make.reassembler(None, defer_routed_experts_to_policy=True)


# ── what is published ───────────────────────────────────────────────────────────────────────────────────────────────


def test_published_columns(make):
    calls = make.two_calls("g_g1")
    plane = make.plane_of(calls)
    receipts = [None, make.receipt_of(calls)]
    group = make.reassembler(plane, max_seq_len=7).finalize_group(
        "g",
        ["g_g0", "g_g1"],
        receipts,
        [0.25, 1.5],
        mask_sample=[True, False],
        fallback_weight_version=9,
        prompt_idx=3,
        loss_multiplier=0.5,
    )
    fields = plane.get_samples(["g_g0", "g_g1"], "train", group.meta.fields)
    published = {name: [row.tolist() for row in column.unbind()] for name, column in fields.items()}
    assert published == {
        "input_ids": [[7], [10, 11, 12, 13, 20, 21, 22]],
        "input_lengths": [1, 7],
        "generation_logprobs": [[0.0], [0.0, 0.0, -0.25, -0.25, 0.0, -0.25, -0.25]],
        "token_mask": [[0.0], [0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0]],
        "sample_mask": [0.0, 0.5],
        "prompt_ids_for_adv": [[10, 11], [10, 11]],
        "total_reward": [0.25, 1.5],
        "mask_sample": [True, False],
        "truncated": [False, True],
    }
    dtypes = {name: column.dtype for name, column in fields.items()}
    assert dtypes == {
        **dict.fromkeys(("input_ids", "input_lengths", "prompt_ids_for_adv"), torch.int64),
        **dict.fromkeys(("generation_logprobs", "token_mask", "sample_mask", "total_reward"), torch.float32),
        **dict.fromkeys(("mask_sample", "truncated"), torch.bool),
    }
    tag = {"weight_version": 4, "prompt_idx": 3, "group_id": "g"}
    assert plane.tags("train") == {"g_g0": tag, "g_g1": tag}
    assert group.meta.tags == [tag, tag]
    assert group.meta.tags[0] is not plane.tags("train")["g_g0"]
    assert plane.sample_ids("staging") == []


def test_default_dtype_does_not_matter(make):
    calls = make.two_calls()
    plane = make.plane_of(calls)
    torch.set_default_dtype(torch.float64)
    try:
        make.reassembler(plane).finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [0.1], **GROUP)
    finally:
        torch.set_default_dtype(torch.float32)
    assert plane.get_samples(["g_g0"], "train", ["total_reward"]).get("total_reward").dtype is torch.float32


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Refusing:
    """A data plane with one method that fails."""

    def __init__(self, plane, method: str) -> None:
        self.plane, self.method = plane, method
        self.error = ConnectionError("down")
        self.done: list[str] = []

    def __getattr__(self, name):
        def call(**arguments):
            self.done.append(name)
            if name == self.method:
                raise self.error
            return getattr(self.plane, name)(**arguments)

        return call


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout_ids": [], "receipts": [], "rewards": [], "mask_sample": []},
        {"rewards": [1.0, 2.0]},
        {"receipts": []},
        {"mask_sample": [True, True]},
        {
            "rollout_ids": ["g_g0", "g_g0"],
            "receipts": [None] * 2,
            "rewards": [1.0] * 2,
            "mask_sample": [True] * 2,
            "canonical_sample_ids": ["g_g0", "g_g1"],
        },
        {"loss_multiplier": -0.5},
        {"loss_multiplier": math.nan},
        {"loss_multiplier": math.inf},
        {"loss_multiplier": 1e39},
        {"loss_multiplier": 10**400},
        {"loss_multiplier": True},
        {"fallback_weight_version": -1},
        {"fallback_weight_version": 2**63},
        {"fallback_weight_version": True},
        {"fallback_weight_version": 1.0},
        {"fallback_weight_version": "4"},
        {"fallback_weight_version": None},
        {"loss_multiplier": "1"},
        {"canonical_sample_ids": ["other"]},
        {"rollout_ids": ["other"]},
    ],
)
def test_contradicting_arguments_raise_before_any_read(make, changes):
    plane = Refusing(make.plane_of(make.two_calls()), "get_samples")
    arguments = {"rollout_ids": ["g_g0"], "receipts": [make.receipt_of(make.two_calls())], "rewards": [1.0], **GROUP}
    with pytest.raises(ValueError, match="group g: "):
        make.reassembler(plane).finalize_group("g", **(arguments | changes))
    assert plane.done == []


def test_a_read_error_propagates_before_any_write(make):
    calls = make.two_calls()
    plane = Refusing(make.plane_of(calls), "get_samples")
    reassembler = make.reassembler(plane)
    for finalize in (
        lambda: reassembler.finalize_rollout("g_g0", make.receipt_of(calls), reward=1.0),
        lambda: reassembler.finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [1.0], **GROUP),
    ):
        with pytest.raises(ConnectionError) as found:
            finalize()
        assert found.value is plane.error
    assert plane.done == ["get_samples"] * 2
    assert len(plane.plane.sample_ids("staging")) == 2


def test_a_put_error_leaves_staging_whole(make):
    calls = make.two_calls()
    plane = Refusing(make.plane_of(calls), "put_samples")
    with pytest.raises(PublishError, match=r"'train'.*g_g0") as found:
        make.reassembler(plane).finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [1.0], **GROUP)
    assert found.value.__cause__ is plane.error
    assert (found.value.partition, found.value.sample_ids, found.value.published) == ("train", ["g_g0"], False)
    assert plane.done == ["get_samples", "put_samples"]
    assert len(plane.plane.sample_ids("staging")) == 2
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_a_clear_error_names_partition_and_keys(make):
    calls = make.two_calls()
    plane = Refusing(make.plane_of(calls), "clear_samples")
    with pytest.raises(CleanupError, match=r"'staging'.*the rows are published.*g_g0/c0, g_g0/c1") as found:
        make.reassembler(plane).finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [1.0], **GROUP)
    assert found.value.__cause__ is plane.error
    assert (found.value.partition, found.value.keys) == ("staging", ["g_g0/c0", "g_g0/c1"])
    assert found.value.published
    assert plane.plane.sample_ids("train") == ["g_g0"]
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_router_replay_without_any_routes(make):
    calls = make.two_calls()
    plane = Refusing(make.plane_of(calls), "put_samples")
    with pytest.raises(RuntimeError, match="routed_dims"):
        make.reassembler(plane, router_replay_enabled=True).finalize_group(
            "g", ["g_g0"], [make.receipt_of(calls)], [1.0], **GROUP
        )
    assert plane.done == ["get_samples"]


def test_a_group_that_nothing_gives_a_shape_is_dropped(make):
    calls = make.two_calls()
    plane = make.plane_of(calls)
    receipt = make.receipt_of(calls, capture_poisoned=True)
    group = make.reassembler(plane, router_replay_enabled=True).finalize_group("g", ["g_g0"], [receipt], [1.0], **GROUP)
    assert group.dropped
    assert group.drop_reason
    assert (group.meta, group.valid_row_count, group.total_row_count) == (None, 0, 0)
    assert group.metrics["finalize/group_dropped"] == 1.0
    assert plane.sample_ids("staging") == []
    failing = Refusing(make.plane_of(calls), "clear_samples")
    with pytest.raises(CleanupError, match="the group was dropped") as found:
        make.reassembler(failing, router_replay_enabled=True).finalize_group("g", ["g_g0"], [receipt], [1.0], **GROUP)
    assert not found.value.published


# ── small rules ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "reward, expected",
    [
        (1, 1.0),
        (0.1, 0.10000000149011612),
        (3.4e38, 3.3999999521443642e38),
        (1e39, None),
        (-(10**400), None),
        (math.nan, None),
        (math.inf, None),
        (True, None),
        ("1", None),
        (None, None),
        ([], None),
    ],
)
def test_usable_reward_takes_finite_numbers(reward, expected):
    assert usable_reward(reward) == expected


def test_owned_keys_are_those_under_the_rollouts_own_id(make):
    calls = make.two_calls()
    receipt = make.receipt_of(calls)
    receipt["manifest"][1]["staging_key"] = "g_g1/c1"
    outcome = ask_ours(make, receipt)
    assert outcome.staging_keys == ["g_g0/c0", "g_g1/c1"]
    assert owned_keys("g_g0", receipt) == ["g_g0/c0"]
    for nobody in ("a/b", "", "\ud800", 5, None):
        assert owned_keys(nobody, receipt) == []
    assert owned_keys("g_g0", None) == []


def ask_ours(make, receipt):
    return make.reassembler(make.plane_of()).finalize_rollout("g_g0", receipt, reward=1.0)


def test_an_accepted_rollout_can_still_be_rejected():
    accepted = FinalizedRow("r", True, None, 0.5, ["r/c"], prompt_len=1, min_wv=1, max_wv=2)
    outcome = RolloutOutcome(accepted, dims=(1, 2)).rejected(Rejected(Code.CAPTURE_POISONED), None)
    assert outcome.rollout.result() == FinalizedRow("r", False, "capture_poisoned", 0.5, ["r/c"]).result()
    assert outcome.dims is None


def test_module_exports():
    assert {"RolloutReassembler", "FinalizedRollout", "FinalizedGroup"} <= set(module.__all__)
