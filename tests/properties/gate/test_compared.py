"""Whatever an implementation answers otherwise than the contract, some invariant of its area notices.

The contract's own answers are changed in one place at a time: a number, a bit of a tensor, an entry that is gone. What
no invariant notices is listed here, with the reason why it is left to the implementation.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from enum import Enum
from random import Random
from typing import Any

import attrs
import pytest

from rollproof.properties.gate.run import complaint_of, drawn
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, Crashed, Refused
from rollproof.spec.tensor import Tensor

PER_STREAM = 2
CHANGES = 30
"""Changes that are tried of one answer."""

PORTABLE = (Area.MERGE, Area.ROUTE_ALIGN, Area.ADVANTAGE, Area.MEDIA_ROWS)
"""No answer is compared with the spec's there: layouts differ for good reasons."""

FREE = {
    r"effects\[Get\]|FinalizeRollout\.effects": "the number of reads is bounded, and some must not be made",
    r"effects<swap>": "reads have no order; a write among them is noticed by GROUP-5's mutants",
    r"GroupOutcome\]\.(dims|rollouts)": "what the judge is told, not what is published",
    r"(keys|cleanup_staging_keys\}?)<swap>": "cleanup has no order",
    r"\{finalize/(rejection|rebuild_failed)_\w+\}<gone>": "counts that older implementations have none of",
    r"LinearizeGrowth": "a measurement",
}
"""Places that no invariant looks at, and why."""


def changes(value: Any, path: str, random: Random) -> Iterator[tuple[str, Any]]:
    """Yield an answer's value with one thing changed, and where that is."""
    if isinstance(value, Tensor):
        if value.data:
            data = bytearray(value.data)
            data[random.randrange(len(data))] ^= 1
            yield f"{path}<bit>", Tensor(value.dtype, value.shape, bytes(data))
    elif isinstance(value, Enum):
        yield path, next(one for one in type(value) if one is not value)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            for place, other in changes(getattr(value, field.name), f"{path}.{field.name}", random):
                yield place, attrs.evolve(value, **{field.alias: other})
    elif isinstance(value, tuple | list):
        kind = type(value)
        for index, one in enumerate(value):
            for place, other in changes(one, f"{path}[{type(one).__name__}]", random):
                yield place, kind((*value[:index], other, *value[index + 1 :]))
        if value:
            yield f"{path}<cut>", value[:-1]
        if len(value) > 1 and value[0] != value[1]:
            yield f"{path}<swap>", kind((value[1], value[0], *value[2:]))
    elif isinstance(value, Mapping):
        for name, one in value.items():
            place = f"{path}{{{name}}}"
            yield f"{place}<gone>", {key: kept for key, kept in value.items() if key != name}
            for inner, other in changes(one, place, random):
                yield inner, {**value, name: other}
    elif isinstance(value, frozenset):
        if value:
            yield f"{path}<less>", frozenset(sorted(value)[1:])
    elif type(value) in OTHERWISE:
        yield path, OTHERWISE[type(value)](value)


OTHERWISE: Mapping[type, Any] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: 2.5 if value == 1.5 else 1.5,
    str: lambda value: f"{value}x",
    bytes: lambda value: value + b"x",
    type(None): lambda _: 0,
}


def asked(area: Area) -> Iterator[tuple[Any, Any]]:
    """Yield a few requests of every stream of an area, with the contract's answers."""
    for stream in request_streams(area):
        for request in drawn(stream, PER_STREAM, 0)[:PER_STREAM]:
            yield request, answer(realize_request(request))


def noticed(area: Area, request: Any, contract: Any, found: Any) -> bool:
    """Return whether an invariant of the area complains of an answer."""
    realized = realize_request(request)
    return any(complaint_of(item, realized, contract, found) for item in of_area(area) if item.covers(request))


@pytest.mark.parametrize("area", [area for area in Area if area not in PORTABLE])
def test_a_change_of_any_field_is_noticed_or_free(area):
    random = Random(0)
    unnoticed: Counter[str] = Counter()
    known: Counter[str] = Counter()
    for request, contract in asked(area):
        if not isinstance(contract, Accepted):
            continue
        found = list(changes(contract.value, type(request).__name__, random))
        for place, value in random.sample(found, min(CHANGES, len(found))):
            if known[place] >= 2 or any(re.search(pattern, place) for pattern in FREE):
                continue
            if noticed(area, request, contract, Accepted(value)):
                known[place] += 1
            else:
                unnoticed[place] += 1
    assert len(known) > 1
    assert not {place: count for place, count in unnoticed.items() if not known[place]}


@pytest.mark.parametrize("area", Area)
def test_a_crash_is_noticed_whatever_was_asked(area):
    kinds = defaultdict(list)
    for request, contract in asked(area):
        crash = Crashed("RuntimeError", "out of nowhere")
        kinds[type(request).__name__].append(noticed(area, request, contract, crash))
    assert kinds
    assert all(map(all, kinds.values())), {name: Counter(found) for name, found in kinds.items()}


@pytest.mark.parametrize("area", [area for area in Area if area not in PORTABLE])
def test_a_refusal_of_what_is_accepted_is_noticed(area):
    for request, contract in asked(area):
        if isinstance(contract, Accepted):
            assert noticed(area, request, contract, Refused("refused: out of nowhere")), request
