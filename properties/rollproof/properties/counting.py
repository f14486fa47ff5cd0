"""Counting what the streams of the gate ask in profile ci, and keeping the counts beside the code.

The evidence page and ``rollproof rules`` say how many examples an invariant is checked on and how often a code is
driven. Counting takes as long as a check does, so the counts are kept in ``counted.py``, and a test compares them with
the gate's own.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from attrs import frozen
from hypothesis import Phase

from rollproof.properties.counted import COUNTED
from rollproof.properties.gate.coverage import driven_code, reachable
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import exercise
from rollproof.properties.strategies.recipes import realize_request
from rollproof.properties.strategies.requests import Stream, request_streams
from rollproof.spec.oracle import answer
from rollproof.spec.requests import Area, Request

PROFILE: Final = PROFILES["ci"]
SEED: Final = 0
COUNTED_FILE: Final = Path(__file__).with_name("counted.py")

HEAD: Final = '''\
"""What the streams of the gate ask in profile ci with seed 0. Written by ``make docs``, read by ``counting``.

Per stream: area and name, then how many requests of each kind, then after ">" how often each code is the answer.
"""

from __future__ import annotations

from typing import Final

COUNTED: Final = """
'''


@frozen
class Counts:
    """One stream: how many requests of each kind it asks, and how often each reachable code is the answer."""

    area: Area
    stream: str
    kinds: Mapping[str, int]
    codes: Mapping[str, int]

    def asked(self, kinds: Iterable[type]) -> int:
        """How many of its requests are of some kinds."""
        return sum(self.kinds.get(kind.__name__, 0) for kind in kinds)


def counted() -> tuple[Counts, ...]:
    """The counts that are kept."""
    entries = COUNTED.strip().replace("\n    ", " ").splitlines()
    return tuple(map(read_line, entries))


def read_line(line: str) -> Counts:
    """The counts of one stream as they are written."""
    name, _, rest = line.partition(" = ")
    area, _, stream = name.partition(" ")
    kinds, _, codes = rest.partition(" > ")
    return Counts(Area(area), stream, read_numbers(kinds), read_numbers(codes))


def read_numbers(text: str) -> dict[str, int]:
    """``name number, name number``."""
    pairs = (entry.rsplit(" ", 1) for entry in text.split(", ") if entry)
    return {name: int(number) for name, number in pairs}


def count_all() -> Iterator[Counts]:
    """Count every stream of every area anew."""
    for area in Area:
        for stream in request_streams(area):
            yield count_stream(stream)


def count_stream(stream: Stream) -> Counts:
    """Count one stream: the same requests that a check draws."""
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    among = reachable(stream.area)

    def note(request: Request) -> None:
        kinds[type(request).__name__] += 1
        code = driven_code(answer(realize_request(request)), among)
        if code is not None:
            codes[code] += 1

    examples = PROFILE.examples(stream.weight, drives_code=bool(stream.codes))
    exercise(stream.strategy, note, examples, SEED, (Phase.generate,))
    return Counts(stream.area, stream.name, kinds, codes)


def render_counts(counts: Iterable[Counts]) -> str:
    """The module that keeps them."""
    return HEAD + "".join(map(render_line, counts)) + '"""\n'


def render_line(counts: Counts) -> str:
    """One stream, on as many lines as it takes."""
    kinds, codes = (
        ", ".join(f"{name} {number}" for name, number in sorted(numbers.items()))
        for numbers in (counts.kinds, counts.codes)
    )
    line = f"{counts.area.value} {counts.stream} = {kinds}" + (f" > {codes}" if codes else "")
    wrapped = textwrap.wrap(line, 118, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapped) + "\n"
