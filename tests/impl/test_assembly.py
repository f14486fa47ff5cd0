"""Assembling routes and their digest, from tensors and without doing anything per token."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
import torch
from attrs import evolve
from cases import HYPOTHESIS, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl import assembly
from rollproof.impl.assembly import RouteFragment, routed_extras_digest
from rollproof.properties.adapters.tensors import from_torch, to_torch
from rollproof.properties.strategies.rollouts.routes import (
    ASSEMBLY_BREAKS,
    assemblies,
    broken_assemblies,
    broken_metadata,
)
from rollproof.spec.assembly import RouteFragment as SpecFragment
from rollproof.spec.assembly import execute as spec_execute
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import extras_around
from rollproof.spec.plan import fragment_use
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor

METADATA = b'{"a":[1.5,null],"z":"\xc3\xa9"}'


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
    """Hash everything at once, or a few bytes at a time."""
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
    if any(span.staged_route_len for span in whole.plan.spans if fragment_use(*_lengths(span))[2]):
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
    """2 MiB of ids, 9 to 18 MiB as lists; only chunks are in memory at one time."""
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


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("metadata", [b"null", b'{"a": 1, "z": [true]}'])
def test_lists_of_any_rank_digest_as_extras_do(shape: tuple[int, ...], metadata: bytes) -> None:
    """The rank is looked at later: a fragment without dimensions is one integer in the extras."""
    routes = torch.arange(-1, 5, dtype=torch.int16)[: math.prod(shape)].reshape(shape)
    extras = {**(json.loads(metadata) or {}), "routed_experts": routes.tolist()}
    assert routed_extras_digest(RouteFragment(routes, 2, metadata)) == extras_digest(extras)


def test_a_token_of_many_experts_is_hashed_in_parts() -> None:
    """2.3 MB as lists for one token, which is more than a chunk."""
    routes = torch.zeros((1, 2**10, 2**8), dtype=torch.int16)
    assert routed_extras_digest(RouteFragment(routes, 2, b"null")) == extras_digest({"routed_experts": routes.tolist()})
    tracemalloc.start()
    routed_extras_digest(RouteFragment(routes, 2, b"null"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("encoding", [-1, 0, 3])
def test_only_what_is_encoded_digests(encoding: int) -> None:
    routes = torch.zeros((1, 1, 1), dtype=torch.int16)
    with pytest.raises(ValueError, match="encoding"):
        routed_extras_digest(RouteFragment(routes, encoding, b"null"))


def test_extras_around_routes_are_nested_as_deep_as_without() -> None:
    routes = torch.zeros((1, 1, 1), dtype=torch.int16)
    deepest = b'{"a":' + b"[" * 63 + b"]" * 63 + b"}"
    assert routed_extras_digest(RouteFragment(routes, 2, deepest)) == extras_digest(
        {**json.loads(deepest), "routed_experts": [[[0]]]}
    )
    with pytest.raises(ValueError, match="at most 64 levels"):
        routed_extras_digest(RouteFragment(routes, 2, deepest.replace(b"[]", b"[[]]")))
