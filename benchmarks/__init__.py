"""Side-by-side measurements: ours, the peer and the physical limit, in one process and in one run.

``python -m benchmarks`` runs every module of this package that has a ``main() -> Iterable[Table]``: one topic each.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
"""tensordict calls a function that torch has renamed; its warning would appear in every process's output."""


@frozen
class Plot:
    """Which columns of a table to draw: one line each over the first column, both axes logarithmic."""

    name: str
    """The file's name, without its ending."""
    lines: tuple[str, ...]
    x: str
    y: str
    """The labels of the axes."""


@frozen
class Table:
    """The result of one measurement: rows of values under ``columns``, and what a reader must know to judge them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """A value that was not measured is None."""
    notes: tuple[str, ...] = field(default=())
    plot: Plot | None = None
    estimate: bool = False
    """Whether the figures are derived from counts and data sheets: nothing was measured."""

    def line(self, column: str) -> list[tuple[float, float]]:
        """Return the points of one column over the first, where it was measured."""
        index = self.columns.index(column)
        return [(row[0], row[index]) for row in self.rows if row[index] is not None]


@frozen
class Timing:
    """The seconds that one contestant took, run by run."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """The fastest run: other load on the machine can only add to it."""
        return min(self.seconds)

    def over(self, other: Timing) -> tuple[float, float]:
        """Return how many times as long as ``other`` it took: (smallest, median) over the rounds in which both ran."""
        ratios = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        return min(ratios), statistics.median(ratios)


UPPER_SIZES: Final = 3
"""How many of the largest sizes say how a cost grows; below them a fixed cost hides it."""


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return how fast a cost grows with its size: 1 is linear, 2 quadratic.

    The slope of the least-squares line through the logarithms of the ``UPPER_SIZES`` largest points; None for fewer
    than two.
    """
    upper = sorted(points)[-UPPER_SIZES:]
    if len(upper) < 2:
        return None
    return statistics.linear_regression(*zip(*((math.log(x), math.log(y)) for x, y in upper), strict=True)).slope


ROUND_SECONDS: Final = 0.05
"""A contestant runs as often per round as fits into this, at least once."""


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time every contestant once per round, so that other load on the machine affects all of them.

    A first round is not measured; it tells how often each fits into ``ROUND_SECONDS``. The order turns from round to
    round, and the garbage collector stays off while the clock runs.
    """
    names: Sequence[str] = list(contestants)
    repeats = {name: max(1, int(ROUND_SECONDS / timed(contestants[name], 1))) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        start = index % len(names)
        for name in (*names[start:], *names[:start]):
            seconds[name].append(timed(contestants[name], repeats[name]))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def timed(call: Callable[[], object], repeats: int) -> float:
    """Return the seconds per call, over ``repeats`` calls in a row."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - started) / repeats
    finally:
        gc.enable()
