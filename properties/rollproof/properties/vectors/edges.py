"""Inputs at the borders of rules, chosen by hand: where implementations in other languages often go wrong by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from rollproof.properties.strategies.rollouts.recipes import Nest
from rollproof.spec.constants import MAX_EXTRAS_DEPTH
from rollproof.spec.judge.requests import (
    Area,
    ChainDigest,
    ClassifySpan,
    DecodeRoutes,
    EncodeRoutes,
    ExtrasDigest,
    PrefixDigest,
    Request,
    SameMedia,
)
from rollproof.spec.judge.views import Entry
from rollproof.spec.tensor import Tensor

DESCRIPTIONS: Final = {
    "integer-range": "Integers at the borders of 53, 63 and 64 bits.",
    "number-types": "1, 1.0 and true are three values, and so are 0.0 and -0.0.",
    "utf8-order": "Names are sorted by their UTF-8 bytes: in UTF-16 some have another order.",
    "text-lengths": "Lengths of texts are counted in UTF-8 bytes.",
    "depth": "Extras may be 64 containers deep, and no deeper.",
    "parent-hash": "A root has no parent hash; a child's has 64 lowercase hex characters.",
    "span-edges": "Lengths right at and right beside the borders of full, tail and sentinel.",
    "list-ids": "Ids of nested lists at the borders of int16, and lists that are ragged, empty or of other types.",
    "byte-order": "Tensors with the same bytes in another order, with another last byte, and with one byte less.",
    "swapped-names": "Two tensors, and the same two under each other's names.",
    "envelope-bytes": "Ids are little-endian in each of the three dtypes.",
}

_ALL: Final = "0123456789abcdef" * 4


def _extras(*values: Any) -> list[ExtrasDigest]:
    return [ExtrasDigest({"a": value}) for value in values]


_NO_INTEGER: Final[Any] = 1.0
_LISTS: Final[tuple[Any, ...]] = (
    [[[2**15 - 1, -(2**15)]]], [[[-(2**15) - 1]]], [[[True]]], [[[1.0]]], [[["1"]]], [[[]]], [[]], [],
    [[[1], [2]], [[3]]], [[[1, 2], [3]]], [[1]], {}, None, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
)  # fmt: skip

EDGES: Final[dict[Area, dict[str, list[Any]]]] = {
    Area.DIGEST: {
        "integer-range": [
            *(PrefixDigest((value,)) for value in (2**53 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -1)),
            *_extras(2**53 + 1, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1),
        ],
        "number-types": [
            PrefixDigest((True,)),
            PrefixDigest((_NO_INTEGER,)),
            *_extras(1, 1.0, True, 0, 0.0, -0.0, False, None, 0.1, 1e300, math.nan, math.inf),
        ],
        "utf8-order": [ExtrasDigest({"\uffff": 1, "\U00010000": 2, "z": 3, "\u00e9": 4, "": 5, "a": 6})],
        "text-lengths": _extras("", "\u00e9", "\U0001f600", "\x00"),
        "depth": [
            ExtrasDigest({"a": Nest("list", MAX_EXTRAS_DEPTH - 1)}),
            ExtrasDigest({"a": Nest("list", MAX_EXTRAS_DEPTH)}),
        ],
        "parent-hash": [
            ChainDigest(parent, (1, 2)) for parent in (None, _ALL, "", _ALL.upper(), _ALL[:-1], _ALL + "0")
        ],
    },
    Area.ROUTES: {
        "span-edges": [
            *(ClassifySpan(1, 2, staged) for staged in range(5)),
            *(ClassifySpan(0, 2, staged) for staged in range(4)),
            *(ClassifySpan(2, 0, staged) for staged in range(4)),
            ClassifySpan(0, 0, 0),
            ClassifySpan(2**62, 2**62 - 1, 2**63 - 1),
            ClassifySpan(-1, 2, 1),
        ],
        "list-ids": [DecodeRoutes(lists) for lists in _LISTS],
        "envelope-bytes": [
            EncodeRoutes(Tensor.of(dtype, (1, -1, 3, 2), (2, 1, 2))) for dtype in ("int8", "int16", "int32", "int64")
        ],
    },
    Area.RETAINED: {
        "byte-order": [
            SameMedia((Entry("a", Tensor.of("uint8", left)),), (Entry("a", Tensor.of("uint8", right)),))
            for left, right in (((1, 2), (2, 1)), ((1, 2), (1, 2)), ((0, 1), (0, 2)), ((1, 0), (1,)))
        ],
        "swapped-names": [
            SameMedia(
                (Entry("a", Tensor.of("uint8", (1,))), Entry("b", Tensor.of("uint8", (2,)))),
                (Entry(first, Tensor.of("uint8", (1,))), Entry(second, Tensor.of("uint8", (2,)))),
            )
            for first, second in ("ab", "ba")
        ],
    },
}  # fmt: skip
"""Inputs by area and flag."""


def edges(area: Area) -> Iterator[tuple[str, str, Request]]:
    """Yield the inputs of one area, each with its flag and what that means."""
    for flag, requests in EDGES.get(area, {}).items():
        for request in requests:
            yield flag, DESCRIPTIONS[flag], request
