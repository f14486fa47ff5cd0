"""Requests as JSON, for replay files and for implementations behind a pipe.

Record classes become objects by their fields, tensors carry their bytes in base64. A value that JSON cannot hold (or
not in every parser) becomes an object with one key that starts with "$":

{"$float": "nan"}              NaN, "inf" or "-inf"
    {"$int": "-0x1f"}              an integer of more than 64 bits
    {"$text": [97, 55296]}         text with a lone surrogate, as code points
    {"$tuple": [...]}              a tuple
    {"$bytes": "AAE="}             bytes, in base64
    {"$dict": [[key, value], …]}   a mapping with a key that is not a string, or could be mistaken for a tag
    {"$nest": {...}}               a recipe: also "$bigint", "$repeat", "$rows", "$json", "$scalar"

Only this program reads these files, so integers stay plain up to 64 bits and recipes stay recipes. Programs in any
language read the lines of the wire; ``converter`` has the stricter tags for them.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable
from enum import StrEnum
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

from attrs import NOTHING, Factory, fields, has
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override

from rollproof.properties.strategies.rollouts.recipes import BigInt, JsonText, Nest, OddColumn, Repeat, Rows, Scalar
from rollproof.properties.wire.bounds import check_size
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.requests import KINDS, Request
from rollproof.spec.records import CAPABILITY
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_text

T = TypeVar("T")

KIND: Final = "kind"
"""The key under which a dumped request names its class."""

_REQUESTS: Final = {kind.request.__name__: kind.request for kind in KINDS}

_RECIPE_TAGS: Final[dict[str, type]] = {
    "$nest": Nest, "$bigint": BigInt, "$repeat": Repeat, "$rows": Rows, "$json": JsonText, "$scalar": Scalar,
}  # fmt: skip
_TAG_OF: Final = {kind: tag for tag, kind in _RECIPE_TAGS.items()}


# ── any value ───────────────────────────────────────────────────────────────────────────────────────────────────────


def encode_value(value: Any) -> Any:
    """Return a JSON-like value, with tags where JSON has no word for it. Raises ``TypeError`` for any other value."""
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) is str:
        return value if is_text(value) else {"$text": [ord(char) for char in value]}
    if type(value) is list:
        return [encode_value(item) for item in value]
    if type(value) is dict:
        if all(is_text(key) and not key.startswith("$") for key in value):
            return {key: encode_value(item) for key, item in value.items()}
        return {"$dict": [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    if type(value) is tuple:
        return {"$tuple": [encode_value(item) for item in value]}
    if type(value) is bytes:
        return {"$bytes": b64encode(value).decode()}
    if type(value) in _TAG_OF:
        content = {field.name: encode_value(getattr(value, field.name)) for field in fields(type(value))}
        return {_TAG_OF[type(value)]: content}
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def decode_value(value: Any) -> Any:
    """Return the value that ``encode_value`` wrote."""
    if type(value) is list:
        return [decode_value(item) for item in value]
    if type(value) is not dict:
        return value
    tag = next(iter(value), "")
    if len(value) == 1 and tag in _DECODERS:
        return _DECODERS[tag](value[tag])
    return {key: decode_value(item) for key, item in value.items()}


def _recipe_decoder(kind: type) -> Callable[[Any], Any]:
    return lambda content: kind(**{name: decode_value(item) for name, item in content.items()})


_DECODERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$float": float,
    "$int": lambda content: int(content, 16),
    "$text": lambda content: "".join(map(chr, content)),
    "$tuple": lambda content: tuple(decode_value(item) for item in content),
    "$bytes": b64decode,
    "$dict": lambda content: {decode_value(key): decode_value(item) for key, item in content},
    **{tag: _recipe_decoder(kind) for tag, kind in _RECIPE_TAGS.items()},
}


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────

Coder: TypeAlias = Callable[[Any], Any]

_LEAVES: Final = (int, float, str, bool)
"""Types of fields that hold one value. A request may be wrong, so it can be a value of any type."""


def _is_leaf(kind: Any) -> bool:
    """Return whether a field of this type holds one value: anything, or one of several plain types."""
    if get_origin(kind) in (Union, UnionType):
        return all(option in (*_LEAVES, type(None)) for option in get_args(kind))
    return kind is Any


def _items_by_type(converter: Converter) -> Callable[[Any], Coder]:
    """Turn tuples into lists; cattrs leaves those of a fixed length as they are."""

    def of_type(kind: Any) -> Coder:
        first, *others = get_args(kind)
        if others == [...]:
            return lambda items: [converter.unstructure(item, first) for item in items]
        kinds = (first, *others)
        return lambda items: [converter.unstructure(item, one) for item, one in zip(items, kinds, strict=True)]

    return of_type


def _tuple_of(converter: Converter) -> Callable[[Any, Any], tuple[Any, ...]]:
    def structure(items: Any, kind: Any) -> tuple[Any, ...]:
        if type(items) is not list:
            raise TypeError(f"got a {type(items).__name__}, expected a list")
        first, *others = get_args(kind)
        kinds = [first] * len(items) if others == [...] else [first, *others]
        if len(kinds) != len(items):
            raise ValueError(f"got {len(items)} items, expected {len(kinds)}")
        return tuple(converter.structure(item, one) for item, one in zip(items, kinds, strict=True))

    return structure


def _tensor(value: Any, decode: Coder) -> Tensor:
    if type(value) is not dict or value.keys() != {"dtype", "shape", "data"} or type(value["shape"]) is not list:
        raise TypeError(f"got a {type(value).__name__}, expected an object with dtype, shape and data")
    shape = tuple(decode(dimension) for dimension in value["shape"])
    return Tensor(value["dtype"], shape, b64decode(value["data"], validate=True))


def _has_capability(kind: Any) -> bool:
    """Return whether a record has fields of a capability."""
    return has(kind) and any(_of_capability(field) for field in fields(kind))


def _of_capability(field: Any) -> bool:
    return bool(field.metadata == CAPABILITY)


def _without_defaults(converter: Converter) -> Callable[[Any], Coder]:
    """Leave out fields of a capability that have their defaults: a request without it reads as it did before."""

    def of_type(kind: Any) -> Coder:
        left_out: Any = {field.name: override(omit_if_default=True) for field in fields(kind) if _of_capability(field)}
        return make_dict_unstructure_fn(kind, converter, **left_out)

    return of_type


def _is_tuple(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is tuple


def _is_float(kind: Any) -> bool:
    """Return whether a field is declared as a number that is not an integer, null aside."""
    return kind is float or (_is_leaf(kind) and float in get_args(kind))


def make_converter(encode: Coder, decode: Coder, encode_float: Coder, decode_float: Coder) -> Converter:
    """Return a converter between record classes and JSON that codes the values in fields with these functions.

    The latter two are for fields that are declared as float.
    """
    converter = Converter(forbid_extra_keys=True)
    converter.register_unstructure_hook_factory(_has_capability, _without_defaults(converter))
    converter.register_unstructure_hook_func(_is_leaf, encode)
    converter.register_structure_hook_func(_is_leaf, lambda value, _: decode(value))
    # cattrs would take a string for a list of its characters, and the items of a tuple of anything as they are.
    converter.register_structure_hook_func(_is_tuple, _tuple_of(converter))
    for kind in _LEAVES:
        converter.register_unstructure_hook(kind, encode_float if kind is float else encode)
        converter.register_structure_hook(kind, lambda value, one: (decode_float if one is float else decode)(value))
    converter.register_unstructure_hook_func(_is_float, encode_float)
    converter.register_structure_hook_func(_is_float, lambda value, _: decode_float(value))
    converter.register_unstructure_hook_factory(_is_tuple, _items_by_type(converter))
    converter.register_unstructure_hook(bytes, lambda value: b64encode(value).decode())
    converter.register_structure_hook(bytes, lambda value, _: b64decode(value, validate=True))
    converter.register_unstructure_hook(StrEnum, lambda member: member.value)
    converter.register_structure_hook(StrEnum, lambda value, kind: kind(value))
    converter.register_unstructure_hook(
        Tensor,
        lambda tensor: {
            "dtype": tensor.dtype,
            "shape": [encode(dimension) for dimension in tensor.shape],
            "data": b64encode(tensor.data).decode(),
        },
    )
    converter.register_structure_hook(Tensor, lambda value, _: _tensor(value, decode))
    return converter


_CONVERTER: Final = make_converter(encode_value, decode_value, encode_value, decode_value)


def _dump_tensor(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor as on the wire, with the form of an odd column, which the wire has no word for."""
    plain = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data": b64encode(tensor.data).decode()}
    return {**plain, "form": tensor.form.value} if isinstance(tensor, OddColumn) else plain


def _load_tensor(value: Any, _: Any) -> Tensor:
    """Return what ``_dump_tensor`` wrote."""
    if type(value) is not dict or "form" not in value:
        return _tensor(value, decode_value)
    plain = _tensor({name: item for name, item in value.items() if name != "form"}, decode_value)
    return OddColumn(plain.dtype, plain.shape, plain.data, value["form"])


def _plainly(kind: Any) -> Coder:
    """Leave out fields that have their defaults, which ``load`` fills in: what is special about a request is left."""
    whole = make_dict_unstructure_fn(kind, _CONVERTER)
    defaults = {
        field.name: field.default.factory() if isinstance(field.default, Factory) else field.default  # type: ignore[arg-type]
        for field in fields(kind)
        if field.default is not NOTHING
    }

    def dumped(record: Any) -> dict[str, Any]:
        usual = {name for name, value in defaults.items() if difference(value, getattr(record, name)) is None}
        return {name: item for name, item in whole(record).items() if name not in usual}

    return dumped


_CONVERTER.register_unstructure_hook_factory(has, _plainly)
_CONVERTER.register_unstructure_hook(Tensor, _dump_tensor)
_CONVERTER.register_structure_hook(Tensor, _load_tensor)


def dump(request: Request) -> dict[str, Any]:
    """Return a request as a JSON object; ``load`` gives an equal request back."""
    return {KIND: type(request).__name__, **_CONVERTER.unstructure(request)}


def load(content: Any) -> Request:
    """Return the request in a JSON object.

    Raises an exception of ``cattrs``, ``KeyError`` or ``ValueError`` if it is not one, and ``TooLarge``.
    """
    kind = _REQUESTS[content[KIND]]
    values = {name: value for name, value in content.items() if name != KIND}
    request = _CONVERTER.structure(values, kind)
    check_size(request)
    return request


def dump_record(record: Any) -> Any:
    """Return a record of an answer as a JSON object; ``load_record`` gives an equal record back."""
    return _CONVERTER.unstructure(record)


def load_record(content: Any, kind: type[T]) -> T:
    """Return the record of this class in a JSON object. Raises as ``load`` does."""
    return _CONVERTER.structure(content, kind)
