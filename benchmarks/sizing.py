"""What a group costs each kind of process, as a model: fitted to points that were measured, and asked for others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, count, product
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen

from benchmarks.queueing import Station, rates, rates_on, with_thinkers

COUNTS: Final = (1, 2, 4, 8)
"""Of finalizers, and of storage units."""
ROLLOUTS, CALLS = 8, 10
ROWS: Final = ROLLOUTS * CALLS
STAGE, FINALIZE, READ = PHASES = ("staging", "finalizing", "reading")
KINDS: Final = ("client", "storage units", "controller")
SHARES: Final = tuple(step / 100 for step in range(20, 101))
TRAINERS: Final = 1000
BUSY: Final = 0.7
"""Of its time, at most, is what everything is sized for."""


@frozen
class Point:
    """One phase of some groups: with how many processes, how fast, and the CPU seconds per group by ``KINDS``."""

    phase: str
    units: int
    finalizers: int
    tokens: int
    rate: float
    seconds: tuple[float, ...]

    @property
    def fitted(self) -> bool:
        """Whether the model is fitted on this point, or compared with it: a chessboard of the counts."""
        return (COUNTS.index(self.units) + COUNTS.index(self.finalizers)) % 2 == 0


@frozen
class Model:
    """CPU seconds of a group by phase and kind, linear in tokens and units; and what the machine adds and withholds."""

    costs: Mapping[tuple[str, str], tuple[float, ...]]
    latency: float = 0.0
    """Seconds per group that are nobody's CPU time; negative where more is done side by side than the model has."""
    share: float = 1.0
    """How much of its cores a machine gives to these processes once they want all."""

    def cost(self, phase: str, units: int, tokens: int) -> tuple[float, ...]:
        """Return the seconds of ``KINDS``: a client, all storage units together, the controller."""
        return tuple(float(np.dot(self.costs[phase, kind], terms(units, tokens))) for kind in KINDS)

    def whole(self, units: int, tokens: int) -> tuple[float, ...]:
        """Return the seconds of all three phases."""
        return tuple(map(sum, zip(*(self.cost(phase, units, tokens) for phase in PHASES), strict=True)))

    def rates(
        self, units: int, finalizers: int, tokens: int, cores: float = math.inf, beside: float = 0
    ) -> list[float]:
        """Return the groups per second with 1, 2, … finalizers, while so many a second are staged and read."""
        (client, storage, controller), whole = self.cost(FINALIZE, units, tokens), self.whole(units, tokens)
        free = 1 - beside * (whole[1] - storage) / units, 1 - beside * (whole[2] - controller)
        stations = [Station(storage / units / free[0], units), Station(controller / free[1])]
        apart = rates(stations, finalizers, max(0.0, client + self.latency))
        if math.isinf(cores):
            return apart
        shared = rates_on(self.share * cores, client + storage + controller, finalizers, self.latency)
        return list(map(min, apart, shared))

    def rate(self, point: Point, cores: float) -> float:
        """Return the groups per second of a point, on a machine with so many cores."""
        return self.rates(point.units, point.finalizers, point.tokens, cores)[-1]

    def error(self, points: Iterable[Point], cores: float) -> tuple[float, float]:
        """Return the median and the largest error of the rates of points that it was not fitted on, in percent."""
        held_out = (point for point in points if point.phase == FINALIZE and not point.fitted)
        return off((self.rate(point, cores), point.rate) for point in held_out)


def terms(units: int, tokens: int) -> tuple[float, float, float]:
    """Return what costs are linear in: a read of a group asks as many units as it has rows, at most."""
    return 1.0, tokens, min(units, ROWS) - 1


def off(found: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the median and the largest relative error of pairs (model, measured), in percent."""
    errors = [100 * abs(ours / theirs - 1) for ours, theirs in found]
    return statistics.median(errors), max(errors)


def nonnegative(design: Any, values: Any) -> tuple[float, ...]:
    """Return the coefficients, none of them negative, that fit best relative to the values."""
    scaled, fits = design / values[:, None], list[Any]()
    for size in range(1, design.shape[1] + 1):
        for columns in map(list, combinations(range(design.shape[1]), size)):
            found = np.zeros(design.shape[1])
            found[columns] = np.linalg.lstsq(scaled[:, columns], np.ones(len(values)))[0]
            if found.min() >= 0:
                fits.append(found)
    best = min(fits, key=lambda found: float(np.square(scaled @ found - 1).sum()))
    return tuple(best.tolist())


def fit(points: Sequence[Point], cores: float) -> Model:
    """Return the model of these points: latency from what one finalizer takes, share from what several reach."""
    costs = {}
    for phase, (index, kind) in product(PHASES, enumerate(KINDS)):
        those = [point for point in points if point.phase == phase]
        design = np.array([terms(point.units, point.tokens) for point in those])
        costs[phase, kind] = nonnegative(design, np.array([point.seconds[index] for point in those]))
    model, finalizing = Model(costs), [point for point in points if point.phase == FINALIZE]
    alone = [point for point in finalizing if point.finalizers == 1]
    late = statistics.mean(1 / point.rate - 1 / model.rate(point, cores) for point in alone)

    def misses(share: float) -> float:
        tried = evolve(model, latency=late, share=share)
        return sum(abs(math.log(tried.rate(point, cores) / point.rate)) for point in finalizing)

    return evolve(model, latency=late, share=min(SHARES, key=misses))


def plan(model: Model, demand: float, tokens: int, network: float) -> tuple[int, int, int, float]:
    """Return the fewest queues for a demand, then storage units and finalizers of each, and the groups per second.

    These are by the model, where every trainer waits for its group before it goes on. ``network`` is in seconds.
    """

    def fits(units: int, asked: float) -> bool:
        _, storage, controller = model.whole(units, tokens)
        return asked * max(storage / units, controller, network / units) <= BUSY

    sizes = ((queues, units) for queues in count(1) for units in range(1, ROWS + 1))
    queues, units = next((queues, units) for queues, units in sizes if fits(units, demand / queues))
    asked, trainers = demand / queues, max(1, round(TRAINERS / queues))
    (client, storage, controller), whole = model.cost(FINALIZE, units, tokens), model.whole(units, tokens)
    waits = Station(storage / units, units).residence(0) / (1 - asked * whole[1] / units)
    held = client + model.latency + waits + controller / (1 - asked * whole[2])
    finalizers = max(1, math.ceil(asked * held / BUSY))
    served = model.rates(units, finalizers, tokens, beside=asked)
    return queues, units, finalizers, with_thinkers(served, trainers, TRAINERS / demand) * TRAINERS / trainers
