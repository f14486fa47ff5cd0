"""Side-by-side measurements: ours, the peer and the physical limit, in one process and in one run.

``python -m benchmarks`` runs every module of this package that has a ``main() -> Iterable[Table]``.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen


@frozen
class Table:
    """What one measurement found: rows of values under ``columns``, and what a reader must know to judge them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = field(default=())


@frozen
class Timing:
    """The seconds that one contestant took, run by run."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.seconds)

    def over(self, other: Timing) -> tuple[float, float]:
        """How many times as long as ``other``: (smallest, median) over the rounds in which both ran."""
        ratios = [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        return min(ratios), statistics.median(ratios)


def race(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Time every contestant once per round, so that whatever the machine does meets all of them.

    One unmeasured round comes first. The order turns from round to round, and the garbage collector stays off while
    the clock runs.
    """
    names: Sequence[str] = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 1):
        start = index % len(names)
        for name in (*names[start:], *names[:start]):
            taken = timed(contestants[name])
            if index:
                seconds[name].append(taken)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def timed(call: Callable[[], object]) -> float:
    """Seconds that one call takes; what it returns is dropped after the clock has stopped."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        result = call()
        taken = time.perf_counter() - started
    finally:
        gc.enable()
    del result
    return taken
