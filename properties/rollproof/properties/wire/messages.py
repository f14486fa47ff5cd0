"""The protocol ``rollproof-oracle-1``: what a line says. One request per line, one answer per line, in order.

    {"id": 1, "operation": "prefix_digest", "token_ids": [1, 2]}
    {"id": 1, "accepted": "…"}

An operation is a kind of request and takes its fields. docs/protocol.md describes all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

from attrs import frozen
from cattrs import Converter, transform_error
from cattrs.strategies import configure_tagged_union

from rollproof.properties.errors import message_of
from rollproof.properties.wire.bounds import TooDeep, TooLarge, check_size, nesting, parse_json
from rollproof.properties.wire.codec import make_converter
from rollproof.properties.wire.converter import (
    MAX_NESTING,
    NotCarried,
    WireError,
    decode,
    decode_float,
    encode,
)
from rollproof.properties.wire.converter import encode_float as encode_number
from rollproof.spec.judge.requests import KIND_OF, KINDS, Accepted, Answer, Crashed, Refused, Request
from rollproof.spec.plane import Effect

PROTOCOL: Final = "rollproof-oracle-1"
DESCRIBE: Final = "describe"
"""The operation that asks what is offered."""
RESERVED: Final = ("id", "operation", "protocol")
"""Keys of a request line that are not fields of its operation."""

OPERATIONS: Final = {kind.request: kind.method for kind in KINDS if not kind.measured}
"""The operation of every kind of request that the wire carries."""
REQUESTS: Final = {operation: request for request, operation in OPERATIONS.items()}
"""The kind of request of every operation."""

FAILED: Final = "crashed"
ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
ERROR: Final = "error"


class Mistake(WireError):
    """A line that cannot be answered. ``code`` says why, ``id`` is the line's where it could be read."""

    def __init__(self, code: str, message: str, id: Any = None) -> None:
        self.code = code
        self.id = id
        super().__init__(message)


@frozen
class Description:
    """What a program offers: its answer to ``describe``."""

    name: str
    areas: tuple[str, ...]
    operations: tuple[str, ...]
    protocol: str = PROTOCOL
    policies: tuple[str, ...] = ()
    """Choices in the portable areas, by the names of ``rollproof.spec.portable.Policy``."""


def _is_set(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is frozenset


def _converter() -> Converter:
    converter = make_converter(encode, decode, encode_number, decode_float)
    converter.register_unstructure_hook_func(_is_set, sorted)
    configure_tagged_union(Effect, converter, tag_name="effect", tag_generator=lambda kind: kind.__name__.lower())
    return converter


CONVERTER: Final = _converter()


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def request_object(request: Request, id: Any = None) -> dict[str, Any]:
    """Return a realized request as the object of one line. Raises ``NotCarried``."""
    if type(request) not in OPERATIONS:
        raise NotCarried(f"a {type(request).__name__} is measured inside the process")
    content = {"operation": OPERATIONS[type(request)], **CONVERTER.unstructure(request)}
    if id is not None:
        content = {"id": id, **content}
    if nesting(content) > MAX_NESTING:
        raise NotCarried(f"nested more than {MAX_NESTING} deep")
    return content


def read_line(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line. Raises ``Mistake``."""
    try:
        content = parse_json(line.decode("utf-8"), parse_constant=_no_constant, parse_float=_finite)
    except TooDeep:
        raise Mistake("too_deep", f"nested more than {MAX_NESTING} deep") from None
    except TooLarge as error:
        raise Mistake("too_large", str(error)) from None
    except ValueError as error:
        raise Mistake("bad_json", f"not a line of JSON: {error}") from None
    if type(content) is not dict:
        raise Mistake("bad_json", f"a {type(content).__name__}, expected an object")
    id = content.get("id")
    if nesting(content) > MAX_NESTING:
        raise Mistake("too_deep", f"nested more than {MAX_NESTING} deep", id if nesting(id) == 0 else None)
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is beyond float64")
    return value


def read_request(content: Mapping[str, Any]) -> Request:
    """Return the request in a line's object. Raises ``Mistake``."""
    id = content.get("id")
    kind = REQUESTS.get(operation_of(content))
    if kind is None:
        raise Mistake("unknown_operation", f"operation {content['operation']!r}: there are {', '.join(REQUESTS)}", id)
    fields = {name: value for name, value in content.items() if name not in RESERVED}
    try:
        request: Request = CONVERTER.structure(fields, kind)
    except Exception as error:
        raise Mistake("bad_request", "; ".join(complaints(error)), id) from error
    try:
        check_size(request)
    except TooLarge as error:
        raise Mistake("too_large", str(error), id) from None
    return request


def operation_of(content: Mapping[str, Any]) -> str:
    """Return the operation that a line names, if its protocol is this one. Raises ``Mistake``."""
    id, operation = content.get("id"), content.get("operation")
    if content.get("protocol", PROTOCOL) != PROTOCOL:
        raise Mistake("unsupported_protocol", f"protocol {content['protocol']!r}, expected {PROTOCOL!r}", id)
    if type(operation) is not str:
        raise Mistake("bad_request", "operation: expected the name of one", id)
    return operation


def complaints(error: Exception) -> list[str]:
    """Return what is wrong with a structure, one short string per place."""
    return [f"{text:.300}" for text in transform_error(error, format_exception=_one_line)]


def _one_line(error: BaseException, _: type | None) -> str:
    if isinstance(error, KeyError):
        return f"required field {error.args[0]!r} missing"
    return f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_object(request: Request, answer: Answer) -> dict[str, Any]:
    """Return an answer as an object. A value that is not of the request's answer type counts as a crash."""
    match answer:
        case Accepted(value):
            try:
                return {ACCEPTED: CONVERTER.unstructure(value, KIND_OF[type(request)].answer)}
            except Exception as error:
                wanted = type_name(KIND_OF[type(request)].answer)
                message = as_utf8(f"a value that is not of type {wanted}: {message_of(error)}"[:300])
                return {FAILED: {"error": type(error).__name__, "message": message}}
        case Refused(reason):
            return {REFUSED: encode(reason)}
        case Crashed(error, message):
            return {FAILED: {"error": error, "message": as_utf8(message)}}


def read_answer(request: Request, content: Mapping[str, Any]) -> Answer:
    """Return the answer in an object, for a request. Raises ``WireError``."""
    names = [name for name in (ACCEPTED, REFUSED, FAILED, ERROR) if name in content]
    if len(names) != 1:
        raise WireError(f"got {', '.join(content) or 'nothing'}; expected one of accepted, refused, crashed, error")
    value = content[names[0]]
    try:
        match names[0]:
            case "accepted":
                return Accepted(CONVERTER.structure(value, KIND_OF[type(request)].answer))
            case "refused" if type(reason := decode(value)) is str:
                return Refused(reason)
            case "crashed":
                return Crashed(str(value["error"]), str(value["message"]))
            case "error":
                return Crashed(f"error {value['code']}", str(value["message"]))
    except Exception as error:
        raise WireError(f"{names[0]}: {'; '.join(complaints(error))}") from error
    raise WireError(f"{names[0]}: expected a string")


def type_name(kind: Any) -> str:
    """Return a type's name for a message."""
    return str(getattr(kind, "__name__", kind)) if not get_args(kind) else str(kind)


def as_utf8(text: str) -> str:
    """Return a string without lone surrogates, which not every reader of JSON takes."""
    return text.encode("utf-8", "backslashreplace").decode()
