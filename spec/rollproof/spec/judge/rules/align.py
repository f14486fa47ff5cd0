"""Invariants of lining routes up with rows (section 14). Vectors of a request are unique: each names its position."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from rollproof.spec.judge.contexts import ROOT, Contexts, rectangular
from rollproof.spec.judge.invariant import Case, describe, invariant
from rollproof.spec.judge.portable import AlignRoutes
from rollproof.spec.judge.requests import Accepted, Area, Crashed
from rollproof.spec.portable import Policy, RoutedRow, Vector

NARROWER = (2**8, 2**16)
"""Numbers of values of the integer types that ids are squeezed through."""


@frozen
class Position:
    """One position of a row that is not padding: what it holds, what calls captured there, and whether it is a fill."""

    row: int
    at: int
    vector: Vector
    own: tuple[Vector, ...]
    fill: bool
    needed: bool
    """Whether a trained token comes after it."""

    def __str__(self) -> str:
        return f"row {self.row} position {self.at}"


def captured_by_place(contexts: Contexts, request: AlignRoutes) -> dict[int, list[Vector]]:
    """Return by prefix of a context the vectors that calls captured for its last token."""
    found: dict[int, list[Vector]] = {}
    for call, captured in zip(request.calls, request.captures, strict=True):
        place = ROOT
        for position, token in enumerate(call.context):
            place = contexts.after[place, token]
            offset = -1 if captured is None else position - captured.start
            if captured is not None and 0 <= offset < len(captured.vectors):
                found.setdefault(place, []).append(captured.vectors[offset])
    return found


def positions(case: Case[AlignRoutes]) -> Iterator[Position]:
    """Yield the positions of all rows but those of ALIGN-1."""
    if not isinstance(case.answer, Accepted):
        return
    policies = case.answer.policies
    contexts = Contexts.of(case.request.calls)
    captured = captured_by_place(contexts, case.request)
    for number, row in enumerate(case.answer.value):
        if not rectangular(row):
            continue
        places = list(contexts.walk(row))
        last = max((at for at, one in enumerate(row.mask) if one), default=-1)
        last += Policy.SHIFTS_LABELS in policies
        for at, place in places:
            own = () if place is None else tuple(captured.get(place, ()))
            fill = row.routes[at] not in own and is_fill(row, at, at == places[-1][0], case.request, policies)
            yield Position(number, at, row.routes[at], own, fill, at < last)


def is_fill(row: RoutedRow, at: int, is_last: bool, request: AlignRoutes, policies: frozenset[str]) -> bool:
    """Return whether a position holds a fill, in a way that is declared."""
    experts = [0 <= one < request.num_experts for layer in row.routes[at] for one in layer]
    marked = Policy.MARKED in policies and row.fill is not None and row.fill[at] == 1
    sentinel = Policy.SENTINEL in policies and not any(experts)
    return marked or sentinel or (Policy.LAST_ROW_NATIVE in policies and is_last and all(experts))


def narrowed(vector: Vector, own: Vector) -> bool:
    """Return whether a vector is another one whose ids went through a narrower type."""
    ids = [one for layer in vector for one in layer]
    wanted = [one for layer in own for one in layer]
    return len(ids) == len(wanted) and any(
        all((one - other) % values == 0 for one, other in zip(ids, wanted, strict=True)) for values in NARROWER
    )


@invariant(
    "ALIGN-1",
    Area.ROUTE_ALIGN,
    "14",
    "A row has one vector per position, each in the shape of what was captured, and no session crashes.",
    (AlignRoutes,),
    of_values=True,
)
def one_vector_each(case: Case[AlignRoutes]) -> str | None:
    """An engine captures none for its last token, so a row made of captures alone is one short."""
    if isinstance(case.answer, Crashed):
        return f"it {describe(case.answer)}"
    if not isinstance(case.answer, Accepted):
        return None
    shapes = {shape(one) for captured in case.request.captures if captured for one in captured.vectors}
    for number, row in enumerate(case.answer.value):
        if not rectangular(row):
            lengths = {"mask": row.mask, "routes": row.routes, "fill": row.fill, "attention": row.attention}
            found = ", ".join(f"{len(column)} of {name}" for name, column in lengths.items() if column is not None)
            return f"row {number} has {len(row.ids)} ids, {found}"
        odd = next((at for at, one in enumerate(row.routes) if shapes and shape(one) not in shapes), None)
        if odd is not None:
            return f"row {number} position {odd}: a vector of {shape(row.routes[odd])} ids, captured are {shapes.pop()}"
    return None


def shape(vector: Vector) -> tuple[int, ...]:
    """Return the number of ids in each layer."""
    return tuple(len(layer) for layer in vector)


@invariant(
    "ALIGN-2",
    Area.ROUTE_ALIGN,
    "14",
    "A position holds what some call captured at this position in this context, or a fill.",
    (AlignRoutes,),
    of_values=True,
)
def own_vectors(case: Case[AlignRoutes]) -> str | None:
    """The vector of another position replays other experts than the token was sampled with."""
    known = {one for captured in case.request.captures if captured for one in captured.vectors}
    for one in positions(case):
        if one.vector in known and one.vector not in one.own and not one.fill:
            return f"{one} holds {one.vector}, which was captured elsewhere"
    return None


@invariant(
    "ALIGN-3",
    Area.ROUTE_ALIGN,
    "14",
    "Before the last trained token of a row, what some call captured is not replaced by a fill.",
    (AlignRoutes,),
    of_values=True,
)
def none_lost(case: Case[AlignRoutes]) -> str | None:
    """Attention mixes all positions before it into a token's log-prob: a fill there changes it."""
    for one in positions(case):
        if one.needed and one.own and one.fill and not any(narrowed(one.vector, own) for own in one.own):
            return f"{one} is a fill, but {one.own[0]} was captured there"
    return None


@invariant(
    "ALIGN-4",
    Area.ROUTE_ALIGN,
    "14",
    "A fill cannot be taken for a route.",
    (AlignRoutes,),
    of_values=True,
)
def fills_show(case: Case[AlignRoutes]) -> str | None:
    """It names no expert, or a mask marks it; which, the implementation declares. Zeros name expert 0."""
    known = {one for captured in case.request.captures if captured for one in captured.vectors}
    for one in positions(case):
        made_up = one.vector not in known and not one.fill
        if made_up and not any(narrowed(one.vector, own) for own in one.own):
            return f"{one} holds {one.vector}, which nobody captured and no declared policy marks as a fill"
    return None


@invariant(
    "ALIGN-5",
    Area.ROUTE_ALIGN,
    "14",
    "No expert id changes its value in a narrower type.",
    (AlignRoutes,),
    of_values=True,
)
def ids_keep_their_values(case: Case[AlignRoutes]) -> str | None:
    """uint8 ends at 255 and int16 at 32,767: what is beyond becomes another expert."""
    for one in positions(case):
        changed = (own for own in one.own if one.vector not in one.own and narrowed(one.vector, own))
        if (own := next(changed, None)) is not None:
            return f"{one} holds {one.vector}, captured is {own}"
    return None
