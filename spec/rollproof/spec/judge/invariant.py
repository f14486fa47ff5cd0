"""An invariant: one sentence of the contract that can be checked on a request and an answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from attrs import fields, frozen, has

from rollproof.spec.judge.requests import Accepted, Answer, Area, Crashed, Refused, Request
from rollproof.spec.tensor import READABLE, Tensor

Asked = TypeVar("Asked")


@frozen
class Case(Generic[Asked]):
    """One request, the contract's own answer to it, and the answer of the implementation under test."""

    request: Asked
    contract: Answer
    answer: Answer


Rule: TypeAlias = Callable[[Any], str | None]
"""``rule(case)``: None where the invariant holds, else what is wrong.

Prefer rules that do not look at ``case.contract``: they also catch a spec and an implementation that are wrong in the
same way.
"""


@frozen
class Invariant:
    """``id`` (``GROUP-1``), the ``sentence`` that must hold, its contract ``section``, and the rule that checks it."""

    id: str
    area: Area
    section: str
    sentence: str
    requests: tuple[type, ...]
    rule: Rule
    of_values: bool = False
    """Whether it says nothing about a refusal, which is always allowed then, nor about a crash."""
    advisory: bool = False
    """Whether an answer that breaks it is only noted: right, but wasteful."""

    @property
    def reason(self) -> str:
        """Why it must hold, or how it is checked."""
        return " ".join((self.rule.__doc__ or "").split())

    def covers(self, request: Request) -> bool:
        """Return whether the invariant applies to this kind of request."""
        return isinstance(request, self.requests)

    def check(self, request: Request, contract: Answer, answer: Answer) -> str | None:
        """Return what is wrong with an answer, or None where the invariant holds."""
        return self.rule(Case(request, contract, answer))


def invariant(
    id: str,
    area: Area,
    section: str,
    sentence: str,
    requests: Iterable[type],
    *,
    of_values: bool = False,
    advisory: bool = False,
) -> Callable[[Rule], Invariant]:
    """Declare the decorated rule as an invariant. Every invariant that a module declares is in force."""
    return lambda rule: Invariant(id, area, section, sentence, tuple(requests), rule, of_values, advisory)


def declared(module: ModuleType) -> tuple[Invariant, ...]:
    """Return the invariants that a module declares, in its order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Invariant))


def describe(answer: Answer) -> str:
    """Describe an answer in a few words."""
    match answer:
        case Accepted(value):
            return f"accepted a {type(value).__name__}"
        case Refused(reason):
            return f"refused with {reason}"
        case Crashed(error, message):
            return f"let {error} escape: {message}"


def same_value(case: Case[Any]) -> str | None:
    """Check that where the contract accepts, the implementation accepts the same value."""
    if not isinstance(case.contract, Accepted):
        return None
    if not isinstance(case.answer, Accepted):
        return f"expected a {type(case.contract.value).__name__}, but it {describe(case.answer)}"
    return difference(case.contract.value, case.answer.value)


def same_value_or_code(case: Case[Any]) -> str | None:
    """Check for the contract's value, and where the contract refuses, for its code."""
    if isinstance(case.contract, Refused):
        same = isinstance(case.answer, Refused) and case.answer.code == case.contract.code
        return None if same else f"it {describe(case.answer)}, expected {case.contract.reason}"
    return same_value(case)


# ── where two values differ ─────────────────────────────────────────────────────────────────────────────────────────

LONGEST_VALUE: Final = 200
"""Characters of one value in a complaint. A path is never cut: it is what says which field is wrong."""


class _Absent:
    """In place of a value that only the other side has."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = _Absent()


@frozen
class Difference:
    """One place where two values differ: the path to it, and both values; ``ABSENT`` where a side has none."""

    where: str
    expected: Any
    actual: Any

    @property
    def texts(self) -> tuple[str, str]:
        """Both values in words that tell them apart."""
        sides = self.expected, self.actual
        wanted, found = map(value_text, sides)
        if wanted == found and type(self.expected) is not type(self.actual):
            wanted, found = (
                f"{text} ({type(side).__name__})" for text, side in zip((wanted, found), sides, strict=True)
            )
        elif wanted == found and isinstance(self.expected, str | bytes):
            at = next(index for index, pair in enumerate(zip(*sides, strict=False)) if pair[0] != pair[1])
            wanted, found = (f"{side[at : at + 40]!r} from position {at:,}" for side in sides)
        return wanted, found

    @property
    def sentence(self) -> str:
        """What is wrong, with the whole path and both values."""
        wanted, found = self.texts
        return f"{self.where or 'value'}: expected {wanted}, got {found}"


def difference(expected: Any, actual: Any, where: str = "") -> str | None:
    """Return where two values of the contract differ first, in words, or None."""
    first = next(differences(expected, actual, where), None)
    return None if first is None else first.sentence


def differences(expected: Any, actual: Any, where: str = "") -> Iterator[Difference]:
    """Yield every place where two values of the contract differ, in the order of their fields.

    Stricter than ``==``: 0.0 is not -0.0, and 1, 1.0 and True are three values. A NaN equals a NaN. Fields that play
    no part in comparisons are left out.
    """
    kind = type(expected)
    if expected is actual:
        return
    if kind is not type(actual):
        yield Difference(where, expected, actual)
    elif kind is Tensor:
        yield from _tensor_differences(expected, actual, where)
    elif has(kind):
        for one in fields(kind):
            if one.eq:
                path = f"{where}.{one.name}".lstrip(".")
                yield from differences(getattr(expected, one.name), getattr(actual, one.name), path)
    elif isinstance(expected, tuple | list) and len(expected) == len(actual):
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif isinstance(expected, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            yield from differences(expected.get(key, ABSENT), actual.get(key, ABSENT), f"{where}[{key!r}]")
    elif not _same_leaf(expected, actual):
        yield Difference(where, expected, actual)


def _tensor_differences(expected: Tensor, actual: Tensor, where: str) -> Iterator[Difference]:
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        yield Difference(where, expected, actual)
    elif expected.data != actual.data:
        name = f"{where}.values()".lstrip(".")
        by_element = (
            [] if expected.dtype not in READABLE else list(differences(expected.values(), actual.values(), name))
        )
        # Elements are alike where two NaNs have different bits.
        yield from by_element or [Difference(f"{where}.data".lstrip("."), expected.data, actual.data)]


def _same_leaf(expected: Any, actual: Any) -> bool:
    if isinstance(expected, float) and expected == actual == 0:
        return math.copysign(1, expected) == math.copysign(1, actual)
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(actual)
    return bool(expected == actual)


def value_text(value: Any, longest: int = LONGEST_VALUE) -> str:
    """Return a value in at most ``longest`` characters; of a longer one its middle is left out, its length told."""
    if isinstance(value, Tensor):
        numbers = value.values() if value.dtype in READABLE else value.data
        return f"{value.dtype}{list(value.shape)} {shortened(repr(numbers), longest)}"
    try:
        text = repr(value)
    except Exception:
        # Python refuses to print an int of more than 4,300 digits, and what is nested too deep.
        return f"a {type(value).__name__} that cannot be printed"
    count = f"{len(value):,} items " if isinstance(value, tuple | list | Mapping) and len(text) > longest else ""
    return count + shortened(text, longest)


def shortened(text: str, longest: int) -> str:
    """Return the text, with its middle replaced by a note of its length where it has more than ``longest`` characters.

    Beginning and end stay, because values that differ only there must not look the same.
    """
    if len(text) <= longest:
        return text
    note = f" … {len(text):,} characters … "
    kept = max(2, longest - len(note))
    return f"{text[: kept - kept // 2]}{note}{text[len(text) - kept // 2 :]}"
