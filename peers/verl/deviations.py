"""What verl's types hold: routes are int16, which names 32,768 experts, more than any model has."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from rollproof.properties.adapters.protocol import AnswerClass, Deviation
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.portable import AlignRoutes
from rollproof.spec.judge.requests import Accepted, Answer, Area, Request
from rollproof.spec.portable import Call, Captured

INT16 = 2**15
ZEROS = "ALIGN-4"
"""What verl's fills falsify, in whatever type they are."""
MANY = AlignRoutes(
    (Call((3, 4), (5, 9), (-1.0, -2.0)),),
    (Captured(0, (((39999,),), ((39998,),), ((39997,),))),),
    num_experts=40000,
    incremental=False,
)


def wrapped(request: Request, expected: Answer) -> Iterable[Answer | AnswerClass]:
    """Yield the class of answers that hold everything, once int16 is read as what it was before it wrapped."""
    if not isinstance(request, AlignRoutes):
        return
    vectors = [vector for captured in request.captures if captured is not None for vector in captured.vectors]
    if not any(one >= INT16 for vector in vectors for layer in vector for one in layer):
        return

    def holds(answer: Answer) -> bool:
        if not isinstance(answer, Accepted):
            return False
        rows = tuple(
            evolve(
                row,
                routes=tuple(tuple(tuple(one % 2**16 for one in layer) for layer in vector) for vector in row.routes),
            )
            for row in answer.value
        )
        once = Accepted(rows, answer.policies)
        rules = [rule for rule in of_area(Area.ROUTE_ALIGN) if rule.covers(request) and rule.id != ZEROS]
        return all(rule.check(request, expected, once) is None for rule in rules)

    yield holds


DEVIATIONS = (
    Deviation(
        "int16-experts",
        Area.ROUTE_ALIGN,
        "14",
        "Routes become int16: an expert beyond 32,767 wraps to a negative id. No model has that many experts.",
        wrapped,
        (MANY,),
    ),
)
