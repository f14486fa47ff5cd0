"""JSON Schemas of requests and answers, made from the record classes.

A request may be wrong on purpose, so a field that holds one value may hold a value of any type; the schema says of
which type it is meant to be. Answers are held to their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, has

from rollproof.properties.wire.messages import DESCRIBE, PROTOCOL, REQUESTS
from rollproof.spec.judge.requests import KIND_OF, Area
from rollproof.spec.plane import Clear, Get, Put
from rollproof.spec.portable import Policy
from rollproof.spec.records import CAPABILITY
from rollproof.spec.tensor import ITEM_SIZES, Tensor

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
EFFECTS: Final = {kind.__name__.lower(): kind for kind in (Get, Put, Clear)}
BASE64: Final = "^[A-Za-z0-9+/]*={0,2}$"


def ref(name: str) -> dict[str, Any]:
    """Return a reference to a definition of the same document."""
    return {"$ref": f"#/$defs/{name}"}


def record(properties: Mapping[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    """Return an object with these properties only."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _tag(name: str, content: dict[str, Any]) -> dict[str, Any]:
    return record({name: content})


_TAGS: Final[dict[str, dict[str, Any]]] = {
    "$int": _tag("$int", {"type": "string", "pattern": "^-?0x[0-9a-f]+$"}),
    "$float": _tag("$float", {"type": "string", "pattern": r"^(nan|-?inf|-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?)$"}),
    "$text": _tag("$text", {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 0x10FFFF}}),
    "$dict": _tag(
        "$dict", {"type": "array", "items": {"type": "array", "items": ref("value"), "minItems": 2, "maxItems": 2}}
    ),
    "$bytes": _tag("$bytes", {"type": "string", "pattern": BASE64}),
    "$tuple": _tag("$tuple", {"type": "array", "items": ref("value")}),
}

VALUE_DEFINITIONS: Final[dict[str, dict[str, Any]]] = {
    "value": {
        "description": 'Any value. A plain number is an integer iff its value is one; a key that starts with "$" is a '
        "tag.",
        "anyOf": [
            {"type": ["null", "boolean", "number", "string"]},
            {"type": "array", "items": ref("value")},
            {"type": "object", "propertyNames": {"not": {"pattern": "^\\$"}}, "additionalProperties": ref("value")},
            *_TAGS.values(),
        ],
    },
    "integer": {"anyOf": [{"type": "integer"}, _TAGS["$int"]]},
    "float": {"description": "A float, whatever its value.", "anyOf": [{"type": "number"}, _TAGS["$float"]]},
    "text": {"anyOf": [{"type": "string"}, _TAGS["$text"]]},
    "bytes": {"type": "string", "pattern": BASE64, "contentEncoding": "base64"},
    "Tensor": {
        "description": "Row-major little-endian bytes.",
        **record(
            {
                "dtype": {"enum": list(ITEM_SIZES)},
                "shape": {"type": "array", "items": ref("integer")},
                "data": ref("bytes"),
            }
        ),
    },
}

_PLAIN: Final = {int: "integer", float: "float", str: "text", Any: "value", bytes: "bytes", Tensor: "Tensor"}


class Definitions:
    """The definitions of one document; ``of`` adds what a type needs.

    ``strict`` holds values to their types. ``prefix`` keeps the names of records apart from those of another.
    """

    def __init__(self, *, strict: bool, prefix: str = "") -> None:
        self.strict = strict
        self.prefix = prefix
        self.content: dict[str, dict[str, Any]] = dict(VALUE_DEFINITIONS)

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a value of this type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in (bool, NoneType) or kind in _PLAIN:
            return self._plain(kind)
        if origin in (Union, UnionType):
            if set(arguments) == set(EFFECTS.values()):
                return {"anyOf": [self._effect(name, one) for name, one in EFFECTS.items()]}
            return {"anyOf": [self.of(option) for option in arguments]}
        if origin is tuple and arguments[1:] != (...,):
            return {"type": "array", "prefixItems": [self.of(item) for item in arguments], "items": False,
                    "minItems": len(arguments)}  # fmt: skip
        if origin in (tuple, frozenset):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is Mapping:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if issubclass(origin or kind, Mapping):
            return {"type": "object"}
        if issubclass(kind, StrEnum):
            return {"enum": [member.value for member in kind]}
        name = self.prefix + kind.__name__
        if name not in self.content:
            assert has(kind), kind
            self.content[name] = {}
            self.content[name] = self.object(kind)
        return ref(name)

    def _plain(self, kind: Any) -> dict[str, Any]:
        if kind in (bytes, Tensor, Any) or self.strict:
            names = {bool: "boolean", NoneType: "null"}
            return {"type": names[kind]} if kind in names else ref(_PLAIN[kind])
        return {"$comment": f"meant to be {'null' if kind is NoneType else kind.__name__}", **ref("value")}

    def _effect(self, name: str, kind: type) -> dict[str, Any]:
        content = self.object(kind)
        content["properties"]["effect"] = {"const": name}
        content["required"].append("effect")
        return content

    def object(self, kind: type, **more: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a record; ``more`` are further properties, not required."""
        hints = get_type_hints(kind)
        properties = {field.name: self.of(hints[field.name]) for field in fields(kind)}
        required = [
            field.name
            for field in fields(kind)
            if field.metadata != CAPABILITY and (self.strict or field.default is NOTHING)
        ]
        return {"description": (kind.__doc__ or "").split("\n")[0], **record({**properties, **more}, required)}


def request_schema() -> dict[str, Any]:
    """Return the JSON Schema of a request line."""
    definitions = Definitions(strict=False)
    head = {"id": {"description": "Comes back in the answer."}, "protocol": {"const": PROTOCOL}}
    for name in REQUESTS:
        definitions.content[name] = operation_object(definitions, name, head)
    definitions.content[DESCRIBE] = record({**head, "operation": {"const": DESCRIBE}}, ["operation"])
    options = [ref(name) for name in (DESCRIBE, *REQUESTS)]
    return {"$schema": DIALECT, "title": f"{PROTOCOL}: request", "anyOf": options, "$defs": definitions.content}


def operation_object(definitions: Definitions, name: str, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a request of one operation, with further properties."""
    content = definitions.object(REQUESTS[name], **head, operation={"const": name})
    content["required"].append("operation")
    return content


def answer_schema() -> dict[str, Any]:
    """Return the JSON Schema of an answer line: ``$defs`` holds, by operation, the value of an accepted one."""
    definitions = Definitions(strict=True)
    for name in REQUESTS:
        definitions.content[name] = definitions.of(KIND_OF[REQUESTS[name]].answer)
    text = {"type": "string"}
    listed = {"areas": {"type": "array", "items": {"enum": [area.value for area in Area]}},
              "operations": {"type": "array", "items": {"enum": list(REQUESTS)}}}  # fmt: skip
    policies = {"policies": {"type": "array", "items": {"enum": list(Policy)}}}
    alternatives = {
        "accepted": {"anyOf": [ref(name) for name in REQUESTS]},
        "refused": ref("text"),
        "crashed": record({"error": text, "message": text}),
        "error": record({"code": text, "message": text}),
        "description": record(
            {"name": text, **listed, "protocol": {"const": PROTOCOL}, **policies},
            ["name", *listed, "protocol"],
        ),
    }
    options = [record({"id": True, name: content}, [name]) for name, content in alternatives.items()]
    return {"$schema": DIALECT, "title": f"{PROTOCOL}: answer", "anyOf": options, "$defs": definitions.content}


def protocol_schema() -> dict[str, Any]:
    """Return both schemas of the protocol."""
    return {"request": request_schema(), "answer": answer_schema()}
