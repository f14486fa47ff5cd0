"""Values in JSON that every parser reads alike.

Many parsers know one kind of number: they read 2.0 as 2, -0.0 as 0, and an integer beyond 2**53 as a neighbour of it.
Others refuse half a surrogate pair. So a plain number is an integer iff its value is one, and whatever that would
change is an object with one key that starts with "$":

    {"$int": "0x20000000000001"}   an integer beyond ±(2**53 - 1), in hexadecimal, "-" first if it is negative
    {"$float": "2.0"}              a float whose value is an integer; also "-0.0", "nan", "inf", "-inf"
    {"$text": [97, 55296]}         a string with a lone surrogate, as code points
    {"$dict": [[key, value], …]}   a mapping with a key that is not a string, or that starts with "$"
    {"$bytes": "AAE="}             bytes in base64, which are not a JSON value
    {"$tuple": [...]}              another sequence than a list, which is not a JSON value

In a field that the contract declares as float a plain number is a float, whatever its value.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

from rollproof.properties.errors import LeftOut
from rollproof.spec.values import is_text, show

MAX_NESTING: Final = 100
"""Containers inside one another in one line. Parsers in use give up from 128 on."""
SAFE_INTEGER: Final = 2**53 - 1
"""Beyond this a parser that reads numbers as float64 reads another integer."""

_HEX: Final = re.compile("-?0x[0-9a-f]+")
_FLOAT: Final = re.compile(r"nan|-?inf|-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")


class NotCarried(LeftOut):
    """A value that the wire cannot carry; the message says why."""


class WireError(ValueError):
    """JSON that is not what the protocol says; the message says what was expected."""


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(value: Any, room: int = MAX_NESTING) -> Any:
    """Encode a JSON-like value, with tags.

    Raises ``NotCarried`` where it is too deep, or nothing that JSON has a tag for.
    """
    if value is None or type(value) is bool:
        return value
    if type(value) is int:
        return value if abs(value) <= SAFE_INTEGER else {"$int": hex(value)}
    if type(value) is float:
        plain = math.isfinite(value) and not value.is_integer()
        return value if plain else {"$float": repr(value)}
    if type(value) is str:
        return value if is_text(value) else {"$text": [ord(char) for char in value]}
    if type(value) is bytes:
        return {"$bytes": b64encode(value).decode()}
    if room == 0:
        raise NotCarried(f"nested more than {MAX_NESTING} deep")
    room -= 1
    if type(value) is list:
        return [encode(item, room) for item in value]
    if type(value) is tuple:
        return {"$tuple": [encode(item, room) for item in value]}
    if type(value) is dict:
        if all(is_text(key) and not key.startswith("$") for key in value):
            return {key: encode(item, room) for key, item in value.items()}
        return {"$dict": [[encode(key, room), encode(item, room)] for key, item in value.items()]}
    raise NotCarried(f"a {type(value).__name__} is not a JSON value")


def encode_float(value: Any) -> Any:
    """Encode the value of a field that is declared as float: plain where it is a float, however round."""
    if type(value) is float and math.isfinite(value) and (value != 0.0 or math.copysign(1.0, value) > 0):
        return value
    return {"$int": hex(value)} if type(value) is int else encode(value)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode(value: Any) -> Any:
    """Return the value that was encoded. Raises ``WireError``."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int or (type(value) is float and value.is_integer()):
        return _safe(int(value))
    if type(value) is float:
        return _finite(value)
    if type(value) is list:
        return [decode(item) for item in value]
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: decode(item) for key, item in value.items()}
    if tag not in _TAGS or len(value) != 1:
        raise WireError(f"a key {tag!r}: expected one of {', '.join(_TAGS)}, alone in its object")
    return _TAGS[tag](value[tag])


def decode_float(value: Any) -> Any:
    """Return the value of a field that is declared as float."""
    return _finite(float(value)) if type(value) in (int, float) else decode(value)


def _safe(value: int) -> int:
    if abs(value) > SAFE_INTEGER:
        raise WireError('an integer beyond 2**53 - 1: expected {"$int": …} for it, or {"$float": …} for a float')
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise WireError('a number beyond float64: expected {"$int": …} or {"$float": …}')
    return value


def _text_of(content: Any, pattern: re.Pattern[str], tag: str) -> str:
    if type(content) is not str or not pattern.fullmatch(content):
        raise WireError(f"{tag}: got {show(content)}, expected a string {pattern.pattern}")
    return content


def _items(content: Any, tag: str) -> list[Any]:
    if type(content) is not list:
        raise WireError(f"{tag}: got {show(content)}, expected a list")
    return content


def _mapping(content: Any) -> dict[Any, Any]:
    pairs = _items(content, "$dict")
    if not all(type(pair) is list and len(pair) == 2 for pair in pairs):
        raise WireError("$dict: expected pairs of a key and a value")
    try:
        return {decode(key): decode(item) for key, item in pairs}
    except TypeError as error:
        raise WireError(f"$dict: {error}") from error


def _text(content: Any) -> str:
    points = _items(content, "$text")
    if not all(type(point) is int and 0 <= point < 0x110000 for point in points):
        raise WireError("$text: expected code points")
    return "".join(map(chr, points))


def _bytes(content: Any) -> bytes:
    if type(content) is not str:
        raise WireError("$bytes: expected base64")
    return b64decode(content, validate=True)


_TAGS: Final[dict[str, Callable[[Any], Any]]] = {
    "$int": lambda content: int(_text_of(content, _HEX, "$int"), 16),
    "$float": lambda content: float(_text_of(content, _FLOAT, "$float")),
    "$text": _text,
    "$tuple": lambda content: tuple(decode(item) for item in _items(content, "$tuple")),
    "$bytes": _bytes,
    "$dict": _mapping,
}
