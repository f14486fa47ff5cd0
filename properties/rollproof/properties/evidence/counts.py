"""Counting the requests of the gate's streams in profile ci, and keeping the counts beside the code.

The evidence page and ``rollproof rules`` say how many examples an invariant is checked on and how often a code is
reached. Counting takes as long as a check does, so the counts are kept in ``counts.json``, which ``make docs`` writes,
and a test compares them with the gate's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from rollproof.properties.gate.codes import met
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import drawn
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Area, Request

PROFILE: Final = PROFILES["ci"]
SEED: Final = 0
COUNTS_FILE: Final = Path(__file__).with_name("counts.json")


@frozen
class Counts:
    """One stream: how many requests of each kind it has, and how many reach each code, by its name in the area."""

    area: Area
    stream: str
    kinds: Mapping[str, int]
    codes: Mapping[str, int]

    def asked(self, kinds: Iterable[type]) -> int:
        """Return how many of its requests are of some kinds."""
        return sum(self.kinds.get(kind.__name__, 0) for kind in kinds)


def counted() -> tuple[Counts, ...]:
    """Return the counts that are kept."""
    entries = json.loads(COUNTS_FILE.read_text(encoding="utf-8"))
    return tuple(Counts(**{**entry, "area": Area(entry["area"])}) for entry in entries)


def count_all() -> Iterator[Counts]:
    """Count every stream of every area anew."""
    for area in Area:
        for stream in request_streams(area):
            yield count_stream(stream)


def requests_of(stream: Stream, seed: int = SEED) -> Sequence[Request]:
    """Return the requests of a stream that a check at the page's profile and a seed draws."""
    examples = PROFILE.examples(stream.weight, drives_code=bool(stream.codes))
    return drawn(stream, examples, seed)


def count_stream(stream: Stream) -> Counts:
    """Count one stream."""
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    for request in requests_of(stream):
        kinds[type(request).__name__] += 1
        codes.update(reach.name for reach in met(stream.area, request, answer(realize_request(request))))
    return Counts(stream.area, stream.name, dict(sorted(kinds.items())), dict(sorted(codes.items())))


def render_counts(counts: Iterable[Counts]) -> str:
    """Return the file that keeps them: a JSON list with one stream per line."""
    lines = (json.dumps(asdict(entry), ensure_ascii=False) for entry in counts)
    return "[\n" + ",\n".join(lines) + "\n]\n"
