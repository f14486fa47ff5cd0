"""The spec itself as an implementation: what mutants are made of, and a check that the gate can hold at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from rollproof.properties.protocol import METHODS, Adapter, Refusal
from rollproof.spec import oracle
from rollproof.spec.requests import Accepted, Area, LinearizeGrowth, Refused, Request


def answered_by_spec(kind: type) -> Callable[..., Any]:
    """A method that passes its arguments to the spec as a request of this kind."""

    def method(self: Reference, *arguments: Any) -> Any:
        return self.ask(kind(*arguments))

    return method


class Reference(Adapter):
    """Every area, answered by ``rollproof.spec``."""

    name: ClassVar[str] = "spec"
    areas: ClassVar[frozenset[Area]] = frozenset(Area)

    def ask(self, request: Request) -> Any:
        """The spec's value, or its refusal."""
        answer = oracle.answer(request)
        if isinstance(answer, Refused):
            raise Refusal(answer.reason)
        assert isinstance(answer, Accepted)
        return answer.value


for _kind, _name in METHODS.items():
    if _kind is not LinearizeGrowth:
        setattr(Reference, _name, answered_by_spec(_kind))
