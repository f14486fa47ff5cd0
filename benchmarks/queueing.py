"""A closed queueing network, solved by mean value analysis, and customers who do something else in between.

Reiser and Lavenberg's recursion is exact for single servers. Equal servers that work on a customer side by side are
Varki's approximation (Mean value technique for closed fork-join networks, 1999), exact again where there is one; a
server of several cores is Seidmann's: one that is as fast as all of them, and a delay for the rest of one core's time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from attrs import frozen


@frozen
class Station:
    """``count`` servers with a queue each: a customer takes ``demand`` seconds of every one, side by side."""

    demand: float
    count: int = 1

    def residence(self, queue: float) -> float:
        """Return the seconds here of a customer who finds so many others: the last server to be done counts."""
        return self.demand * (sum(1 / server for server in range(1, self.count + 1)) + queue)


def rates(stations: Sequence[Station], customers: int, delay: float = 0.0) -> list[float]:
    """Return the customers per second with 1, 2, … ``customers`` of them; each is elsewhere for ``delay`` seconds."""
    queues, found = [0.0] * len(stations), list[float]()
    for count in range(1, customers + 1):
        residences = [station.residence(queue) for station, queue in zip(stations, queues, strict=True)]
        found.append(count / (delay + sum(residences)))
        queues = [found[-1] * residence for residence in residences]
    return found


def rates_on(cores: float, work: float, customers: int, delay: float = 0.0) -> list[float]:
    """Return the customers per second where each is ``work`` seconds of one core, and all share the cores."""
    return rates([Station(work / cores)], customers, max(0.0, delay + work * max(0.0, 1 - 1 / cores)))


def with_thinkers(served: Sequence[float], customers: int, think: float) -> float:
    """Return the customers per second where each thinks for ``think`` seconds and then joins one line.

    ``served`` is the line's rate with 1, 2, … customers in it, and the last of it with more: a subsystem that takes
    that many at a time (Norton's theorem for queueing networks). Exact for exponential times.
    """
    at = [served[min(count, len(served)) - 1] for count in range(1, customers + 1)]
    steps = (math.log((customers - count) / (think * rate)) for count, rate in enumerate(at))
    logs = list(accumulate(steps, initial=0.0))
    largest = max(logs)
    weights = [math.exp(value - largest) for value in logs]
    return sum(weight * rate for weight, rate in zip(weights[1:], at, strict=True)) / sum(weights)
