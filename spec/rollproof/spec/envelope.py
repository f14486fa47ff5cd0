"""How a call's routes are encoded: as a one-line string, or as nested lists (section 6).

A route tensor is ``[tokens, layers, top-k]`` of expert ids. Engines hand it over as an *envelope*,

nrlre1:<int8|int16|int32>:<T>x<L>x<K>:<base64 of the row-major little-endian bytes>

or, in older versions, as nested lists of ints. The extras digest covers the envelope as a string, so decision D9: one
value has one encoding, and whatever the encoder would not have written is refused. Envelopes are untrusted: nothing is
decoded before its length has been compared with what the shape requires.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

from rollproof.spec.constants import MAX_EXTRAS_DEPTH
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.tensor import ITEM_SIZES, Tensor
from rollproof.spec.values import expect, fault, refusing

ENVELOPE_MAGIC: Final = "nrlre1"
ENVELOPE_DTYPES: Final = ("int8", "int16", "int32")
LIST_DTYPE: Final = "int16"
"""The dtype in which nested lists are staged."""
ROUTE_RANK: Final = 3
MAX_DIMENSION_DIGITS: Final = 19
"""Digits of 2**63 - 1. A longer number cannot be the dimension of anything, and is never turned into an int."""
INT16_MIN: Final = -(2**15)
INT16_MAX: Final = 2**15 - 1


def decode_routes(payload: Any) -> Tensor:
    """Return the route tensor ``[T, L, K]`` that a call's extras carry, in the dtype in which it is staged.

    ``payload`` is any JSON value. Raises ``Rejected(INVALID_ROUTE_ENVELOPE)`` for every value that is not a
    route tensor, and nothing else. Ids are checked in ``assembly``.
    """
    with refusing(Code.INVALID_ROUTE_ENVELOPE):
        return decode_envelope(payload) if type(payload) is str else decode_lists(payload)


def decode_envelope(envelope: str) -> Tensor:
    """Return the tensor of an envelope; ``ValueError`` names the violated rule."""
    parts = envelope.split(":", 3)
    well_formed = len(parts) == 4 and parts[0] == ENVELOPE_MAGIC
    expect(well_formed, "envelope", envelope, f"{ENVELOPE_MAGIC}:<dtype>:<T>x<L>x<K>:<base64>")
    _, dtype, shape_text, encoded = parts
    expect(dtype in ENVELOPE_DTYPES, "dtype", dtype, " or ".join(ENVELOPE_DTYPES))
    dimensions = shape_text.split("x", ROUTE_RANK)
    expect(len(dimensions) == ROUTE_RANK, "shape", shape_text, f"{ROUTE_RANK} dimensions")
    shape = tuple(dimension(text) for text in dimensions)
    length = base64_length(math.prod(shape) * ITEM_SIZES[dtype])
    expected = f"{length} for {dtype} of shape {list(shape)}"
    expect(len(encoded) == length, "characters of base64", len(encoded), expected)
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ValueError(fault("payload", encoded, "base64")) from None
    canonical = base64.b64encode(data).decode() == encoded
    expect(canonical, "end of payload", encoded[-4:], "canonical base64: its padding, and zeros after the last bit")
    return Tensor(dtype, shape, data)


def dimension(text: str) -> int:
    """Parse a positive decimal in ASCII digits, without sign, space, underscore or leading zero."""
    expect(len(text) <= MAX_DIMENSION_DIGITS, "shape", text, f"a dimension of at most {MAX_DIMENSION_DIGITS} digits")
    expect(set(text) <= set("0123456789") and text[:1] not in ("", "0"), "shape", text, "a positive decimal")
    return int(text)


def base64_length(byte_count: int) -> int:
    """Return how many characters base64 writes for that many bytes, padding included: 4 for every 3 begun."""
    return (byte_count + 2) // 3 * 4


def decode_lists(value: Any) -> Tensor:
    """Return the tensor of nested lists ``[T][L][K]`` of exact ints; ``ValueError`` names the violated rule."""
    expect(type(value) is list and value != [], "routes", value, "an envelope or a non-empty list of tokens")
    ids: list[int] = []
    width: tuple[int, int] | None = None
    for at, token in enumerate(value):
        expect(type(token) is list and token != [], f"routes[{at}]", token, "a non-empty list of layers")
        for depth, layer in enumerate(token):
            where = f"routes[{at}][{depth}]"
            expect(type(layer) is list and layer != [], where, layer, "a non-empty list of expert ids")
            found = len(token), len(layer)
            width = width or found
            expect(found == width, f"{where}: layers, experts", found, f"{list(width)} as for the first token")
            for expert in layer:
                held = type(expert) is int and INT16_MIN <= expert <= INT16_MAX
                expect(held, f"{where}: expert id", expert, "an int (not a bool or float) that int16 holds")
            ids += layer
    assert width is not None
    return Tensor.of(LIST_DTYPE, ids, (len(value), *width))


def encode_routes(routes: Tensor) -> str:
    """Return the envelope of a tensor: ``decode_routes(encode_routes(t)) == t`` and the other way round.

    Raises ``Rejected(INVALID_ROUTE_ENVELOPE)`` for a tensor that has none.
    """
    if routes.dtype not in ENVELOPE_DTYPES:
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, fault("dtype", routes.dtype, " or ".join(ENVELOPE_DTYPES)))
    if len(routes.shape) != ROUTE_RANK or min(routes.shape) < 1:
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, fault("shape", routes.shape, "three dimensions, none of them 0"))
    shape = "x".join(str(size) for size in routes.shape)
    return f"{ENVELOPE_MAGIC}:{routes.dtype}:{shape}:{base64.b64encode(routes.data).decode()}"


def nested_lists(routes: Tensor) -> Any:
    """Return a tensor of any rank as nested lists of its elements; one without dimensions is its element."""
    if 0 in routes.shape or len(routes.shape) > MAX_EXTRAS_DEPTH:
        expected = f"at most {MAX_EXTRAS_DEPTH} dimensions, none of them 0"
        raise Rejected(Code.INVALID_ROUTE_ENVELOPE, fault("shape", routes.shape, expected))
    nested: list[Any] = list(routes.values())
    for size in reversed(routes.shape):
        nested = [nested[at : at + size] for at in range(0, len(nested), size)]
    return nested[0]
