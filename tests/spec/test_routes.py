"""Routes of rollouts, groups and published plans (section 6), and the codes that link spans hide."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve
from cases import HYPOTHESIS, refusal
from hypothesis import given
from hypothesis import strategies as st

from rollproof.properties.adapters.asking import long_chain
from rollproof.properties.strategies.rollouts.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    broken_routed_rollouts,
    number,
    routed_rollouts,
    stage,
)
from rollproof.spec.assembly import all_sentinel, token_routes
from rollproof.spec.constants import EXTRAS_DIGEST_VERSION, ROUTED_EXPERTS
from rollproof.spec.envelope import decode_routes, encode_routes
from rollproof.spec.group import finalize_group, known_dims
from rollproof.spec.lineage import linearize
from rollproof.spec.outcomes import Failure
from rollproof.spec.plan import decode_plan, encode_plan, encoded_plan_size
from rollproof.spec.plane import DataPlane, Get
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected, Stage
from rollproof.spec.replay import execute_published_plan, failure_counts, fragment_keys
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.routes import check_link_spans, rollout_plan, staged_routes
from rollproof.spec.shadowed import SHADOWED_BY
from rollproof.spec.staged import decode_row
from rollproof.spec.tensor import Tensor

DIRECT = ReassemblerConfig(router_replay_enabled=True)
DEFERRED = ReassemblerConfig(router_replay_enabled=True, defer_routed_experts_to_policy=True)


def finalize(config, rollout, dims=None):
    return finalize_over(DataPlane(rollout.rows), config, rollout, dims)


def finalize_over(plane, config, rollout, dims=None):
    return finalize_rollout(config, rollout.rollout_id, rollout.receipt, 1.0, plane, dims)


def test_staged_routes():
    assert staged_routes(None, 2) == (0, None)
    assert staged_routes({"a": 1}, 2) == (0, None)
    routes = Tensor.of("int8", range(4), (2, 1, 2))
    assert staged_routes({ROUTED_EXPERTS: encode_routes(routes)}, 2) == (1, evolve(routes, shape=(1, 2, 1, 2)))
    assert staged_routes({ROUTED_EXPERTS: [[[1, 2]]]}, 1) == (2, Tensor.of("int16", [1, 2], (1, 1, 1, 2)))
    assert refusal(staged_routes, {ROUTED_EXPERTS: None}, 1).code is Code.INVALID_ROUTE_ENVELOPE
    assert refusal(staged_routes, {ROUTED_EXPERTS: [[[1, 2]]]}, 2).code is Code.ROUTED_LEN_MISMATCH


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(routed_rollouts(), st.booleans())
def test_direct_and_deferred_give_the_same_routes(rollout, known):
    config = evolve(DIRECT, num_experts=rollout.num_experts, routed_dims=rollout.dims if known else None)
    direct = finalize(config, rollout)
    assert direct.rollout.valid, direct.rollout.rejection_reason
    plane = DataPlane(rollout.rows)
    deferred = finalize_over(plane, DEFERRED, rollout)
    assert deferred.rollout == evolve(direct.rollout, routed_experts=None)
    assert all("routed_experts" not in effect.columns for effect in plane.effects if isinstance(effect, Get))
    assert known_dims(config, [direct], None) == rollout.dims
    if rollout.dims is None:
        assert direct.rollout.routed_experts is None
        return
    length = len(direct.rollout.token_ids)
    published = json.loads(json.dumps(encode_plan(deferred.rollout.route_plan)))
    found = {key: rollout.rows[key] for key in fragment_keys(published)}
    replayed = execute_published_plan(published, found, rollout.dims, length, num_experts=rollout.num_experts)
    assert (replayed.routes, replayed.failure) == (direct.rollout.routed_experts, None)


@HYPOTHESIS
@given(routed_rollouts())
def test_routes_are_the_chains_own(rollout):
    """Dead branches contribute nothing, and every call's routes stand where its tokens stand."""
    routes = finalize(DIRECT, rollout).rollout.routed_experts
    if routes is None:
        return
    expected = []
    for call in rollout.chain:
        payload = (call.extras or {}).get(ROUTED_EXPERTS)
        if payload is None:
            width = routes.shape[1] * routes.shape[2]
            expected += [(-1,) * width] * (call.carry + call.generation)
        else:
            expected += list(token_routes(decode_routes(payload)))
    assert list(token_routes(routes)) == expected


@pytest.mark.parametrize("reason", ROLLOUT_BREAKS)
@HYPOTHESIS
@given(data=st.data())
def test_forged_rollouts_are_rejected_with_their_reason(reason, data):
    rollout = data.draw(broken_routed_rollouts(reason))
    config = evolve(DIRECT, routed_dims=rollout.dims, num_experts=rollout.num_experts)
    outcome = finalize(config, rollout)
    assert not outcome.rollout.valid
    assert outcome.rollout.rejection_reason.startswith(reason.rstrip(":"))
    assert outcome.rollout.routed_experts is None


@HYPOTHESIS
@given(data=st.data())
def test_deferred_failures_are_counted_and_sentinel(data):
    reason = data.draw(st.sampled_from([name for name in ROLLOUT_BREAKS if name.startswith("route_assembly:")]))
    rollout = data.draw(broken_routed_rollouts(reason))
    outcome = finalize(DEFERRED, rollout)
    if not outcome.rollout.valid:
        assert outcome.rollout.rejection_reason.startswith("route_assembly:fragment_integrity")
        return
    published, length = encode_plan(outcome.rollout.route_plan), len(outcome.rollout.token_ids)
    row = execute_published_plan(published, rollout.rows, rollout.dims, length, num_experts=rollout.num_experts)
    assert row.routes == all_sentinel(length, rollout.dims)
    assert row.failure == reason.split(":")[1]
    assert failure_counts([row, row]) == {row.failure: 2}


def test_a_published_plan_may_be_anything():
    for published in (None, 3, {}, {"schema_version": 3}, []):
        row = execute_published_plan(published, {}, (1, 2), 4)
        assert (row.failure, row.routes) == ("invalid_route_plan", all_sentinel(4, (1, 2)))
        assert fragment_keys(published) == ()


CALLS = (
    RoutedCall("c0", None, 1, 1, {ROUTED_EXPERTS: [[[0, 1]], [[2, 3]]]}),
    RoutedCall("c1", "c0", 0, 1, {"note": "no routes"}),
    RoutedCall("dead", "c0", 0, 1, {ROUTED_EXPERTS: "nonsense"}),
)


def test_published_rows_without_their_columns():
    rollout = stage("g_g0", CALLS[:2], "c1")
    plan = encode_plan(finalize(DEFERRED, rollout).rollout.route_plan)
    row = dict(rollout.rows["g_g0/c0"])
    wrong = [
        {name: value for name, value in row.items() if name != "extras_metadata_json"},
        {**row, "routed_experts_encoding": Tensor.of("int32", [2])},
        {**row, "routed_experts": evolve(row["routed_experts"], shape=(2, 1, 1, 2))},
    ]
    for broken in wrong:
        assert execute_published_plan(plan, {"g_g0/c0": broken}, (1, 2), 3).failure == "missing_fragment"
    assert execute_published_plan(plan, {}, (1, 2), 4).failure == "canonical_length_mismatch"
    assert execute_published_plan(plan, rollout.rows, (1, 2), 3).routes.values() == (0, 1, 2, 3, -1, -1)


def test_absent_fragments_come_before_wrong_ones():
    """A data plane that drops a column which some row lacks cannot say which row that was."""
    rollout = stage("g_g0", (CALLS[0], RoutedCall("c1", "c0", 0, 1, {ROUTED_EXPERTS: [[[0, 1]]]})), "c1")
    broken = rollout.changed("c0", {"routed_experts_encoding": number(1)}).changed("c1", {}, ROUTED_EXPERTS)
    assert finalize(DIRECT, broken).rollout.rejection_reason.startswith("route_assembly:missing_fragment")


def test_routeless_claims_are_checked_before_any_fragment():
    rollout = stage("g_g0", CALLS[:2], "c1").changed("c0", {}, ROUTED_EXPERTS)
    forged = rollout.changed("c1", {"extras_metadata_json": Tensor("uint8", (1, 2), b"{}")})
    for config in (DIRECT, DEFERRED):
        assert finalize(config, forged).rollout.rejection_reason.startswith("route_assembly:fragment_integrity")


def test_routes_of_dead_branches_are_not_read():
    columns = {"dead": {"routed_len": number(9), "routed_experts_encoding": number(1)}}
    rollout = stage("g_g0", CALLS, "c1", columns=columns)
    outcome = finalize(DIRECT, rollout)
    assert outcome.rollout.routed_experts.values() == (0, 1, 2, 3, -1, -1)
    assert outcome.rollout.route_plan.cleanup_staging_keys == ("g_g0/c0", "g_g0/c1", "g_g0/dead")
    assert outcome.route_lengths == (2, 0)


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def group(config, rollouts, dims=None, **keywords):
    count = len(rollouts)
    request = GroupRequest(
        "g",
        tuple(f"g_g{index}" for index in range(count)),
        tuple(None if rollout is None else rollout.receipt for rollout in rollouts),
        (1.0,) * count,
        (False,) * count,
        **keywords,
    )
    rows = {key: row for rollout in rollouts if rollout is not None for key, row in rollout.rows.items()}
    return finalize_group(config, request, DataPlane(rows), dims)


def routed(index, layers=1, experts=2, **changes):
    lists = [[list(range(experts)) for _ in range(layers)] for _ in range(2)]
    return stage(f"g_g{index}", [RoutedCall("c0", None, 1, 1, {ROUTED_EXPERTS: lists, **changes})], "c0")


ROUTELESS = [RoutedCall("c0", None, 1, 1)]


def test_a_rejected_rollout_teaches_nothing():
    """The first rollout's routes have other dimensions, but it is rejected for another reason."""
    bad = routed(0, experts=3).changed("c0", {"routed_len": number(1)})
    repeated = stage("g_g1", [RoutedCall("c0", None, 0, 1, {ROUTED_EXPERTS: [[[4, 4, 4]]]})], "c0")
    outcome = group(DIRECT, [bad, repeated, routed(2), routed(3, experts=3), stage("g_g4", ROUTELESS, "c0")])
    assert [rollout.valid for rollout in outcome.rollouts] == [False, False, True, False, True]
    assert outcome.rollouts[3].rejection_reason.startswith("route_assembly:fragment_model_shape")
    assert outcome.dims == (1, 2)
    published = [row.columns["routed_experts"] for row in outcome.rows]
    assert [routes.shape for routes in published] == [(1, 1, 2), (1, 1, 2), (2, 1, 2), (1, 1, 2), (2, 1, 2)]
    for index in (0, 1, 3, 4):
        assert set(published[index].values()) == {-1}
    metrics = outcome.group.metrics
    assert metrics["finalize/routed_experts_row_coverage"] == 0.5
    assert metrics["finalize/routed_experts_sentinel_token_fraction"] == 0.5
    assert metrics["advisory/routeless_calls"] == 0.0
    assert metrics["advisory/repeated_route_run"] == 2.0


def test_a_route_that_no_neighbour_repeats_is_not_a_run():
    """Otherwise the count would be 1 wherever there are routes, and could not alarm anybody."""
    changing = [[[0, 1]], [[1, 0]]]
    repeated = [[[0, 1]], [[0, 1]]]
    for lists, run in ((changing, 0.0), (repeated, 2.0)):
        rollout = stage("g_g0", [RoutedCall("c0", None, 1, 1, {ROUTED_EXPERTS: lists})], "c0")
        assert group(DIRECT, [rollout]).group.metrics["advisory/repeated_route_run"] == run


def test_an_unusable_reward_teaches_nothing():
    rollout = routed(0, experts=3)
    outcome = finalize_rollout(DIRECT, "g_g0", rollout.receipt, float("nan"), DataPlane(rollout.rows))
    assert outcome.rollout.rejection_reason.startswith("invalid_reward")
    assert known_dims(DIRECT, [outcome], None) is None


def test_dimensions_of_the_caller_are_authoritative():
    outcome = group(evolve(DIRECT, routed_dims=(1, 3)), [routed(0)], dims=(1, 2))
    assert outcome.rollouts[0].rejection_reason.startswith("route_assembly:fragment_model_shape")
    assert outcome.dims == (1, 3)


def test_unknown_dimensions_drop_or_raise():
    dropped = group(DIRECT, [None, routed(1).changed("c0", {"routed_len": number(1)})])
    assert dropped.group.dropped
    assert dropped.rows is None
    raised = group(DIRECT, [stage("g_g0", ROUTELESS, "c0")])
    assert raised.failure is Failure.ROUTES_UNKNOWN
    assert group(DIRECT, [stage("g_g0", ROUTELESS, "c0")], dims=(2, 2)).rows[0].columns["routed_experts"].shape == (
        2,
        2,
        2,
    )


def test_deferred_groups_publish_plans_and_keep_staging():
    foreign = routed(1)
    foreign.receipt["manifest"][0]["staging_key"] = "g_g0/c0"
    outcome = group(DEFERRED, [routed(0), foreign, None])
    tags = [row.tags["route_assembly_plan"] for row in outcome.rows]
    assert [decode_plan(tag).cleanup_staging_keys for tag in tags] == [("g_g0/c0",), (), ()]
    assert [decode_plan(tag).expected_token_length for tag in tags] == [2, 1, 1]
    assert outcome.group.staging_keys == ("g_g0/c0",)
    metrics = outcome.group.metrics
    assert metrics["finalize/route_plan_span_count"] == 1.0
    assert metrics["finalize/route_plan_encoded_bytes"] == sum(encoded_plan_size(decode_plan(tag)) for tag in tags)
    assert metrics["finalize/routed_experts_row_coverage"] == 1.0
    assert "finalize/routed_experts_sentinel_token_fraction" not in metrics
    assert all("routed_experts" not in row.columns for row in outcome.rows)


# ── what is shadowed ────────────────────────────────────────────────────────────────────────────────────────────────


SHADOWED = {
    Code.DUPLICATE_ROUTE_SPAN,
    Code.ROUTE_SPAN_IDENTITY,
    Code.ROUTE_GENERATION_SPAN_MISMATCH,
    Code.ROUTE_CARRY_SPAN_MISMATCH,
    Code.ROUTE_SPAN_LENGTH_MISMATCH,
}


def small_scripts():
    """Return every rollout of up to three calls with up to two carry and two generated tokens, and every terminal."""
    lengths = [(carry, generation) for carry in range(3) for generation in range(3) if carry + generation]
    for count in (1, 2, 3):
        sizes = lengths if count < 3 else [(0, 1), (1, 1), (1, 0)]
        for spans in itertools.product(sizes, repeat=count):
            for parents in itertools.product(*[[None, *range(index)] for index in range(count)]):
                yield [
                    RoutedCall(f"c{index}", None if parent is None else f"c{parent}", *span)
                    for index, (parent, span) in enumerate(zip(parents, spans, strict=True))
                ]


def test_link_span_codes_are_shadowed_exhaustively():
    """Whatever section 4 lets through, a plan can be made of; so these codes and ``invalid_route_plan`` never show."""
    made, refused = 0, set()
    for script in small_scripts():
        rollout = stage("g_g0", script, script[-1].call_id)
        receipt = parse_receipt(rollout.receipt)
        staged = {key: decode_row(row) for key, row in rollout.rows.items()}
        calls = [staged[record.staging_key].call for record in receipt.manifest]
        for terminal in script:
            try:
                row = linearize(evolve(receipt, terminal_model_call_id=terminal.call_id), calls)
            except Rejected as rejected:
                refused.add(rejected.code)
                continue
            chain = [staged[f"g_g0/{call_id}"] for call_id in row.model_call_ids]
            plan = rollout_plan(DIRECT, row, chain, tuple(rollout.rows))
            assert [span.staging_key for span in plan.spans] == [item.key for item in chain]
            made += 1
    assert made > 300
    assert refused == {Code.EMPTY_GENERATION}
    assert {code for code in Code if code.stage is Stage.ROUTES and code in SHADOWED_BY} == SHADOWED


@pytest.mark.parametrize("code", sorted(SHADOWED, key=lambda code: code.code), ids=lambda code: code.code)
def test_shadowed_codes_guard_a_wrong_row(code):
    rollout = stage("g_g0", CALLS[:2], "c1")
    receipt = parse_receipt(rollout.receipt)
    chain = [decode_row(rollout.rows[record.staging_key]) for record in receipt.manifest]
    row = linearize(receipt, [item.call for item in chain])
    first, second = row.link_spans
    wrong = {
        Code.DUPLICATE_ROUTE_SPAN: {"link_spans": (first, first)},
        Code.ROUTE_SPAN_IDENTITY: {"extras_commitments": row.extras_commitments[::-1]},
        Code.ROUTE_GENERATION_SPAN_MISMATCH: {"link_spans": (evolve(first, generation_len=3), second)},
        Code.ROUTE_CARRY_SPAN_MISMATCH: {"link_spans": (evolve(first, carry_len=-1), second)},
        Code.ROUTE_SPAN_LENGTH_MISMATCH: {"token_ids": row.token_ids[1:]},
    }[code]
    assert refusal(rollout_plan, DIRECT, evolve(row, **wrong), chain, tuple(rollout.rows)).code is code


def test_staged_routes_refuses_a_mapping_as_an_unknown_encoding():
    with pytest.raises(Rejected) as caught:
        staged_routes({ROUTED_EXPERTS: {"codec": "zstd"}}, 1)
    assert caught.value.code is Code.UNSUPPORTED_ROUTE_ENCODING


def test_finalize_rollout_refuses_an_attachment_only_with_router_replay():
    rollout = routed(0).changed("c0", {"routed_experts_encoding": number(3)})
    reason = finalize(DIRECT, rollout).rollout.rejection_reason
    assert reason == "unsupported_route_encoding:c0: routed_experts_encoding: got 3, expected 0, 1 or 2"
    assert finalize(ReassemblerConfig(), rollout).rollout.valid


def span(key: str, carry: int, generated: int, staged: int) -> RouteSpan:
    return RouteSpan(
        staging_key=key,
        carry_len=carry,
        generation_len=generated,
        staged_route_len=staged,
        extras_digest_version=EXTRAS_DIGEST_VERSION,
        extras_digest="0" * 64,
    )


def test_a_plan_needs_the_fragments_of_full_and_of_tail_spans() -> None:
    spans = (span("r/a", 2, 1, 3), span("r/b", 2, 2, 2), span("r/c", 1, 1, 0))
    plan = RouteAssemblyPlan("staging", spans, tuple(one.staging_key for one in spans), 9)
    assert fragment_keys(encode_plan(plan)) == ("r/a", "r/b")


def test_published_plans_that_are_invalid_replay_as_all_sentinel() -> None:
    replayed = execute_published_plan({"schema_version": 1}, {}, (2, 3), 4)
    assert replayed.routes == all_sentinel(4, (2, 3))
    assert replayed.failure == "invalid_route_plan"


@pytest.mark.parametrize("tokens", [(5,), (5, 6, 7)])
def test_link_spans_add_up_to_the_row(tokens: tuple[int, ...]) -> None:
    receipt, calls = long_chain(1)
    row = linearize(receipt, calls)
    (link,) = row.link_spans
    assert link.carry_len + link.generation_len == len(row.token_ids)
    staged: Any = SimpleNamespace(call=calls[0])

    check_link_spans(row, [staged])
    longer = evolve(row, token_ids=(*row.token_ids, *tokens))
    for wrong in (longer, evolve(row, token_ids=row.token_ids[:-1])):
        with pytest.raises(Rejected) as caught:
            check_link_spans(wrong, [staged])
        assert caught.value.code is Code.ROUTE_SPAN_LENGTH_MISMATCH


@pytest.mark.parametrize("other", ["b", "d"])
def test_extras_commitments_are_of_the_chain(other: str) -> None:
    receipt, calls = long_chain(1)
    row = linearize(receipt, calls)
    staged: Any = SimpleNamespace(call=calls[0])
    (commitment,) = row.extras_commitments
    for call_id in (f"a{commitment.model_call_id}", f"x{commitment.model_call_id}", other):
        wrong = evolve(row, extras_commitments=(evolve(commitment, model_call_id=call_id),))
        with pytest.raises(Rejected) as caught:
            check_link_spans(wrong, [staged])
        assert caught.value.code is Code.ROUTE_SPAN_IDENTITY
