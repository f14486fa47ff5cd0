"""Assembling routes: every token has its own or none, and each rule that a fragment can break."""

from __future__ import annotations

import itertools

import pytest
from attrs import evolve
from cases import HYPOTHESIS, every, refusal
from hypothesis import given
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.routes import (
    ASSEMBLY_BREAKS,
    assemblies,
    broken_assemblies,
    broken_metadata,
)
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.spec.assembly import all_sentinel, check_ids, execute, token_routes
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import RouteFragment, extras_around
from rollproof.spec.plan import encode_plan, fragment_use
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor


def run(whole, **changes):
    arguments = {
        "num_experts": whole.num_experts,
        "allow_repeated_experts": whole.allow_repeated_experts,
        **changes,
    }
    return execute(whole.plan, whole.fragments, whole.dims, whole.canonical_len, **arguments)


@HYPOTHESIS
@given(assemblies())
def test_assembled_tokens_have_their_own_route_or_none(whole):
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
def test_broken_assemblies_give_the_code_of_their_break(code, data):
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


def test_routes_are_not_narrowed_to_int16():
    for expert in (65535, 32768, -2, 2**31 - 1):
        assert refusal(execute_one, Tensor.of("int32", [expert], (1, 1, 1))).code is Code.FRAGMENT_VALUE_RANGE
    assert execute_one(Tensor.of("int32", [32767, -1], (2, 1, 1))).values() == (32767, -1)
    assert refusal(execute_one, Tensor.of("int8", [7], (1, 1, 1)), num_experts=7).code is Code.FRAGMENT_VALUE_RANGE


def test_fragment_rules_are_applied_one_after_another_to_the_whole():
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
        assembled = sum(unrouted + used for unrouted, _, used in itertools.starmap(fragment_use, spans))
        reached.add(total == assembled)
    assert reached == {True}
    invalid = RouteAssemblyPlan("s", (RouteSpan("r/c", 1, 1, 0, 1, "0" * 64),), ("r/c",), 3)
    assert refusal(execute, invalid, {}, (1, 1), 3).code is Code.ASSEMBLED_LENGTH_MISMATCH
    assert refusal(encode_plan, invalid).code is Code.INVALID_ROUTE_PLAN


@every(first=range(-2, 5), second=range(-2, 5), allow_repeated=(False, True))
def test_a_vector_is_routed_or_sentinel(first: int, second: int, allow_repeated: bool) -> bool:
    """A vector is accepted iff it is all sentinel, or has ids below the number of experts, distinct unless allowed."""
    ids = [pick(range(-2, 5), first + 2), pick(range(-2, 5), second + 2)]
    routes = Tensor.of("int16", ids, (1, 1, 2))
    routed = min(ids) >= 0 and max(ids) < 3 and (allow_repeated or ids[0] != ids[1])
    return accepted(check_ids, routes, "r/a", 3, allow_repeated) == (ids == [-1, -1] or routed)


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length, dims", [(1, (1, 1)), (1, (2, 3)), (3, (2, 2)), (4, (1, 3))])
def test_sentinels_fill_every_slot(length: int, dims: tuple[int, int]) -> None:
    routes = all_sentinel(length, dims)
    assert (routes.dtype, routes.shape) == ("int16", (length, *dims))
    assert routes.values() == (-1,) * (length * dims[0] * dims[1])


def test_check_ids_lets_experts_repeat_only_where_allowed() -> None:
    repeated = Tensor.of("int16", [3, 3], (1, 1, 2))
    check_ids(repeated, "r/a", None, allow_repeated_experts=True)
    with pytest.raises(Rejected) as caught:
        check_ids(repeated, "r/a", None, allow_repeated_experts=False)
    assert caught.value.code is Code.FRAGMENT_DUPLICATE_EXPERT


def test_check_ids_without_a_number_of_experts_takes_every_int16() -> None:
    check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", None, allow_repeated_experts=False)
    check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", 2**15, allow_repeated_experts=False)
    with pytest.raises(Rejected):
        check_ids(Tensor.of("int16", [0, 2**15 - 1], (1, 1, 2)), "r/a", 2**15 - 1, allow_repeated_experts=False)
