"""Lining routes up: what a position may hold, and what a fill must show."""

from __future__ import annotations

import pytest
from attrs import evolve

from rollproof.spec.align import align_routes
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.portable import AlignRoutes
from rollproof.spec.judge.requests import Accepted, Area
from rollproof.spec.portable import Call, Captured, Policy

CALLS = (Call((3,), (4,), (-0.5,)), Call((3, 4, 5), (6,), (-0.25,)))
CAPTURES = (Captured(0, (((299, 7),),)), Captured(1, (((298, 7),), ((297, 7),))))
REQUEST = AlignRoutes(CALLS, CAPTURES, 300, True)


def broken(rows, *policies):
    answer = Accepted(tuple(rows), frozenset(policies))
    return [item.id for item in of_area(Area.ROUTE_ALIGN) if item.check(REQUEST, answer, answer) is not None]


def routed(*vectors, fill=None):
    (row,) = align_routes(CALLS, CAPTURES)
    return [evolve(row, routes=tuple((vector,) for vector in vectors), fill=fill)]


def test_incremental_captures_are_joined_and_the_last_position_is_a_fill():
    assert align_routes(CALLS, CAPTURES)[0].routes == (((299, 7),), ((298, 7),), ((297, 7),), ((-1, -1),))
    assert broken(align_routes(CALLS, CAPTURES), Policy.SENTINEL) == []


@pytest.mark.parametrize(
    ("vectors", "falls"),
    [
        (((299, 7), (298, 7), (297, 7)), ["ALIGN-1"]),
        (((299, 7), (298, 7), (297, 7), (0,)), ["ALIGN-1", "ALIGN-4"]),
        (((298, 7), (298, 7), (297, 7), (-1, -1)), ["ALIGN-2"]),
        (((299, 7), (-1, -1), (297, 7), (-1, -1)), ["ALIGN-3"]),
        (((299, 7), (298, 7), (297, 7), (255, 255)), ["ALIGN-4"]),
        (((43, 7), (298, 7), (297, 7), (-1, -1)), ["ALIGN-5"]),
    ],
)
def test_each_fault_falls_by_its_own_invariant(vectors, falls):
    assert broken(routed(*vectors), Policy.SENTINEL) == falls


def test_a_fill_must_be_declared_in_the_way_that_it_shows():
    whole = ((299, 7), (298, 7), (297, 7))
    assert broken(routed(*whole, (0, 1), fill=(0, 0, 0, 1)), Policy.MARKED) == []
    assert broken(routed(*whole, (0, 1), fill=(0, 0, 0, 1)), Policy.SENTINEL) == ["ALIGN-4"]
    assert broken(routed(*whole, (0, 1)), Policy.LAST_ROW_NATIVE) == []
    assert broken(routed(*whole, (-1, -1)), Policy.LAST_ROW_NATIVE) == ["ALIGN-4"]
    assert broken(routed(*whole, (-1, -1))) == ["ALIGN-4"]


def test_captures_beyond_the_last_forward_are_refused():
    with pytest.raises(ValueError, match=r"captures\[0\]: got positions \[1, 2\), expected them within \[0, 1\)"):
        align_routes(CALLS, (Captured(1, (((1, 2),),)), None))
    with pytest.raises(ValueError, match="captures: got 1, expected 2"):
        align_routes(CALLS, CAPTURES[:1])
