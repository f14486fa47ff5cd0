"""Metrics of a group: never an error, rejections by code, and the statistics of a caller."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from groups import OPTIONS, REWARDS, complaints, staged_group

from rollproof.impl.actor import ReassemblyRequest
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.metrics import IGNORED, handed_through
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.gate.codes import normative, reachable
from rollproof.properties.gate.run import both_answers
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.streams import between
from rollproof.spec.constants import STEP_TIMES
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.latitude import REJECTION_METRICS
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.tensor import Tensor

GROUP = {"mask_sample": [True], "fallback_weight_version": 9, "prompt_idx": 3}


def test_advisories(make):
    calls = []
    root = make.add_call(calls, [1, 2], 1, logprobs=[0.5], weight_version=7)
    make.add_call(calls, [3], 0, parent=root, logprobs=[-0.0], weight_version=3)
    other = make.add_call(calls, [4], 0)
    make.add_call(calls, [5], 0, parent=other)
    receipt = make.receipt_of(calls, terminal_model_call_id="c1", reward=10**300)
    request = GroupRequest("g", ("g_g0",), (receipt,), (1.0,), (True,))
    config, staging = ReassemblerConfig(max_seq_len=2), Staging(make.rows_of(calls))
    assert complaints(FinalizeGroups(config, (GroupStep(request),), staging)) == []
    group = make.reassembler(make.plane_of(calls), max_seq_len=2).finalize_group(
        "g", ["g_g0"], [receipt], [1.0], **GROUP
    )
    assert {name: value for name, value in group.metrics.items() if name.startswith("advisory/")} == {
        "advisory/positive_logprob_tokens": 1.0,
        "advisory/zero_logprob_generations": 1.0,
        "advisory/weight_version_falls": 1.0,
        "advisory/reward_disagreement": 1.0,
        "advisory/overlong_rows": 1.0,
        "advisory/several_extended_roots": 1.0,
        "advisory/mixed_prompts": 0.0,
        "advisory/zero_logprob_tokens": 1.0,
        "advisory/implausible_logprobs": 0.0,
        "advisory/untrained_generated_tokens": 2.0,
        "advisory/unpredicted_first_token": 0.0,
    }


ADVISED = {"stop_token_ids": (7, 8), "least_plausible_logprob": -2.0}


@pytest.mark.parametrize(
    ("generated", "carry", "counted"), [([5, 6], [7, 1], 1), ([5, 7], [8, 1], 0), ([5], [1, 7], 0), ([7, 5], [7], 1)]
)
def test_stop_tokens_that_come_back_in_a_prompt_are_counted(make, generated, carry, counted):
    calls = []
    root = make.add_call(calls, [1, *generated], 1, logprobs=[-3.0] * len(generated), weight_version=7)
    make.add_call(calls, [*carry, 2], len(carry), parent=root, logprobs=[-2.0], weight_version=5)
    receipt = make.receipt_of(calls)
    request = GroupRequest("g", ("g_g0",), (receipt,), (1.0,), (True,), current_weight_version=6)
    config, staging = ReassemblerConfig(**ADVISED), Staging(make.rows_of(calls))
    assert complaints(FinalizeGroups(config, (GroupStep(request),), staging)) == []
    group = make.reassembler(make.plane_of(calls), **ADVISED).finalize_group(
        "g", ["g_g0"], [receipt], [1.0], current_weight_version=6, **GROUP
    )
    assert group.metrics["advisory/stop_token_not_trained"] == counted
    assert group.metrics["advisory/version_above_current"] == 1.0
    assert group.metrics["advisory/implausible_logprobs"] == len(generated)


def test_metrics_never_raise(make):
    odd = [
        None,
        5,
        {"manifest": 5},
        {"manifest": [5, {}, {"mode": []}, {"mode": "text"}]},
        {"terminal_selection": [], "terminal_attribution_reason": 5, "capture_poisoned": 1},
        {"terminal_selection": "content", "terminal_attribution_reason": "witness_disagreement"},
    ]
    ids = tuple(f"g_g{index}" for index in range(len(odd)))
    request = GroupRequest("g", ids, tuple(odd), (1.0,) * len(odd), (True,) * len(odd))
    assert complaints(FinalizeGroups(ReassemblerConfig(), (GroupStep(request),))) == []


# ── rejections by code ──────────────────────────────────────────────────────────────────────────────────────────────


def with_rejections(make) -> FinalizeGroups:
    """Return a group with a valid row, a corrupt digest, a poisoned capture and a failed rollout."""
    rollouts = [make.two_calls(f"g_g{index}") for index in range(4)]
    rows = {key: dict(row) for calls in rollouts for key, row in make.rows_of(calls).items()}
    rows["g_g1/c0"]["token_ids_delta"] = Tensor.of("int64", [10, 11, 12, 99], (1, 4))
    receipts = [make.receipt_of(calls) for calls in rollouts]
    receipts[2] |= {"capture_poisoned": True}
    receipts[3] |= {"failure_reason": "timeout: 5 s", "capture_poisoned": True}
    names = tuple(f"g_g{index}" for index in range(4))
    asked = GroupRequest("g", names, tuple(receipts), (1.0,) * 4, (True,) * 4)
    return FinalizeGroups(ReassemblerConfig(), (GroupStep(asked),), Staging(rows))


COUNTS = {
    "finalize/rejection_rebuild_failed_count": 1.0,
    "finalize/rebuild_failed_corrupt_digest_count": 1.0,
    "finalize/rejection_capture_poisoned_count": 1.0,
    "finalize/rejection_rollout_failed_count": 1.0,
}


def test_rejections_are_counted_by_code_and_rebuilds_by_their_own(make):
    request = with_rejections(make)
    for found in (answer(request), ask(Ours(), request)):
        metrics = found.value[0].group.metrics
        assert {name: value for name, value in metrics.items() if name.startswith(REJECTION_METRICS)} == COUNTS


@pytest.mark.parametrize(
    ("change", "conforms"),
    [
        (lambda metrics: metrics, True),
        (lambda metrics: {name: metrics[name] for name in metrics if name not in COUNTS}, True),
        (lambda metrics: metrics | {"finalize/rebuild_failed_corrupt_digest_count": 2.0}, False),
        (lambda metrics: {name: metrics[name] for name in metrics if "corrupt" not in name}, False),
        (lambda metrics: metrics | {"finalize/rejection_missing_receipt_count": 0.0}, False),
        (lambda metrics: metrics | dict.fromkeys(STEP_TIMES, 1.5), True),
        (lambda metrics: metrics | {STEP_TIMES[0]: -1.0}, False),
    ],
)
def test_who_counts_no_rejections_conforms_and_who_does_must_be_right(make, change, conforms):
    request = with_rejections(make)
    required = answer(request)
    outcome = required.value[0]
    found = Accepted((evolve(outcome, group=evolve(outcome.group, metrics=change(dict(outcome.group.metrics)))),))
    wrong = [item.id for item in CATALOGUE if item.covers(request) and item.check(request, required, found)]
    assert (wrong == []) == conforms
    assert conforms or "GROUP-13" in wrong


# ── a caller's own statistics ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("labels", "stats", "metrics"),
    [
        (None, None, {}),
        ("math", {"tools": 2, "time": {"p50": 0.5}}, {"group_stats/math/tools": 2.0, "group_stats/math/time/p50": 0.5}),
        (["a", "b"], {"n": 1}, {"group_stats/a/n": 1.0, "group_stats/b/n": 1.0}),
        ({"environment": "a"}, {"n": True}, {"group_stats/a/n": 1.0}),
        (None, {"n": 1}, {"group_stats/all/n": 1.0}),
        ("a", {"n": "many", "m": float("nan"), "k": 10**400}, {"advisory/ignored_arguments": 3.0}),
        (5, [1], {"advisory/ignored_arguments": 2.0}),
        (["", None, "a"], {"n": 1}, {"group_stats/a/n": 1.0, "advisory/ignored_arguments": 2.0}),
    ],
)
def test_statistics_are_handed_through(make, labels, stats, metrics):
    plane = MemoryDataPlane()
    rollout_ids, receipts = staged_group(make, plane, media=False)
    finalizer = make.reassembler(plane)
    arguments = {"group_labels": labels, "result_stats": stats}
    group = finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS, **arguments)
    names = [name for name in group.metrics if name.startswith("group_stats/") or "ignored" in name]
    assert {name: group.metrics[name] for name in names} == metrics
    assert "finalize/invalid_row_rate" in group.metrics


def test_statistics_that_hold_themselves_end():
    stats: dict[str, Any] = {"n": 1}
    stats["again"] = stats
    found = handed_through("a", stats)
    assert found["group_stats/a/n"] == 1.0
    assert found[IGNORED] == 1.0


def test_an_unknown_keyword_stays_a_type_error(make):
    with pytest.raises(TypeError, match="segment_rows"):
        make.reassembler(MemoryDataPlane()).finalize_group("g", [], [], [], **OPTIONS, segment_rows=True)
    with pytest.raises(TypeError, match="telemetry"):
        ReassemblyRequest("g", (), (), (), (), 0, 0, (), telemetry=())


def test_every_code_that_rejects_a_rollout_is_counted_by_its_name() -> None:
    """Sections 4 and 5, by construction: one group per code, in which it rejects one rollout of three."""
    left = set(reachable(Area.ROLLOUT))
    for request in between.edited():
        (expected,) = answer(realize_request(request)).value
        code = normative(expected.rollouts[1].rejection_reason)
        if code not in left:
            continue
        left.remove(code)
        name, _, subject = code.partition(":")
        wanted = {f"finalize/rejection_{name}_count"} | ({f"finalize/{name}_{subject}_count"} if subject else set())
        for answered in both_answers(Ours(), request):
            (outcome,) = answered.value
            prefixes = ("finalize/rejection_", "finalize/rebuild_failed_")
            counts = {metric: count for metric, count in outcome.group.metrics.items() if metric.startswith(prefixes)}
            assert counts == dict.fromkeys(wanted, 1.0)
    assert left == set()
