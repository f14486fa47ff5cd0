"""nemo-gym's route envelope codec and span classification, and where they are known to differ (section 6).

The package has neither plans nor assembly; it offers the codec that the extras digest covers, and the rule by which a
fragment is classified.
"""

from __future__ import annotations

import base64
import importlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from rollproof.properties.adapters.protocol import Adapter, Deviation, Refusal
from rollproof.properties.nemo_gym.examples import examples_of
from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.envelope import INT16_MAX, INT16_MIN, LIST_DTYPE, encode_routes, nested_lists
from rollproof.spec.judge.requests import Accepted, Answer, Area, ClassifySpan, DecodeRoutes, Refused, Request
from rollproof.spec.rejections import Rejected
from rollproof.spec.tensor import Tensor

DTYPE: Final = 1
SHAPE: Final = 2
BASE64: Final = 3
"""Parts of an envelope, between its colons."""


class NemoGymRoutes(Adapter):
    """The part of nemo-gym for routes."""

    def decode_routes(self, payload: Any) -> Tensor:
        """Return nested values as a tensor: int16 for lists, int64 where that does not hold them."""
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
        """Encode as nested lists, which the package requires; a tensor without a list form is refused before."""
        try:
            return str(called("encode_routed_experts", nested_lists(routes), dtype=routes.dtype))
        except Rejected as rejected:
            raise Refusal(rejected.reason) from None

    def classify_span(self, carry_len: int, generation_len: int, staged_route_len: int) -> str:
        """Classify a span from the lengths."""
        return str(
            called(
                "classify_route_span",
                carry_len=carry_len,
                generation_len=generation_len,
                staged_route_len=staged_route_len,
            )
        )


def called(name: str, *arguments: Any, **options: Any) -> Any:
    """Return a function of the package's route module; its ValueError is a refusal."""
    module = importlib.import_module("nemo_gym.token_id_capture.staging.routes")
    try:
        return getattr(module, name)(*arguments, **options)
    except ValueError as error:
        raise Refusal(f"invalid_route_envelope: {error}") from None


def respelled(part: int) -> Callable[[Request, Answer], Iterator[Answer]]:
    """Return the answers to an envelope of which only this part is spelled in another way than the contract's."""

    def answers(request: Request, expected: Answer) -> Iterator[Answer]:
        if not isinstance(request, DecodeRoutes) or type(request.payload) is not str:
            return
        if not isinstance(expected, Refused):
            return
        written = request.payload.split(":", 3)
        try:
            shape = tuple(map(int, written[SHAPE].split("x")))
            tensor = Tensor(written[DTYPE], shape, base64.b64decode(written[BASE64], validate=True))
            canonical = encode_routes(tensor).split(":", 3)
        except (IndexError, ValueError, Rejected):
            return
        if [index for index, spelling in enumerate(written) if spelling != canonical[index]] == [part]:
            yield Accepted(tensor)

    return answers


def beyond_int16(request: Request, expected: Answer) -> Iterator[Answer]:
    """Yield the tensor, as int64, of lists with an id that no int16 column can hold."""
    if not isinstance(request, DecodeRoutes) or type(request.payload) is not list or not isinstance(expected, Refused):
        return
    try:
        ids = [expert for token in request.payload for layer in token for expert in layer]
        shape = (len(request.payload), len(request.payload[0]), len(request.payload[0][0]))
        tensor = Tensor.of("int64", ids, shape)
    except (IndexError, TypeError, ValueError, OverflowError, struct.error):
        return
    if nested_lists(tensor) == request.payload and not all(INT16_MIN <= expert <= INT16_MAX for expert in ids):
        yield Accepted(tensor)


def beyond_63_bits(request: Request, expected: Answer) -> Iterator[Answer]:
    """Yield the class of a staged length that no int64 column holds: a tail or nothing, because no call is so long."""
    if (
        isinstance(request, ClassifySpan)
        and isinstance(expected, Refused)
        and request.staged_route_len >= INT63_LIMIT > request.carry_len + request.generation_len
    ):
        yield Accepted("tail" if request.generation_len else "sentinel")


ROUTE_DEVIATIONS: Final = (
    Deviation(
        "D9-shape",
        Area.ROUTES,
        "6",
        "A shape has many spellings: signs, spaces, underscores, leading zeros, and digits of any script.",
        respelled(SHAPE),
        examples_of("D9-shape", Area.ROUTES),
    ),
    Deviation(
        "D9-base64",
        Area.ROUTES,
        "6",
        "The same bytes have many spellings: bits after the last byte of base64 are ignored.",
        respelled(BASE64),
        examples_of("D9-base64", Area.ROUTES),
    ),
    Deviation(
        "list-id-range",
        Area.ROUTES,
        "6",
        "Nested lists may hold ids that no int16 column can; they would be narrowed when they are staged.",
        beyond_int16,
        examples_of("list-id-range", Area.ROUTES),
    ),
    Deviation(
        "D1-lengths",
        Area.ROUTES,
        "6",
        "A length of 64 bits is classified; no int64 column holds it.",
        beyond_63_bits,
        examples_of("D1-lengths", Area.ROUTES),
    ),
)
