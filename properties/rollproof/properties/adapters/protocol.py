"""The interface of a checked implementation, as the gate sees it.

An implementation offers areas of the contract, each through a few methods that take and return the record classes of
``rollproof.spec``. It may offer any subset. To check a reassembler with NeMo RL's constructor and methods, subclass
``adapters.reassembler.ReassemblerAdapter``; this covers areas ``rollout`` and ``group``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from attrs import field, frozen
from attrs.validators import min_len

from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.requests import KIND_OF, KINDS, Accepted, Answer, Area, Crashed, Refused, Request

Asking = TypeVar("Asking")


class Refusal(Exception):
    """An implementation's refusal. ``reason`` reads ``code[:subject][: free text]``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


AnswerClass: TypeAlias = Callable[[Answer], bool]
"""Says whether an answer is in a class of answers."""


@frozen
class Deviation:
    """A known way in which an implementation differs from the contract.

    ``answers(request, expected)`` computes from the input what the implementation answers in place of ``expected``: no
    answers where the deviation does not concern the request, several where which of them it gives depends on more than
    the input, and a class of answers only where none can be computed. Any other answer to the same request is a
    finding. ``examples`` show the deviation; every check runs all of them, whatever its profile.
    """

    id: str
    area: Area
    section: str
    sentence: str
    answers: Callable[[Request, Answer], Iterable[Answer | AnswerClass]]
    examples: tuple[Request, ...] = field(validator=min_len(1))

    def explains(self, request: Request, expected: Answer, actual: Answer) -> bool:
        """Return whether ``actual`` is the answer that this deviation gives to ``request``."""
        return any(
            declared(actual) if callable(declared) else same_answer(declared, actual)
            for declared in self.answers(request, expected)
        )


def same_answer(declared: Answer, actual: Answer) -> bool:
    """Return whether both are one value bit for bit, one refusal code, or one type of error."""
    match declared, actual:
        case Accepted(), Accepted():
            return difference(declared.value, actual.value) is None
        case Refused(), Refused():
            return declared.code == actual.code
        case Crashed(), Crashed():
            return declared.error == actual.error
    return False


def deviation_of(implementation: Adapter, request: Request, expected: Answer, actual: Answer) -> str | None:
    """Return the id of the declared deviation that an answer is an instance of, if any."""
    declared = implementation.deviations
    return next((known.id for known in declared if known.explains(request, expected, actual)), None)


class Adapter:
    """A base for implementations: name your areas, and add a method for every kind of request that you answer.

    ``rollproof.spec.judge.requests.KINDS`` names the methods of each area. A method takes the fields of its request, in
    order, and returns the value that the request's docstring names. It raises ``Refusal`` to refuse; any other
    exception counts as a crash.
    """

    name: ClassVar[str]
    areas: ClassVar[frozenset[Area]] = frozenset()
    deviations: ClassVar[Sequence[Deviation]] = ()
    policies: ClassVar[frozenset[str]] = frozenset()
    """Choices in the portable areas, by the names of ``rollproof.spec.portable.Policy``."""
    plain: ClassVar[bool] = False
    """Whether methods of the portable areas take lists and dicts in place of records; they may return either."""


def offers(implementation: Any, kind: type[Request]) -> bool:
    """Return whether an implementation answers this kind of request.

    Its attribute ``offered``, a set of kinds, decides; without one, it answers if it has the method.
    """
    offered = getattr(implementation, "offered", None)
    return hasattr(implementation, KIND_OF[kind].method) if offered is None else kind in offered


def answers_by_asking(adapter: type[Asking]) -> type[Asking]:
    """Give a class a method for every kind of request that builds the request and passes it to ``self.ask``."""

    def method(kind: type[Request]) -> Callable[..., Any]:
        return lambda self, *arguments, **options: self.ask(kind(*arguments, **options))

    for kind in KINDS:
        if not kind.measured:
            setattr(adapter, kind.method, method(kind.request))
    return adapter
