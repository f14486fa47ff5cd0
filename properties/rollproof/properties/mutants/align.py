"""Mutants of lining routes up with rows (section 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant
from rollproof.spec import align
from rollproof.spec.merge import merge_calls
from rollproof.spec.portable import Call, Captured, Policy, RoutedRow, Vector

ALIGN: Final = "judge.oracle.align_routes"
RULE: Final = "contract section 14"

Captures = Sequence[Captured | None]
Patches = dict[str, Callable[[Any], Any]]


def on_rows(change: Callable[[RoutedRow], RoutedRow]) -> Patches:
    """Change every row of the spec."""
    return {ALIGN: lambda original: lambda calls, captures: tuple(map(change, original(calls, captures)))}


def on_captures(change: Callable[[Sequence[Call], Captures], Captures]) -> Patches:
    """Line up other captures than those that are given."""

    def replacement(original: Any) -> Any:
        def wrong(calls: Sequence[Call], captures: Captures) -> Any:
            fill = align.fill_like(captures)
            rows = original(calls, change(calls, captures))
            return tuple(evolve(row, routes=tuple(shaped(one, fill) for one in row.routes)) for row in rows)

        return wrong

    return {ALIGN: replacement}


def all_captured(original: Any) -> Any:
    """Take for granted that every call captured routes."""

    def wrong(calls: Sequence[Call], captures: Captures) -> Any:
        if None in captures:
            raise AttributeError("'NoneType' object has no attribute 'vectors'")
        return original(calls, captures)

    return wrong


def shaped(vector: Vector, fill: Vector) -> Vector:
    """Return a vector; a fill in the shape of what was captured."""
    return fill if vector[0][0] == align.FILL_ID else vector


def on_ids(change: Callable[[int], int]) -> Callable[[RoutedRow], RoutedRow]:
    """Change every id of a row, fills included."""

    def changed(row: RoutedRow) -> RoutedRow:
        return evolve(row, routes=tuple(tuple(tuple(map(change, layer)) for layer in vector) for vector in row.routes))

    return changed


def is_fill(vector: Vector) -> bool:
    """Return whether a vector is the spec's fill."""
    return vector[0][0] == align.FILL_ID


def filled_by(row: RoutedRow, other: Callable[[int], Vector]) -> RoutedRow:
    """Return a row with other vectors in place of its fills."""
    return evolve(row, routes=tuple(other(at) if is_fill(one) else one for at, one in enumerate(row.routes)))


def zeros(row: RoutedRow) -> RoutedRow:
    """Fill with expert 0."""
    return filled_by(row, lambda at: tuple(tuple(0 for _ in layer) for layer in row.routes[at]))


def repeated(row: RoutedRow) -> RoutedRow:
    """Fill with the vector before."""
    return filled_by(row, lambda at: row.routes[max(0, at - 1)])


def all_fill(row: RoutedRow) -> RoutedRow:
    """Replace every vector by a fill."""
    return on_ids(lambda _: align.FILL_ID)(row)


def without_context(calls: Sequence[Call], captures: Captures) -> tuple[RoutedRow, ...]:
    """Take what any call captured at a position, whatever its context."""
    fill = align.fill_like(captures)

    def at(position: int) -> Vector:
        for captured in reversed(captures):
            offset = -1 if captured is None else position - captured.start
            if captured is not None and 0 <= offset < len(captured.vectors):
                return captured.vectors[offset]
        return fill

    return tuple(RoutedRow(row.ids, row.mask, tuple(map(at, range(len(row.ids))))) for row in merge_calls(calls).rows)


def from_zero(calls: Sequence[Call], captures: Captures) -> Captures:
    """Take every capture for one from the beginning."""
    return [captured and Captured(0, captured.vectors) for captured in captures]


def last_only(calls: Sequence[Call], captures: Captures) -> Captures:
    """Look at the last call's capture alone."""
    return [captured if index == len(calls) - 1 else None for index, captured in enumerate(captures)]


def generations_only(calls: Sequence[Call], captures: Captures) -> Captures:
    """Leave out what was captured for prompts."""
    found: list[Captured | None] = []
    for call, captured in zip(calls, captures, strict=True):
        prompt = len(call.prompt_ids)
        skipped = 0 if captured is None else max(0, prompt - captured.start)
        found.append(captured and Captured(captured.start + skipped, captured.vectors[skipped:]))
    return found


MARKED: Final = frozenset({Policy.MARKED})
NATIVE: Final = frozenset({Policy.LAST_ROW_NATIVE})

MUTANTS: Final = (
    Mutant("one-vector-short", "ALIGN-1", RULE, "A row has no vector for its last position.",
           on_rows(lambda row: evolve(row, routes=row.routes[:-1]))),
    Mutant("fill-mask-short", "ALIGN-1", RULE, "The fill mask is one too short.",
           on_rows(lambda row: evolve(row, fill=tuple(map(int, map(is_fill, row.routes[:-1]))))), MARKED),
    Mutant("missing-capture-raises", "ALIGN-1", RULE, "A call without captured routes raises.", {ALIGN: all_captured}),
    Mutant("routes-shifted", "ALIGN-2", RULE, "Every vector is that of the next position.",
           on_rows(lambda row: evolve(row, routes=(*row.routes[1:], row.routes[-1])))),
    Mutant("start-ignored", "ALIGN-2", RULE, "Every capture begins at 0.", on_captures(from_zero)),
    Mutant("context-ignored", "ALIGN-2", RULE, "Routes come from another branch.", {ALIGN: lambda _: without_context}),
    Mutant("gaps-repeat", "ALIGN-2", RULE, "A gap repeats the vector before.", on_rows(repeated)),
    Mutant("last-capture-only", "ALIGN-3", RULE, "Only the last call's routes are used.", on_captures(last_only)),
    Mutant("prompt-routes-lost", "ALIGN-3", RULE, "Captures of prompts are left out.", on_captures(generations_only)),
    Mutant("all-sentinel", "ALIGN-3", RULE, "Every position is a sentinel.", on_rows(all_fill)),
    Mutant("all-marked", "ALIGN-3", RULE, "Every position is marked, and holds expert 0.",
           on_rows(lambda row: evolve(zeros(all_fill(row)), fill=(1,) * len(row.ids))), MARKED),
    Mutant("zeros-fill", "ALIGN-4", RULE, "A gap names expert 0.", on_rows(zeros)),
    Mutant("zeros-behind-the-last", "ALIGN-4", RULE, "Any gap is native, as the last may be.", on_rows(zeros), NATIVE),
    Mutant("sentinel-unsigned", "ALIGN-4", RULE, "The sentinel is stored without a sign.",
           on_rows(on_ids(lambda one: one % 2**8 if one < 0 else one))),
    Mutant("ids-in-uint8", "ALIGN-5", RULE, "Ids pass through uint8.",
           on_rows(on_ids(lambda one: one if one < 0 else one % 2**8))),
    Mutant("ids-in-int16", "ALIGN-5", RULE, "Ids pass through int16.",
           on_rows(on_ids(lambda one: (one + 2**15) % 2**16 - 2**15))),
)  # fmt: skip
