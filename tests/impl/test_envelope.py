"""The route envelope in the implementation: the same encoding and the same refusals as the spec."""

from __future__ import annotations

import time
import tracemalloc

import pytest
import torch
from cases import HYPOTHESIS, outcome
from hypothesis import given

from rollproof.impl import envelope
from rollproof.properties.adapters.tensors import from_torch, to_torch
from rollproof.properties.strategies.route_wire import broken_payloads, odd_payloads, payloads
from rollproof.spec.assembly import RouteFragment as SpecFragment
from rollproof.spec.envelope import decode_routes, encode_routes
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor


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
