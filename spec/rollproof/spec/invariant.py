"""An invariant: one sentence of the contract that can be checked on a request and an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from attrs import fields, frozen, has

from rollproof.spec.requests import Accepted, Answer, Area, Crashed, Refused, Request

Check: TypeAlias = Callable[[Any, Answer, Answer], str | None]
"""``check(request, expected, actual)``: None where the invariant holds, else what is wrong.

``expected`` is the contract's own answer. A check that can do without it does, so that it would also catch a spec and
an implementation that are wrong in the same way.
"""


@frozen
class Invariant:
    """``id`` (``GROUP-1``), the ``sentence`` that must hold, its contract ``section``, and how to check it."""

    id: str
    area: Area
    section: str
    sentence: str
    requests: tuple[type, ...]
    check: Check

    def covers(self, request: Request) -> bool:
        """Whether the invariant says something about this kind of request."""
        return isinstance(request, self.requests)


def invariant(
    id: str, area: Area, section: str, sentence: str, requests: Iterable[type]
) -> Callable[[Check], Invariant]:
    """Declare the decorated check as an invariant."""
    return lambda check: Invariant(id, area, section, sentence, tuple(requests), check)


def describe(answer: Answer) -> str:
    """An answer in a few words."""
    match answer:
        case Accepted(value):
            return f"accepted a {type(value).__name__}"
        case Refused(reason):
            return f"refused with {reason}"
        case Crashed(error, message):
            return f"let {error} escape: {message}"


def same_value(expected: Answer, actual: Answer) -> str | None:
    """Where the contract accepts, the implementation accepts the same value."""
    if not isinstance(expected, Accepted):
        return None
    if not isinstance(actual, Accepted):
        return f"expected a {type(expected.value).__name__}, but it {describe(actual)}"
    return difference(expected.value, actual.value)


def difference(expected: Any, actual: Any, where: str = "") -> str | None:
    """Where two values of the contract differ first, or None.

    Stricter than ``==``: 0.0 is not -0.0, and 1, 1.0 and True are three values.
    """
    if type(expected) is not type(actual):
        return f"{where or 'value'}: expected a {type(expected).__name__}, got a {type(actual).__name__}"
    if has(type(expected)):
        pairs = [(f"{where}.{field.name}".lstrip("."), field.name) for field in fields(type(expected)) if field.eq]
        return _first(difference(getattr(expected, name), getattr(actual, name), path) for path, name in pairs)
    if isinstance(expected, tuple | list):
        if len(expected) != len(actual):
            return f"{where}: expected {len(expected)} items, got {len(actual)}"
        pairs_of = zip(expected, actual, strict=True)
        return _first(difference(left, right, f"{where}[{index}]") for index, (left, right) in enumerate(pairs_of))
    if isinstance(expected, dict):
        if expected.keys() != actual.keys():
            return f"{where}: {sorted(map(str, expected.keys() ^ actual.keys()))} on one side only"
        return _first(difference(expected[key], actual[key], f"{where}[{key!r}]") for key in expected)
    same = repr(expected) == repr(actual) if isinstance(expected, float) else expected == actual
    return None if same else f"{where or 'value'}: expected {expected!r:.80}, got {actual!r:.80}"


def _first(complaints: Iterable[str | None]) -> str | None:
    return next((complaint for complaint in complaints if complaint is not None), None)
