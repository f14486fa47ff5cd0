"""Section 6 in the spec: codec, plans, classification, assembly, rollouts, and what is shadowed by what."""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollproof.properties.strategies.route_wire import (
    PLAN_BREAKS,
    broken_payloads,
    broken_plans,
    odd_payloads,
    payloads,
    plans,
    trailing_bits,
)
from rollproof.properties.strategies.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    broken_routed_rollouts,
    number,
    routed_rollouts,
    stage,
)
from rollproof.properties.strategies.routes import (
    ASSEMBLY_BREAKS,
    assemblies,
    broken_assemblies,
    broken_metadata,
    route_payload,
)
from rollproof.spec.assembly import RouteFragment, all_sentinel, execute, extras_around, token_routes
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import decode_routes, encode_routes, nested_lists
from rollproof.spec.group import finalize_group
from rollproof.spec.lineage import linearize
from rollproof.spec.outcomes import Failure
from rollproof.spec.plan import (
    SpanMode,
    classify_span,
    decode_plan,
    encode_plan,
    encoded_plan_size,
    placeholder_plan,
    sentinel_and_used,
)
from rollproof.spec.plane import Get, Staging
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected, Stage
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.routes import execute_published_plan, failure_counts, fragment_keys, rollout_plan, staged_routes
from rollproof.spec.staged import decode_row
from rollproof.spec.tensor import Tensor

HYPOTHESIS = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
DIRECT = ReassemblerConfig(router_replay_enabled=True)
DEFERRED = ReassemblerConfig(router_replay_enabled=True, defer_routed_experts_to_policy=True)


def refusal(function, *arguments, **keywords):
    with pytest.raises(Rejected) as caught:
        function(*arguments, **keywords)
    return caught.value


def finalize(config, rollout, dims=None):
    return finalize_rollout(config, rollout.rollout_id, rollout.receipt, 1.0, Staging(rollout.rows), dims)


# ── codec ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(payloads())
def test_one_value_has_one_encoding(payload):
    routes = decode_routes(payload)
    if type(payload) is str:
        assert encode_routes(routes) == payload
    else:
        assert routes.dtype == "int16"
        assert nested_lists(routes) == payload
    assert decode_routes(encode_routes(routes)) == routes


@HYPOTHESIS
@given(broken_payloads())
def test_anything_else_is_no_route_tensor(payload):
    assert refusal(decode_routes, payload).code is Code.INVALID_ROUTE_ENVELOPE


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_every_odd_payload_is_refused(shape):
    valid = RouteFragment(Tensor.of("int16", [-1] * (shape[0] * shape[1] * shape[2]), shape), 1, b"null")
    for payload in odd_payloads(valid):
        assert refusal(decode_routes, payload).code is Code.INVALID_ROUTE_ENVELOPE, payload


@pytest.mark.parametrize("padding", [1, 2])
def test_trailing_bits(padding):
    assert "base64" in refusal(decode_routes, trailing_bits(padding)).detail


HOSTILE = {
    "huge dimension": "nrlre1:int16:99999999999x1x1:AAAA",
    "product beyond 64 bits": "nrlre1:int32:9999999999999999999x9999999999999999999x9999999999999999999:AAAA",
    "one GiB declared, three bytes sent": "nrlre1:int8:1024x1024x1024:AAAA",
    "10,000 dimensions": f"nrlre1:int8:{'x'.join(['1'] * 10_000)}:AAAA",
    "10,000 digits": f"nrlre1:int8:{'9' * 10_000}x1x1:AAAA",
    "10,000 zeros": f"nrlre1:int8:1x1x{'0' * 10_000}:AAAA",
}


@pytest.mark.parametrize("envelope", HOSTILE.values(), ids=HOSTILE)
def test_hostile_envelopes_cost_nothing(envelope):
    refusal(decode_routes, envelope)
    tracemalloc.start()
    refusal(decode_routes, envelope)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        refusal(decode_routes, envelope)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.01


@pytest.mark.parametrize("shape", [(), (4,), (2, 2), (1, 2, 2, 1), (0, 1, 1), (1, 0, 4)])
def test_other_shapes_have_no_envelope(shape):
    count = Tensor.of("int8", range(4)) if 0 not in shape else Tensor("int8", (0,), b"")
    if shape != ():
        assert refusal(encode_routes, evolve(count, shape=shape)).code is Code.INVALID_ROUTE_ENVELOPE
    else:
        assert refusal(encode_routes, Tensor.of("int8", [1], ())).code is Code.INVALID_ROUTE_ENVELOPE


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "bool"])
def test_other_dtypes_have_no_envelope(dtype):
    assert refusal(encode_routes, Tensor.of(dtype, [1], (1, 1, 1))).code is Code.INVALID_ROUTE_ENVELOPE


def test_staged_routes():
    assert staged_routes(None, 2) == (0, None)
    assert staged_routes({"a": 1}, 2) == (0, None)
    routes = Tensor.of("int8", range(4), (2, 1, 2))
    assert staged_routes({ROUTED_EXPERTS: encode_routes(routes)}, 2) == (1, evolve(routes, shape=(1, 2, 1, 2)))
    assert staged_routes({ROUTED_EXPERTS: [[[1, 2]]]}, 1) == (2, Tensor.of("int16", [1, 2], (1, 1, 1, 2)))
    assert refusal(staged_routes, {ROUTED_EXPERTS: None}, 1).code is Code.INVALID_ROUTE_ENVELOPE
    assert refusal(staged_routes, {ROUTED_EXPERTS: [[[1, 2]]]}, 2).code is Code.ROUTED_LEN_MISMATCH


# ── classification and plans ────────────────────────────────────────────────────────────────────────────────────────


def test_classification_is_exhaustively_right():
    for carry, generation, staged in itertools.product(range(6), repeat=3):
        mode = classify_span(carry, generation, staged)
        unrouted, first, used = sentinel_and_used(carry, generation, staged)
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


def test_other_schema_versions_are_named():
    plan = encode_plan(placeholder_plan(ReassemblerConfig(), ("r/c",)))
    assert "schema_version: got 3" in refusal(decode_plan, {**plan, "schema_version": 3, "spans": 0, "more": 1}).detail


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


# ── assembly ────────────────────────────────────────────────────────────────────────────────────────────────────────


def run(whole, **changes):
    arguments = {
        "num_experts": whole.num_experts,
        "allow_repeated_experts": whole.allow_repeated_experts,
        **changes,
    }
    return execute(whole.plan, whole.fragments, whole.dims, whole.canonical_len, **arguments)


@HYPOTHESIS
@given(assemblies())
def test_every_token_has_its_own_route_or_none(whole):
    """Token by token, without the spec's slicing."""
    row = list(token_routes(run(whole)))
    width = whole.dims[0] * whole.dims[1]
    assert len(row) == whole.canonical_len
    position = 0
    for span in whole.plan.spans:
        length = span.carry_len + span.generation_len
        fragment = whole.fragments.get(span.staging_key)
        own = [] if fragment is None else list(token_routes(fragment.routes))
        for offset in range(length):
            from_end = length - offset
            routed = own and (len(own) == length or from_end <= span.generation_len <= len(own))
            assert row[position + offset] == (own[len(own) - from_end] if routed else (-1,) * width)
        position += length
    assert set(itertools.chain(*row[position:])) <= {-1}


@pytest.mark.parametrize("code", ASSEMBLY_BREAKS, ids=lambda code: code.code)
@HYPOTHESIS
@given(data=st.data())
def test_each_break_gives_its_code(code, data):
    assert refusal(run, data.draw(broken_assemblies(code))).code is code


@HYPOTHESIS
@given(broken_assemblies(Code.FRAGMENT_DUPLICATE_EXPERT))
def test_repeated_experts_can_be_allowed(whole):
    assert run(whole, allow_repeated_experts=True).shape == (whole.canonical_len, *whole.dims)


def fragment_of(routes, encoding=1, metadata=b"{}"):
    fragment = RouteFragment(routes, encoding, metadata)
    try:
        commitment = extras_digest(extras_around(fragment))
    except (ValueError, Rejected):
        commitment = "0" * 64
    plan = RouteAssemblyPlan(
        "s", (RouteSpan("r/c", 0, routes.shape[0], routes.shape[0], 1, commitment),), ("r/c",), routes.shape[0]
    )
    return plan, {"r/c": fragment}


METADATA = b'{"a":[1.5,null],"z":"\xc3\xa9"}'


@pytest.mark.parametrize("encoding", [1, 2])
@pytest.mark.parametrize("metadata", broken_metadata(METADATA), ids=lambda metadata: metadata[:20].decode("latin-1"))
def test_broken_metadata_is_no_commitment(metadata, encoding):
    plan, fragments = fragment_of(Tensor.of("int16", [0], (1, 1, 1)), encoding, METADATA)
    assert execute(plan, fragments, None, 1).values() == (0,)
    broken = {"r/c": evolve(fragments["r/c"], extras_metadata_json=metadata)}
    assert refusal(execute, plan, broken, None, 1).code is Code.FRAGMENT_INTEGRITY


def execute_one(routes, **keywords):
    plan, fragments = fragment_of(routes, keywords.pop("encoding", 1))
    return execute(plan, fragments, keywords.pop("dims", None), plan.expected_token_length, **keywords)


def test_nothing_is_narrowed():
    for expert in (65535, 32768, -2, 2**31 - 1):
        assert refusal(execute_one, Tensor.of("int32", [expert], (1, 1, 1))).code is Code.FRAGMENT_VALUE_RANGE
    assert execute_one(Tensor.of("int32", [32767, -1], (2, 1, 1))).values() == (32767, -1)
    assert refusal(execute_one, Tensor.of("int8", [7], (1, 1, 1)), num_experts=7).code is Code.FRAGMENT_VALUE_RANGE


def test_the_first_rule_wins_over_the_whole_fragment():
    both = Tensor.of("int16", [0, 0, 1, -1], (2, 1, 2))
    assert refusal(execute_one, both).code is Code.FRAGMENT_PARTIAL_SENTINEL
    assert refusal(execute_one, Tensor.of("int16", [0, 0, 1, -1, -2, -2], (3, 1, 2))).code is Code.FRAGMENT_VALUE_RANGE


def test_null_and_empty_metadata_both_mean_routes_only():
    plan, fragments = fragment_of(Tensor.of("int8", [1], (1, 1, 1)))
    null = {"r/c": evolve(fragments["r/c"], extras_metadata_json=b"null")}
    assert execute(plan, null, (1, 1), 1) == execute(plan, fragments, (1, 1), 1)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float32"])
def test_lists_are_staged_as_int16(dtype):
    plan, fragments = fragment_of(Tensor.of("int16", [1], (1, 1, 1)), encoding=2)
    other = {"r/c": evolve(fragments["r/c"], routes=Tensor.of(dtype, [1], (1, 1, 1)))}
    assert execute(plan, fragments, (1, 1), 1).values() == (1,)
    assert refusal(execute, plan, other, (1, 1), 1).code is Code.FRAGMENT_INTEGRITY


def test_a_plan_without_spans_is_all_sentinel():
    assert execute(RouteAssemblyPlan("s", (), (), 3), {}, (2, 1), 3) == all_sentinel(3, (2, 1))
    with pytest.raises(ValueError, match="unknown"):
        execute(RouteAssemblyPlan("s", (), (), 3), {}, None, 3)


def test_assembled_length_is_shadowed_by_the_plan():
    """A valid plan's spans contribute its length, whatever their modes: sections' sums are all there is to it."""
    reached = set()
    for spans in itertools.product(itertools.product(range(3), repeat=3), repeat=2):
        total = sum(carry + generation for carry, generation, _ in spans)
        assembled = sum(unrouted + used for unrouted, _, used in itertools.starmap(sentinel_and_used, spans))
        reached.add(total == assembled)
    assert reached == {True}
    invalid = RouteAssemblyPlan("s", (RouteSpan("r/c", 1, 1, 0, 1, "0" * 64),), ("r/c",), 3)
    assert refusal(execute, invalid, {}, (1, 1), 3).code is Code.ASSEMBLED_LENGTH_MISMATCH
    assert refusal(encode_plan, invalid).code is Code.INVALID_ROUTE_PLAN


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(routed_rollouts(), st.booleans())
def test_direct_and_deferred_give_the_same_routes(rollout, known):
    config = evolve(DIRECT, num_experts=rollout.num_experts, routed_dims=rollout.dims if known else None)
    direct = finalize(config, rollout)
    assert direct.rollout.valid, direct.rollout.rejection_reason
    deferred = finalize(DEFERRED, rollout)
    assert deferred.rollout == evolve(direct.rollout, routed_experts=None)
    assert all("routed_experts" not in effect.columns for effect in deferred.effects if isinstance(effect, Get))
    assert direct.dims == rollout.dims
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
def test_each_forgery_is_named(reason, data):
    rollout = data.draw(broken_routed_rollouts(reason))
    config = evolve(DIRECT, routed_dims=rollout.dims, num_experts=rollout.num_experts)
    outcome = finalize(config, rollout)
    assert not outcome.rollout.valid
    assert outcome.rollout.rejection_reason.startswith(reason.rstrip(":"))
    assert outcome.dims == rollout.dims


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


def test_dead_branches_are_not_looked_at():
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
    return finalize_group(config, request, Staging(rows), dims)


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


def test_an_unusable_reward_teaches_nothing():
    rollout = routed(0, experts=3)
    outcome = finalize_rollout(DIRECT, "g_g0", rollout.receipt, float("nan"), Staging(rollout.rows))
    assert (outcome.rollout.rejection_reason[:14], outcome.dims) == ("invalid_reward", None)


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
    """Every rollout of up to three calls with up to two carry and two generated tokens each, and every terminal."""
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
    assert {code for code in Code if code.stage is Stage.ROUTES and code.value.shadowed_by} == SHADOWED


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


def test_payloads_of_strategies_are_what_staging_reads():
    fragment = RouteFragment(Tensor.of("int16", [1, 2], (1, 1, 2)), 2, b"null")
    assert route_payload(fragment) == [[[1, 2]]]
