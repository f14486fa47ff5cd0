"""Running vectors on an implementation: its answers are judged by the invariants, against the answers in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import deviation_of, offers
from rollproof.properties.errors import InputError, LeftOut
from rollproof.properties.vectors.vector_files import Vector, VectorFile, read_file
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.requests import Answer, Area, Request


@frozen
class Failure:
    """A vector that an implementation answers wrongly: the first invariant that does not hold, and why."""

    vector: Vector
    invariant: str
    complaint: str


@define
class Result:
    """The result of one file."""

    area: Area
    passed: int = 0
    not_offered: int = 0
    left_out: int = 0
    deviations: dict[str, int] = field(factory=dict)
    """How often each declared deviation occurred."""
    failures: list[Failure] = field(factory=list)


def read_folder(folder: Path) -> list[VectorFile]:
    """Read the files of a folder, in the order of the areas.

    Raises ``InputError`` where there is none, or a bad one.
    """
    files = [read_file(path) for path in sorted(folder.glob("*.json"))]
    if not files:
        raise InputError(f"{folder}: no files of vectors in it")
    return sorted(files, key=lambda file: list(Area).index(file.area))


def verify(file: VectorFile, implementation: Any) -> Result:
    """Run every vector of a file on an implementation, as far as it offers the operation."""
    result = Result(file.area)
    for vector in file.vectors:
        if file.area not in implementation.areas or not offers(implementation, type(vector.request)):
            result.not_offered += 1
            continue
        try:
            actual = ask(implementation, vector.request)
        except LeftOut:
            result.left_out += 1
            continue
        failure = judge(vector, actual)
        known = None if failure is None else deviation_of(implementation, vector.request, vector.expected, actual)
        if failure is None:
            result.passed += 1
        elif known is not None:
            result.deviations[known] = result.deviations.get(known, 0) + 1
        else:
            result.failures.append(failure)
    return result


def judge(vector: Vector, actual: Answer) -> Failure | None:
    """Return what is wrong with an answer: the first invariant, of any area, that does not hold."""
    for item in CATALOGUE:
        if item.covers(vector.request):
            complaint = complaint_of(item, vector.request, vector.expected, actual)
            if complaint is not None:
                return Failure(vector, item.id, complaint)
    return None


def complaint_of(item: Invariant, request: Request, expected: Answer, actual: Answer) -> str | None:
    """Return an invariant's complaint about an answer."""
    try:
        return item.check(request, expected, actual)
    except Exception as error:
        return f"the answer has a type that the contract does not allow ({type(error).__name__}: {error})"
