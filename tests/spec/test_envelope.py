"""The route envelope: one encoding for one value, and nothing else decodes."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from attrs import evolve
from cases import HYPOTHESIS, every, refusal
from hypothesis import given

from rollproof.properties.strategies.route_wire import broken_payloads, odd_payloads, payloads, trailing_bits
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.spec.envelope import ENVELOPE_DTYPES, decode_routes, dimension, encode_routes, nested_lists
from rollproof.spec.extras import RouteFragment
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import Tensor


@HYPOTHESIS
@given(payloads())
def test_encode_routes_has_one_encoding_for_one_value(payload):
    routes = decode_routes(payload)
    if type(payload) is str:
        assert encode_routes(routes) == payload
    else:
        assert routes.dtype == "int16"
        assert nested_lists(routes) == payload
    assert decode_routes(encode_routes(routes)) == routes


@HYPOTHESIS
@given(broken_payloads())
def test_decode_routes_refuses_broken_payloads(payload):
    assert refusal(decode_routes, payload).code is Code.INVALID_ROUTE_ENVELOPE


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_decode_routes_refuses_every_odd_payload(shape):
    valid = RouteFragment(Tensor.of("int16", [-1] * (shape[0] * shape[1] * shape[2]), shape), 1, b"null")
    for payload in odd_payloads(valid):
        assert refusal(decode_routes, payload).code is Code.INVALID_ROUTE_ENVELOPE, payload


@pytest.mark.parametrize("padding", [1, 2])
def test_decode_routes_refuses_trailing_bits(padding):
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
def test_encode_routes_refuses_other_shapes(shape):
    count = Tensor.of("int8", range(4)) if 0 not in shape else Tensor("int8", (0,), b"")
    if shape != ():
        assert refusal(encode_routes, evolve(count, shape=shape)).code is Code.INVALID_ROUTE_ENVELOPE
    else:
        assert refusal(encode_routes, Tensor.of("int8", [1], ())).code is Code.INVALID_ROUTE_ENVELOPE


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "bool"])
def test_encode_routes_refuses_other_dtypes(dtype):
    assert refusal(encode_routes, Tensor.of(dtype, [1], (1, 1, 1))).code is Code.INVALID_ROUTE_ENVELOPE


@every(first=range(8), second=range(9))
def test_a_dimension_has_one_spelling(first: int, second: int) -> bool:
    """A text is a dimension iff it is ASCII digits without a leading zero: no sign, space or underscore either."""
    alphabet = (*"019+-_ ", "\N{ARABIC-INDIC DIGIT ONE}", "")
    text = pick(alphabet, first) + pick(alphabet, second)
    return accepted(dimension, text) == (text in map(str, range(1, 100)))


@every(tokens=range(1, 3), layers=range(1, 3), dtype=range(3))
def test_an_envelope_says_its_shape(tokens: int, layers: int, dtype: int) -> bool:
    """An envelope is read back as the tensor that it was written from, and is as long as its shape requires."""
    shape = pick(range(3), tokens), pick(range(3), layers), 2
    count = shape[0] * shape[1] * shape[2]
    routes = Tensor.of(pick(ENVELOPE_DTYPES, dtype), range(count), shape)
    envelope = encode_routes(routes)
    return decode_routes(envelope) == routes and not accepted(decode_routes, envelope + "AAAA")


@pytest.mark.parametrize("last", "9+/")
def test_decode_routes_requires_unused_base64_bits_to_be_zero(last: str) -> None:
    """The alphabet's order is not that of characters: "+" and "/" come after "9" in one, before it in the other."""
    assert decode_routes("nrlre1:int16:1x1x1:AA8=").values() == (0x0F00,)
    with pytest.raises(Rejected):
        decode_routes(f"nrlre1:int16:1x1x1:AA{last}=")


@pytest.mark.parametrize("expert, held", [(-(2**15) - 1, False), (-(2**15), True), (2**15 - 1, True), (2**15, False)])
def test_decode_routes_takes_lists_of_what_int16_holds(expert: int, held: bool) -> None:
    if held:
        assert decode_routes([[[expert]]]).values() == (expert,)
        return
    with pytest.raises(Rejected) as caught:
        decode_routes([[[expert]]])
    assert caught.value.code is Code.INVALID_ROUTE_ENVELOPE
