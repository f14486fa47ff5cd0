"""Section 6 in the implementation: the same answers as the spec, from tensors, without doing anything per token."""

from __future__ import annotations

import json
import time
import tracemalloc

import numpy as np
import pytest
import torch
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack

from rollproof.impl import assembly, envelope, plan, routes
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staging import staged_row
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.asking import ask
from rollproof.properties.recording import RecordingPlane
from rollproof.properties.strategies.route_wire import (
    PLAN_BREAKS,
    broken_payloads,
    broken_plans,
    odd_payloads,
    payloads,
    plans,
)
from rollproof.properties.strategies.routed import (
    ROLLOUT_BREAKS,
    RoutedCall,
    broken_routed_rollouts,
    routed_rollouts,
    stage,
)
from rollproof.properties.strategies.routed_histories import routed_histories
from rollproof.properties.strategies.routes import ASSEMBLY_BREAKS, assemblies, broken_assemblies, broken_metadata
from rollproof.properties.tensors import from_torch, row_fields, to_torch
from rollproof.spec.assembly import RouteFragment as SpecFragment
from rollproof.spec.assembly import execute as spec_execute
from rollproof.spec.assembly import extras_around
from rollproof.spec.constants import ROUTED_EXPERTS
from rollproof.spec.digest import extras_digest
from rollproof.spec.envelope import decode_routes, encode_routes
from rollproof.spec.group import finalize_group
from rollproof.spec.invariants import CATALOGUE
from rollproof.spec.oracle import answer
from rollproof.spec.plan import classify_span, encode_plan, encoded_plan_size, sentinel_and_used
from rollproof.spec.plane import NO_FAULTS, Faults, Get, Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.requests import Accepted, FinalizeGroups, FinalizeRollout, GroupStep
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.routes import execute_published_plan
from rollproof.spec.tensor import Tensor

HYPOTHESIS = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
METADATA = b'{"a":[1.5,null],"z":"\xc3\xa9"}'
DIRECT = ReassemblerConfig(router_replay_enabled=True)
DEFERRED = ReassemblerConfig(router_replay_enabled=True, defer_routed_experts_to_policy=True)


def outcome(function, *arguments, **keywords):
    """The value, or the code of the rejection; nothing else may come out."""
    try:
        return function(*arguments, **keywords)
    except Rejected as rejected:
        return rejected.code


# ── codec and plans ─────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(payloads() | broken_payloads())
def test_payloads_decode_alike(payload):
    expected, found = outcome(decode_routes, payload), outcome(envelope.decode_routes, payload)
    if isinstance(found, torch.Tensor):
        found = from_torch(found)
        assert envelope.encode_routes(to_torch(found)) == encode_routes(found)
    assert found == expected


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_every_odd_payload_is_refused(shape):
    valid = SpecFragment(Tensor.of("int16", [-1] * (shape[0] * shape[1] * shape[2]), shape), 1, b"null")
    for payload in odd_payloads(valid):
        assert outcome(envelope.decode_routes, payload) is Code.INVALID_ROUTE_ENVELOPE, payload


@pytest.mark.parametrize(
    "routes_",
    [torch.zeros((1, 1, 1)), torch.zeros((1, 1, 1), dtype=torch.uint8)]
    + [torch.zeros(shape, dtype=torch.int8) for shape in [(), (1,), (1, 1), (1, 0, 1), (1, 1, 1, 1)]],
    ids=lambda routes_: f"{routes_.dtype}{list(routes_.shape)}",
)
def test_other_tensors_have_no_envelope(routes_):
    assert outcome(envelope.encode_routes, routes_) is Code.INVALID_ROUTE_ENVELOPE


@pytest.mark.parametrize("bytes_over", range(6))
def test_every_length_of_the_last_group(bytes_over):
    ids = torch.arange(100 + bytes_over, dtype=torch.int8).reshape(-1, 1, 1)
    encoded = envelope.encode_routes(ids)
    assert encoded == encode_routes(from_torch(ids))
    assert torch.equal(envelope.decode_routes(encoded), ids)


def test_strided_tensors_are_encoded_as_they_read():
    ids = torch.arange(24, dtype=torch.int32).reshape(4, 3, 2).transpose(0, 1)[:, ::2]
    assert envelope.encode_routes(ids) == encode_routes(from_torch(ids))


@pytest.mark.parametrize(
    "hostile",
    [
        "nrlre1:int16:99999999999x1x1:AAAA",
        f"nrlre1:int32:{'x'.join(['9' * 19] * 3)}:AAAA",
        "nrlre1:int8:1024x1024x1024:AAAA",
        f"nrlre1:int8:{'x'.join(['1'] * 10_000)}:AAAA",
        f"nrlre1:int8:{'9' * 10_000}x1x1:AAAA",
        f"nrlre1:int8:1x1x{'0' * 10_000}:AAAA",
        "nrlre1:int8:1024x1024x1024:" + "A" * 1000,
    ],
)
def test_hostile_envelopes_cost_nothing(hostile):
    assert outcome(envelope.decode_routes, hostile) is Code.INVALID_ROUTE_ENVELOPE
    tracemalloc.start()
    outcome(envelope.decode_routes, hostile)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        outcome(envelope.decode_routes, hostile)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.01


@HYPOTHESIS
@given(plans())
def test_plans_travel_alike(value):
    encoded = plan.encode_plan(value)
    assert encoded == encode_plan(value)
    assert plan.encoded_plan_size(encoded) == encoded_plan_size(value)
    assert plan.decode_plan(json.loads(json.dumps(encoded))) == value
    for span in value.spans:
        used = plan.use_of(span)
        lengths = span.carry_len, span.generation_len, span.staged_route_len
        assert (used.unrouted, used.first, used.rows) == sentinel_and_used(*lengths)
        assert plan.classify(*lengths) == classify_span(*lengths)


@pytest.mark.parametrize("kind", PLAN_BREAKS)
@settings(HYPOTHESIS, max_examples=20)
@given(data=st.data())
def test_broken_plans_are_refused(kind, data):
    assert outcome(plan.decode_plan, data.draw(broken_plans(kind))) is Code.INVALID_ROUTE_PLAN


@pytest.mark.parametrize("lengths", [(-1, 1, 1), (0, True, 1), (0, 1, 1.0), (2**63, 0, 0)])
def test_classification_takes_lengths_only(lengths):
    with pytest.raises(ValueError, match="lengths"):
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


# ── assembly ────────────────────────────────────────────────────────────────────────────────────────────────────────


def ours(fragment):
    return assembly.RouteFragment(to_torch(fragment.routes), fragment.encoding, fragment.extras_metadata_json)


def run_both(whole, dims=...):
    arguments = whole.dims if dims is ... else dims, whole.canonical_len
    limits = {"num_experts": whole.num_experts, "allow_repeated_experts": whole.allow_repeated_experts}
    expected = outcome(spec_execute, whole.plan, whole.fragments, *arguments, **limits)
    found = outcome(
        assembly.execute, whole.plan, {key: ours(item) for key, item in whole.fragments.items()}, *arguments, **limits
    )
    return expected, from_torch(found) if isinstance(found, torch.Tensor) else found


@pytest.fixture(params=["large", "small"])
def chunks(request, monkeypatch):
    """Everything at once, or a few bytes at a time."""
    if request.param == "small":
        monkeypatch.setattr(assembly, "_HASH_CHUNK", 21)
        monkeypatch.setattr(assembly, "_HOST_CHUNK", 4)
        monkeypatch.setattr(assembly, "_FEW_EXPERTS", 1)


@pytest.mark.usefixtures("chunks")
@HYPOTHESIS
@given(assemblies())
def test_assemblies_agree(whole):
    expected, found = run_both(whole)
    assert found == expected
    assert isinstance(expected, Tensor)
    if any(span.staged_route_len for span in whole.plan.spans if sentinel_and_used(*_lengths(span))[2]):
        assert run_both(whole, dims=None) == (expected, expected)


def _lengths(span):
    return span.carry_len, span.generation_len, span.staged_route_len


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("code", ASSEMBLY_BREAKS, ids=lambda code: code.code)
@settings(HYPOTHESIS, max_examples=20)
@given(data=st.data())
def test_breaks_agree(code, data):
    assert run_both(data.draw(broken_assemblies(code))) == (code, code)


def test_unknown_dimensions_need_a_fragment():
    with pytest.raises(ValueError, match="unknown"):
        assembly.execute(RouteAssemblyPlan("s", (), (), 2), {}, None, 2)


def test_the_guard_behind_the_plan():
    """A plan that was not validated cannot make a row of another length."""
    invalid = RouteAssemblyPlan("s", (RouteSpan("r/c", 1, 1, 0, 1, "0" * 64),), ("r/c",), 3)
    assert outcome(assembly.execute, invalid, {}, (1, 1), 3) is Code.ASSEMBLED_LENGTH_MISMATCH


def one_fragment(routes, encoding):
    spec = SpecFragment(from_torch(routes), encoding, METADATA)
    tokens = routes.shape[0]
    span = RouteSpan("r/c", 0, tokens, tokens, 1, extras_digest(extras_around(spec)))
    return RouteAssemblyPlan("s", (span,), ("r/c",), tokens), {"r/c": ours(spec)}


@pytest.mark.parametrize("encoding", [1, 2])
@pytest.mark.parametrize("metadata", broken_metadata(METADATA), ids=lambda metadata: metadata[:20].decode("latin-1"))
def test_broken_metadata_is_no_commitment(metadata, encoding):
    whole, fragments = one_fragment(torch.zeros((1, 1, 1), dtype=torch.int16), encoding)
    assert outcome(assembly.execute, whole, fragments, None, 1).tolist() == [[[0]]]
    broken = {"r/c": evolve(fragments["r/c"], extras_metadata_json=metadata)}
    assert outcome(assembly.execute, whole, broken, None, 1) is Code.FRAGMENT_INTEGRITY


@pytest.mark.parametrize("encoding", [1, 2])
@pytest.mark.parametrize("shape", [(5000, 3, 4), (3, 1, 30_000), (2, 2000, 20)])
def test_large_fragments_hash_alike(shape, encoding):
    """Several chunks, one token larger than a chunk, and a top-k beyond the comparison of pairs."""
    generator = np.random.default_rng(0)
    ids = np.argsort(generator.random(shape), axis=-1).astype(np.int16)
    ids[1, 0] = -1
    routes = torch.from_numpy(ids)
    whole, fragments = one_fragment(routes, encoding)
    assert torch.equal(assembly.execute(whole, fragments, shape[1:], shape[0]), routes)
    ids[-1, -1, -1] = ids[-1, -1, 0]
    whole, fragments = one_fragment(torch.from_numpy(ids), encoding)
    assert outcome(assembly.execute, whole, fragments, shape[1:], shape[0]) is Code.FRAGMENT_DUPLICATE_EXPERT


def test_the_golden_value():
    fragment = assembly.RouteFragment(torch.tensor([[[1, 2]], [[3, 4]]], dtype=torch.int16), 2, b"null")
    golden = "032024e899456be6e9a78c6d0399c5112d2ca7fa18d4ea9cf0d8cb7d0094f3a3"
    assert assembly.routed_extras_digest(fragment) == golden


@pytest.mark.parametrize("encoding", [1, 2])
def test_hashing_keeps_no_copy(encoding):
    """2 MiB of ids, 9 to 18 MiB as lists; what lies in memory at one time are chunks."""
    fragment = assembly.RouteFragment(torch.zeros((2**16, 4, 4), dtype=torch.int16), encoding, b"null")
    assembly.routed_extras_digest(fragment)
    tracemalloc.start()
    assembly.routed_extras_digest(fragment)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_strided_and_offset_fragments():
    """Rows of a jagged column are views; so may be what another data plane answers."""
    base = torch.arange(48, dtype=torch.int16).reshape(2, 4, 6)
    for view in (base.transpose(0, 1), base[1:], base[:, ::2], base[..., 1::2]):
        for encoding in (1, 2):
            whole, fragments = one_fragment(view, encoding)
            fragments = {"r/c": evolve(fragments["r/c"], routes=view)}
            assert torch.equal(assembly.execute(whole, fragments, None, len(view)), view)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("encoding", [1, 2])
def test_fragments_on_a_device_stay_there(encoding):
    ids = np.argsort(np.random.default_rng(0).random((4096, 4, 8)), axis=-1).astype(np.int16)
    whole, fragments = one_fragment(torch.from_numpy(ids), encoding)
    there = {"r/c": evolve(fragments["r/c"], routes=fragments["r/c"].routes.cuda())}
    row = assembly.execute(whole, there, None, len(ids))
    assert row.is_cuda
    assert torch.equal(row.cpu(), assembly.execute(whole, fragments, None, len(ids)))
    ids[7, 1, 3] = ids[7, 1, 2]
    whole, fragments = one_fragment(torch.from_numpy(ids), encoding)
    there = {"r/c": evolve(fragments["r/c"], routes=fragments["r/c"].routes.cuda())}
    assert outcome(assembly.execute, whole, there, None, len(ids)) is Code.FRAGMENT_DUPLICATE_EXPERT


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
        routes.staged_columns({ROUTED_EXPERTS: payload}, 1)


# ── rollouts and groups ─────────────────────────────────────────────────────────────────────────────────────────────


def agree(request):
    """Every invariant that covers the request holds of our answer."""
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
    """An int where lists belong has a digest, and a column of one element: it is no fragment of three dimensions."""
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
    """Answers the route column with something that is no tensor."""

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
    for key, row in rollout.rows.items():
        made.put_samples([key], "staging", row_fields(dict(row)), [{}])
    reassembler = RolloutReassembler(
        made, partition_id="t", staging_partition="staging", pad_token_id=0, max_seq_len=8, router_replay_enabled=True
    )
    assert reassembler.finalize_rollout("g_g0", rollout.receipt, reward=1.0).rejection_reason.startswith(reason)


@st.composite
def groups(draw):
    """Rollouts with and without routes, of one model or of several, some of them broken, some without a receipt."""
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
    """A broken rollout under another id: its receipt names the old one, which is one more way to be broken."""
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
    for key, row in rows.items():
        plane.put_samples([key], "staging", row_fields(dict(row)), [{}])
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


# ── the policy's side ───────────────────────────────────────────────────────────────────────────────────────────────


def recorded(rows, faults=NO_FAULTS):
    return RecordingPlane.over(MemoryDataPlane(), Staging(rows, faults), "staging")


@st.composite
def published_batches(draw):
    """Published plans and the staged rows of several rollouts, some of them forged; one (L, K)."""
    plans_, lengths, rows = [], [], {}
    for index in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            rollout = draw(routed_rollouts(rollout_id=f"g_g{index}", dims=(1, 2)))
        else:
            reason = draw(st.sampled_from([name for name in ROLLOUT_BREAKS if name.startswith("route_assembly:")]))
            rollout = draw(broken_routed_rollouts(reason))
            if rollout.dims != (1, 2) or rollout.rollout_id in {key.partition("/")[0] for key in rows}:
                continue
        finalized = finalize_rollout(DEFERRED, rollout.rollout_id, rollout.receipt, 1.0, Staging(rollout.rows))
        if finalized.rollout.valid:
            rows |= rollout.rows
            plans_.append(encode_plan(finalized.rollout.route_plan))
            lengths.append(len(finalized.rollout.token_ids))
    if draw(st.booleans()):
        plans_.append(draw(st.sampled_from([None, {"schema_version": 3}, 7])))
        lengths.append(draw(st.integers(0, 3)))
    lost = draw(st.sampled_from([None, *sorted(rows)]))
    return plans_, lengths, {key: row for key, row in rows.items() if key != lost}


@settings(HYPOTHESIS, max_examples=100)
@given(published_batches(), st.booleans())
def test_published_plans_replay_alike(batch, padded):
    published, lengths, rows = batch
    expected = [
        execute_published_plan(plan_, rows, (1, 2), length) for plan_, length in zip(published, lengths, strict=True)
    ]
    executor = RoutePlanExecutor(recorded(rows), dims=(1, 2))
    width = max(lengths, default=0) + 1 if padded else None
    replayed = executor.replay(published, lengths, padded_length=width)
    assert replayed.failures == [row.failure for row in expected]
    assert dict(executor.failures) == {
        code: replayed.failures.count(code) for code in set(replayed.failures) if code is not None
    }
    for index, (row, length) in enumerate(zip(expected, lengths, strict=True)):
        found = replayed.routes[index] if padded else replayed.routes.unbind()[index]
        assert from_torch(found[:length]) == row.routes
        assert (found[length:] == -1).all()


def two_routed(**changes):
    rollout = stage(
        "g_g0",
        [
            RoutedCall("c0", None, 1, 1, {ROUTED_EXPERTS: [[[0, 1]], [[2, 3]]]}),
            RoutedCall("c1", "c0", 0, 1, {ROUTED_EXPERTS: "nrlre1:int8:1x1x2:BAU="}),
        ],
        "c1",
    )
    value = finalize_rollout(DEFERRED, "g_g0", rollout.receipt, 1.0, Staging(rollout.rows)).rollout
    return rollout, encode_plan(value.route_plan), len(value.token_ids)


def test_one_read_serves_a_whole_batch():
    rollout, published, length = two_routed()
    plane = recorded(rollout.rows)
    replayed = RoutePlanExecutor(plane, dims=(1, 2)).replay([published] * 3, [length] * 3, padded_length=4)
    assert len(plane.effects) == 1
    assert replayed.routes[2].tolist() == [[[0, 1]], [[2, 3]], [[4, 5]], [[-1, -1]]]
    assert replayed.failures == [None] * 3


def test_deferred_reads_no_route_bytes_before():
    rollout, _, _ = two_routed()
    found = ask(Ours(), finalize(DEFERRED, rollout)).value
    assert all(ROUTED_EXPERTS not in effect.columns for effect in found.effects if isinstance(effect, Get))


def test_an_outage_is_no_failed_assembly():
    rollout, published, length = two_routed()
    plane = recorded(rollout.rows, Faults(failing_get=0))
    with pytest.raises((ConnectionError, TimeoutError, RuntimeError, OSError), match="injected"):
        RoutePlanExecutor(plane, dims=(1, 2)).replay([published], [length])


def test_arguments_of_replay():
    _, published, length = two_routed()
    executor = RoutePlanExecutor(MemoryDataPlane(), dims=(1, 2))
    with pytest.raises(ValueError, match="2 rows"):
        executor.replay([published], [length, 1])
    with pytest.raises(ValueError, match="does not fit"):
        executor.replay([published], [length], padded_length=length - 1)
    empty = executor.replay([], [])
    assert (empty.failures, empty.routes.shape[0]) == ([], 0)


def test_the_same_group_direct_and_deferred():
    """Deferred execution equals direct execution, bit for bit, padding and placeholders included."""
    rollout, _, _ = two_routed()
    request = GroupRequest("g", ("g_g0", "g_g1"), (rollout.receipt, None), (1.0, 1.0), (False, False))
    direct = finalize_group(DIRECT, request, Staging(rollout.rows))
    deferred = finalize_group(DEFERRED, request, Staging(rollout.rows))
    executor = RoutePlanExecutor(recorded(rollout.rows), dims=(1, 2))
    replayed = executor.replay([row.tags["route_assembly_plan"] for row in deferred.rows], [3, 1])
    assert [from_torch(row) for row in replayed.routes.unbind()] == [
        row.columns["routed_experts"] for row in direct.rows
    ]
