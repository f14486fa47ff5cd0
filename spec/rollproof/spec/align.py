"""Lining captured expert routes up with the rows of a merge (section 14): one right way among many."""

from __future__ import annotations

from collections.abc import Sequence

from rollproof.spec.merge import merge_calls
from rollproof.spec.portable import Call, Captured, RoutedRow, Vector

FILL_ID = -1
"""In a fill every id is this one, which names no expert."""


def align_routes(calls: Sequence[Call], captures: Sequence[Captured | None]) -> tuple[RoutedRow, ...]:
    """Return the rows of the calls with the first vector that was captured for each position, or a fill.

    Raises ``ValueError`` where the captures are not one per call, or one does not lie within its call's context.
    """
    if len(captures) != len(calls):
        raise ValueError(f"captures: got {len(captures)}, expected {len(calls)}, one per call")
    for index, (call, captured) in enumerate(zip(calls, captures, strict=True)):
        check_capture(call, captured, f"captures[{index}]")
    return tuple(RoutedRow(row.ids, row.mask, routes_of(row.ids, calls, captures)) for row in merge_calls(calls).rows)


def check_capture(call: Call, captured: Captured | None, where: str) -> None:
    """Raise ``ValueError`` where a capture reaches beyond the last position that the engine ran a forward for."""
    last = len(call.context) - 1
    if captured is not None and not 0 <= captured.start <= captured.start + len(captured.vectors) <= max(0, last):
        end = captured.start + len(captured.vectors)
        raise ValueError(f"{where}: got positions [{captured.start}, {end}), expected them within [0, {max(0, last)})")


def routes_of(ids: tuple[int, ...], calls: Sequence[Call], captures: Sequence[Captured | None]) -> tuple[Vector, ...]:
    """Return one vector per position of a row: what the first call captured there in the same context, or a fill."""
    fill = fill_like(captures)
    return tuple(
        next(iter(captured_at(position, ids[: position + 1], calls, captures)), fill) for position in range(len(ids))
    )


def captured_at(
    position: int, context: tuple[int, ...], calls: Sequence[Call], captures: Sequence[Captured | None]
) -> list[Vector]:
    """Return the vectors that calls captured at a position where their context up to it is ``context``."""
    found = []
    for call, captured in zip(calls, captures, strict=True):
        if captured is not None and call.context[: position + 1] == context:
            offset = position - captured.start
            if 0 <= offset < len(captured.vectors):
                found.append(captured.vectors[offset])
    return found


def fill_like(captures: Sequence[Captured | None]) -> Vector:
    """Return a fill in the shape of the captured vectors; one id where nothing was captured."""
    vectors = (vector for captured in captures if captured is not None for vector in captured.vectors)
    shape = next(vectors, ((0,),))
    return tuple(tuple(FILL_ID for _ in layer) for layer in shape)
