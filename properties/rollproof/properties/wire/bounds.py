"""Bounds on what comes from outside: nesting depth, number of values, and the size that its numbers imply.

A file or a line from outside must cost memory in proportion to its length. Three things break that: nesting,
because readers recurse; many small values, because ``[],`` is three bytes of JSON and ninety in memory; and numbers
that imply data, such as a shape, a count or a recipe. Every tool that reads checks here first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rollproof.properties.strategies.rollouts.recipes import BigInt, JsonText, Nest, Repeat, Rows
from rollproof.spec.judge.requests import (
    AlignEngineRows,
    CutGeneration,
    ExecutePlan,
    FinalizeGroups,
    FinalizeRollout,
    LinearizeGrowth,
    ReplayGroup,
    Request,
)
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import ReassemblerConfig

LARGEST_FILE: Final = 2**28
"""Bytes of a file that is read as a whole."""
MOST_VALUES: Final = 2**22
"""Values in one JSON document."""
DEEPEST: Final = 250
"""Containers inside one another: a quarter of Python's frames, for readers that need a few for each."""
MOST_BYTES: Final = 2**28
"""Bytes that the numbers of one request may imply, beside the data that it holds."""

GROWTH: Final = 16
"""How many bytes a staged one may imply: the spec computes with Python's numbers."""

_CALL_BYTES: Final = 4096
"""A call of a chain in memory, with its manifest row."""
_ID_BYTES: Final = 10
"""An expert id in the spec's memory: a list's item, and two bytes of the tensor."""


class TooLarge(ValueError):
    """A value from outside holds or implies too much; the message says how much."""


class TooDeep(TooLarge):
    """A value from outside is nested too deep."""


def parse_json(data: bytes | str, **options: Any) -> Any:
    """Return the JSON value in ``data``; ``options`` are those of ``json.loads``.

    Raises ``TooLarge`` before anything large is built, and ``ValueError`` for what is not JSON.
    """
    if isinstance(data, bytes):
        values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    else:
        values = sum(data.count(mark) for mark in (",", "[", "{"))
    if values > MOST_VALUES:
        raise TooLarge(f"about {values:,} values, expected at most {MOST_VALUES:,}")
    try:
        value = json.loads(data, **options)
    except RecursionError:
        raise TooDeep(f"nested more than {DEEPEST} deep") from None
    if nesting(value) > DEEPEST:
        raise TooDeep(f"nested more than {DEEPEST} deep")
    return value


def read_json(path: Path) -> Any:
    """Return the JSON value in a file. Raises ``TooLarge``, ``ValueError`` or ``OSError``."""
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise TooLarge(f"more than {LARGEST_FILE:,} bytes")
    return parse_json(data)


def nesting(value: Any) -> int:
    """Return how many containers of a JSON value are inside one another. Does not recurse."""
    depth, layer = 0, [value]
    while layer := [item for item in layer if type(item) in (list, dict)]:
        depth += 1
        layer = [
            inner
            for item in layer
            for inner in (item.values() if type(item) is dict else item)
            if type(inner) in (list, dict)
        ]
    return depth


def check_size(request: Request) -> None:
    """Raise ``TooLarge`` where a request's numbers imply more than ``MOST_BYTES`` beside the data that it holds."""
    asked, allowed = _asked_for(request), MOST_BYTES + GROWTH * _held(request)
    if asked > allowed:
        raise TooLarge(f"a {type(request).__name__} that needs about {asked:,} bytes, expected at most {allowed:,}")


def _held(request: Request) -> int:
    """Return the bytes of the tensors in a request's staging."""
    staging = getattr(request, "staging", Staging())
    return sum(len(value.data) for row in staging.rows.values() for value in row.values())


def _asked_for(request: Request) -> int:
    match request:
        case LinearizeGrowth(few, many):
            return _CALL_BYTES * max(_size(few), _size(many))
        case CutGeneration():
            return _CALL_BYTES * _size(request.cuts) + recipe_bytes((request.extras, request.spans))
        case ExecutePlan():
            # Anything but the planned length is refused before a row is laid out.
            planned = type(request.canonical_len) is int and request.plan.expected_token_length == request.canonical_len
            return _route_bytes(_size(request.canonical_len), request.dims) if planned else 0
        case AlignEngineRows():
            return _route_bytes(_size(request.tokens), request.rows.shape[1:3])  # type: ignore[arg-type]
        case ReplayGroup():
            groups = (request.request.receipts, request.request.rewards)
            return recipe_bytes(groups) + _sentinels(request.staging, len(request.request.rollout_ids), request.dims)
        case FinalizeRollout():
            values = (request.receipt, request.reward)
            return recipe_bytes(values) + _sentinels(request.staging, 1, _dims_of(request.config))
        case FinalizeGroups():
            asked = [step.request for step in request.steps]
            rollouts = sum(len(group.rollout_ids) for group in asked)
            return recipe_bytes([(group.receipts, group.rewards) for group in asked]) + _sentinels(
                request.staging, rollouts, _dims_of(request.config)
            )
    fields = [getattr(request, name) for name in ("value", "extras", "payload", "spans") if hasattr(request, name)]
    return recipe_bytes(fields)


def _dims_of(config: ReassemblerConfig) -> Dims | None:
    return config.routed_dims if config.router_replay_enabled is True else None


def _sentinels(staging: Staging, rollouts: int, dims: Dims | None) -> int:
    """Return the bytes of routes for every staged token, and for one of every rollout that is rejected."""
    tokens = sum(row["token_ids_delta"].count for row in staging.rows.values() if "token_ids_delta" in row)
    return _route_bytes(tokens + rollouts, dims)


def _route_bytes(tokens: int, dims: Dims | None) -> int:
    if dims is None:
        return 0
    return tokens * _ID_BYTES * max(1, math.prod(map(_size, dims)))


def _size(value: Any) -> int:
    """Return a number as a size; what is not one costs nothing, because it is refused."""
    return value if type(value) is int and value > 0 else 0


def recipe_bytes(value: Any) -> int:
    """Return about how many bytes the recipes in a value imply; what is written out counts little."""
    match value:
        case Nest():
            return 80 * value.depth + recipe_bytes(value.inner)
        case BigInt():
            return value.digits // 2
        case Repeat():
            return len(value.text) * value.count
        case Rows():
            return value.count * (500 + recipe_bytes(value.row))
        case JsonText():
            return 100 * (value.text.count(",") + value.text.count("[") + value.text.count("{"))
        case Mapping():
            return sum(recipe_bytes(item) for pair in value.items() for item in pair)
        case str() | bytes():
            return 0
        case Iterable():
            return sum(map(recipe_bytes, value))
    return 0
