"""The spec itself as an implementation: the base for mutants, and a check that the gate passes on the spec itself."""

from __future__ import annotations

from typing import Any, ClassVar

from rollproof.properties.adapters.protocol import Adapter, Refusal, answers_by_asking
from rollproof.spec.judge import oracle
from rollproof.spec.judge.requests import Accepted, Area, Refused, Request
from rollproof.spec.portable import Policy


@answers_by_asking
class Reference(Adapter):
    """Every area, answered by ``rollproof.spec``."""

    name: ClassVar[str] = "spec"
    areas: ClassVar[frozenset[Area]] = frozenset(Area)
    policies: ClassVar[frozenset[str]] = frozenset({Policy.OVER_LIMIT, Policy.SENTINEL})

    def ask(self, request: Request) -> Any:
        """Return the spec's value, or raise its refusal."""
        answer = oracle.answer(request)
        if isinstance(answer, Refused):
            raise Refusal(answer.reason)
        assert isinstance(answer, Accepted)
        return answer.value
