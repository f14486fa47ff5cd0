"""nemo-gym's route envelope codec and span classification, and where they are known to differ (section 6).

Plans and assembly are not the package's; it offers the codec that the extras digest covers, and the rule by which a
fragment is classified.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable
from typing import Any, Final, TypeGuard

from rollproof.properties.protocol import Adapter, Deviation, Refusal
from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.envelope import INT16_MAX, INT16_MIN, LIST_DTYPE, encode_routes, nested_lists
from rollproof.spec.rejections import Rejected
from rollproof.spec.requests import Accepted, Answer, Area, ClassifySpan, DecodeRoutes, Refused, Request
from rollproof.spec.tensor import Tensor

SHAPE: Final = 2
BASE64: Final = 3
"""Parts of an envelope, between its colons."""


class NemoGymRoutes(Adapter):
    """The part of nemo-gym that is about routes."""

    def decode_routes(self, payload: Any) -> Tensor:
        """Nested values as a tensor: int16 for lists, int64 where that does not hold them."""
        fragment = called("decode_routed_experts", payload)
        ids = [expert for token in fragment.values for layer in token for expert in layer]
        dtype = LIST_DTYPE if fragment.dtype == "legacy-int" else fragment.dtype
        if dtype == LIST_DTYPE and not all(INT16_MIN <= expert <= INT16_MAX for expert in ids):
            dtype = "int64"
        try:
            return Tensor.of(dtype, ids, (len(fragment.values), fragment.num_layers, fragment.topk))
        except Exception as error:
            raise Refusal(f"invalid_route_envelope: no tensor holds its ids ({error})") from None

    def encode_routes(self, routes: Tensor) -> str:
        """The package encodes nested lists, so a tensor without a list form is refused before."""
        try:
            return str(called("encode_routed_experts", nested_lists(routes), dtype=routes.dtype))
        except Rejected as rejected:
            raise Refusal(rejected.reason) from None

    def classify_span(self, carry_len: int, generation_len: int, staged_route_len: int) -> str:
        """From the lengths."""
        return str(
            called(
                "classify_route_span",
                carry_len=carry_len,
                generation_len=generation_len,
                staged_route_len=staged_route_len,
            )
        )


def called(name: str, *arguments: Any, **options: Any) -> Any:
    """A function of the package's route module; its ValueError is a refusal."""
    module = importlib.import_module("nemo_gym.token_id_capture.staging.routes")
    try:
        return getattr(module, name)(*arguments, **options)
    except ValueError as error:
        raise Refusal(f"invalid_route_envelope: {error}") from None


def respelled(part: int) -> Callable[[Request, Answer, Answer], bool]:
    """The envelope spells exactly the tensor that was read from it, in another way, in this of its parts alone."""

    def applies(request: Request, expected: Answer, actual: Answer) -> bool:
        if not isinstance(request, DecodeRoutes) or type(request.payload) is not str:
            return False
        if not isinstance(expected, Refused) or not is_tensor(actual):
            return False
        written, canonical = request.payload.split(":", 3), encode_routes(actual.value).split(":")
        differing = [index for index, (left, right) in enumerate(zip(written, canonical, strict=True)) if left != right]
        if part == SHAPE:
            return differing == [part] and tuple(map(int, written[part].split("x"))) == actual.value.shape
        return differing == [part] and base64.b64decode(written[part], validate=True) == actual.value.data

    return applies


def is_tensor(actual: Answer) -> TypeGuard[Accepted]:
    """Whether routes were read."""
    return isinstance(actual, Accepted) and isinstance(actual.value, Tensor)


def beyond_int16(request: Request, expected: Answer, actual: Answer) -> bool:
    """Lists that hold an id which no int16 column can."""
    return (
        isinstance(request, DecodeRoutes)
        and type(request.payload) is list
        and isinstance(expected, Refused)
        and is_tensor(actual)
        and actual.value.dtype == "int64"
        and nested_lists(actual.value) == request.payload
    )


def beyond_63_bits(request: Request, expected: Answer, actual: Answer) -> bool:
    """A staged length that no int64 column holds: nothing that a call has so many tokens of, so a tail or nothing."""
    return (
        isinstance(request, ClassifySpan)
        and isinstance(expected, Refused)
        and request.staged_route_len >= INT63_LIMIT > request.carry_len + request.generation_len
        and actual == Accepted("tail" if request.generation_len else "sentinel")
    )


ROUTE_DEVIATIONS: Final = (
    Deviation(
        "D9-shape",
        Area.ROUTES,
        "6",
        "A shape has many spellings: signs, spaces, underscores, leading zeros, and digits of any script.",
        respelled(SHAPE),
    ),
    Deviation(
        "D9-base64",
        Area.ROUTES,
        "6",
        "The same bytes have many spellings: bits after the last byte of base64 are ignored.",
        respelled(BASE64),
    ),
    Deviation(
        "list-id-range",
        Area.ROUTES,
        "6",
        "Nested lists may hold ids that no int16 column can; they would be narrowed when they are staged.",
        beyond_int16,
    ),
    Deviation(
        "D1-lengths",
        Area.ROUTES,
        "6",
        "A length of 64 bits is classified; no int64 column holds it.",
        beyond_63_bits,
    ),
)
