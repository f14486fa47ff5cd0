"""Plain lists and dicts in place of records, for the portable areas: a user's function needs nothing of ours.

Records become dicts by their fields, tuples become lists. On the way back a list or dict of the right shape is as
good as the record, and so is anything with ``tolist``, such as an array or a tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Union, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, has

from rollproof.properties.adapters.protocol import Adapter
from rollproof.properties.errors import InputError
from rollproof.spec.judge.area import PORTABLE, Area
from rollproof.spec.judge.portable import AdvantageRequest
from rollproof.spec.judge.requests import KINDS
from rollproof.spec.portable import Merged

NUMBERS: Final = {int: "an integer", float: "a number", str: "a string", bool: "True or False"}


class WrongShape(TypeError):
    """An answer that is not what its area takes; the message says where, what was found and what is expected."""


def as_plain(value: Any) -> Any:
    """Return a value with dicts for records and lists for tuples, none of them shared with it."""
    if has(type(value)):
        return {field.name: as_plain(getattr(value, field.name)) for field in fields(type(value))}
    if isinstance(value, Mapping):
        return {name: as_plain(item) for name, item in value.items()}
    return [as_plain(item) for item in value] if isinstance(value, list | tuple) else value


def as_record(kind: Any, value: Any, where: str = "") -> Any:
    """Return a value as the type ``kind``: a record, a tuple, a number, or one of several. Raises ``WrongShape``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (kind,) = (one for one in arguments if one is not NoneType)
        return as_record(kind, value, where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if has(kind):
        return _record(kind, value, where)
    return _leaf(kind, value, where)


def _record(kind: type, value: Any, where: str) -> Any:
    if kind is Merged and not isinstance(value, Merged | Mapping):
        value = {"rows": value}
    names = {field.name: field for field in fields(kind)}
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in names]
        if unknown:
            raise WrongShape(f"{_place(where)}key {unknown[0]!r}: expected {', '.join(names)}")
        given = dict(value)
    elif isinstance(value, kind):
        given = {name: getattr(value, name) for name in names}
    else:
        expected = f"a dict with {', '.join(names)}"
        raise WrongShape(f"{_place(where)}got {_shown(value)}, expected {expected}")
    missing = [name for name, one in names.items() if name not in given and one.default is NOTHING]
    if missing:
        raise WrongShape(f"{_place(where)}no {missing[0]!r} in {_shown(value)}")
    hints = get_type_hints(kind)
    return kind(**{name: as_record(hints[name], item, f"{where}.{name}".lstrip(".")) for name, item in given.items()})


def _tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise WrongShape(f"{_place(where)}got {_shown(value)}, expected a list")
    first, *others = kinds
    wanted = [first] * len(items) if others == [...] else list(kinds)
    if len(wanted) != len(items):
        raise WrongShape(f"{_place(where)}got {len(items)} values, expected {len(wanted)}")
    pairs = enumerate(zip(wanted, items, strict=True))
    return tuple(as_record(one, item, f"{where}[{index}]") for index, (one, item) in pairs)


def _leaf(kind: Any, value: Any, where: str) -> Any:
    found = value.item() if hasattr(value, "item") else value
    found = found.value if isinstance(found, Enum) else found
    if kind is int and (type(found) is bool or (type(found) is float and found.is_integer())):
        return int(found)
    if kind is float and type(found) in (int, bool):
        return float(found)
    if type(found) is kind:
        return found
    raise WrongShape(f"{_place(where)}got {_shown(value)}, expected {NUMBERS.get(kind, kind)}")


def _place(where: str) -> str:
    return f"{where}: " if where else "the answer: "


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# ── a function alone ────────────────────────────────────────────────────────────────────────────────────────────────

METHODS: Final[dict[str, Area]] = {kind.method: kind.area for kind in KINDS if kind.area in PORTABLE}
"""The functions that may be checked without a class around them, by name."""


class Functions(Adapter):
    """A user's function, by its name, as an implementation. Its attribute ``policies`` names its policies, if any."""

    plain: ClassVar[bool] = True

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        method = function.__name__
        kind = next(kind for kind in KINDS if kind.method == method)
        self.name = name  # type: ignore[misc]
        self.areas = frozenset({kind.area})  # type: ignore[misc]
        self.policies = frozenset(getattr(function, "policies", ()))  # type: ignore[misc]
        if kind.request is AdvantageRequest and "batch" in inspect.signature(function).parameters:
            function = for_both(function)
        setattr(self, method, taking(function, [field.name for field in fields(kind.request)]))


def for_both(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of two batches that asks ``function``, which takes one, about both."""

    def advantages(first: Any, second: Any) -> dict[str, Any]:
        return {"first": function(batch=first), "second": function(batch=second)}

    return advantages


def taking(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return a function of all arguments of a request that passes on those which ``function`` names.

    Raises ``InputError`` where it needs another one.
    """
    parameters = inspect.signature(function).parameters.values()
    rest = any(one.kind is one.VAR_KEYWORD for one in parameters)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    unknown = [one.name for one in parameters if one.default is one.empty and one in named and one.name not in names]
    if unknown:
        expected = f"expected some of {', '.join(names)}"
        raise InputError(f"{function.__name__}: parameter {unknown[0]!r}: {expected}")
    wanted = names if rest else [one.name for one in named if one.name in names]

    def method(*arguments: Any) -> Any:
        given = dict(zip(names, arguments, strict=True))
        return function(**{name: given[name] for name in wanted})

    return method
