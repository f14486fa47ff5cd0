"""How many finalizers and storage units does a training run need, and what is full first?

Finalizers and TransferQueue's storage units run as Ray actors on this one machine, one to eight of each, and every
finalizer always has a group. What a group costs is the CPU time of each kind of process. A closed queueing network
with these costs, bounded by the machine's cores, is fitted on half of the points and compared with the other half.
Then it is asked about machines that are not here, on which every process has a core of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain, product
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen
from tensordict import TensorDict

from benchmarks import Table, inputs
from benchmarks.group import finalizer
from benchmarks.inputs import STAGING, TRAIN, PreparedPlane, StagedGroup, chain_of, rollout_of
from benchmarks.memory import published_bytes
from benchmarks.sizing import (
    BUSY,
    CALLS,
    COUNTS,
    FINALIZE,
    KINDS,
    PHASES,
    READ,
    ROLLOUTS,
    ROWS,
    STAGE,
    TRAINERS,
    Model,
    Point,
    fit,
    off,
    plan,
)
from rollproof.impl.actor import ReassemblyRequest, RolloutReassemblerActor, RolloutReassemblerActorConfig
from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import MissingRows
from rollproof.impl.dataplane.memory import pack_rows
from rollproof.impl.dataplane.transfer_queue import (
    CONTROLLER,
    OBJECT_STORE_BYTES,
    QUIET,
    TransferQueueDataPlane,
    local_queue,
)
from rollproof.impl.staging import STAGED_TAGS

SHORT, LONG = 40_000, 320_000
"""Tokens of a group: 500 and 4,000 of each call."""
EACH, AT_LEAST, ROUNDS = 3, 8, 2
"""Groups per finalizer, and in all, of a point; of its rounds, the fastest counts."""
IDLE_S: Final = 2.0
LEAST_S: Final = 1e-6
"""Of CPU time, which is a difference."""
COLUMNS: Final = ("input_ids", "input_lengths", "token_mask", "generation_logprobs", "total_reward", "sample_mask")
"""What a trainer reads, of what is published."""
DEMANDS: Final = (1, 3, 10, 30, 100)
"""Groups per second, of all trainers together."""
GBITS: Final = 25.0
"""Of a storage unit's network, each way."""


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Farm:
    """A running queue, and finalizers."""

    plane: Any
    units: int
    finalizers: Sequence[Any]
    idle: Any = 0.0
    """CPU seconds per second that processes take while nothing is asked of them."""

    def spent(self) -> Any:
        """Return the CPU seconds so far: of this process, the finalizers, the storage units, the controller."""
        import ray

        units = [ray.get_actor(f"TransferQueueStorageUnit#{unit}") for unit in range(self.units)]
        kinds = self.finalizers, units, [ray.get_actor(**CONTROLLER)]
        asked = [[actor.__ray_call__.remote(lambda _: time.process_time()) for actor in kind] for kind in kinds]
        return np.array([time.process_time(), *(sum(ray.get(kind)) for kind in asked)])

    def resting(self) -> Farm:
        """Return the farm with what it takes while idle."""
        before = self.spent()
        time.sleep(IDLE_S)
        return evolve(self, idle=(self.spent() - before) / IDLE_S)

    def point(self, phase: str, finalizers: int, groups: Sequence[StagedGroup], act: Callable[[], None]) -> Point:
        """Measure what puts the groups through a phase."""
        before, started = self.spent(), time.perf_counter()
        act()
        wall = time.perf_counter() - started
        costs = (self.spent() - before - wall * self.idle) / len(groups)
        here, there, storage, controller = np.maximum(costs, LEAST_S).tolist()
        client = there if phase == FINALIZE else here
        return Point(phase, self.units, finalizers, groups[0].tokens, len(groups) / wall, (client, storage, controller))

    def life(self, groups: Sequence[StagedGroup]) -> Iterator[Point]:
        """Yield what surrounds finalizing: groups are staged call by call, and read by a trainer."""
        rows = list(chain.from_iterable(map(calls_of, groups)))
        yield self.point(STAGE, 1, groups, lambda: self.stage(rows))
        self.finalize(1, groups)
        yield self.point(READ, 1, groups, lambda: self.read(groups))

    def grid(self, finalizers: int, groups: Sequence[StagedGroup]) -> Point:
        """Measure finalizing by so many."""
        groups, rounds = groups[: max(EACH * finalizers, AT_LEAST)], []
        for _ in range(ROUNDS):
            self.fill(groups)
            rounds.append(self.point(FINALIZE, finalizers, groups, lambda: self.finalize(finalizers, groups)))
            self.plane.clear_samples(None, TRAIN)
        return max(rounds, key=lambda point: point.rate)

    def fill(self, groups: Iterable[StagedGroup]) -> None:
        """Stage groups with one write each, which is not measured."""
        for group in groups:
            keys, fields = batch_of(group)
            self.plane.put_samples(keys, STAGING, fields, [{}] * len(keys))

    def stage(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Write calls as a sink does, which first looks whether they are there."""
        for key, fields in rows:
            with suppress(MissingRows):
                self.plane.get_samples([key], STAGING, ["digest_bytes"])
            self.plane.put_samples([key], STAGING, fields, [dict.fromkeys(STAGED_TAGS, 0)])

    def finalize(self, finalizers: int, groups: Sequence[StagedGroup]) -> None:
        """Finalize staged groups, by so many finalizers in turn."""
        import ray

        actors = [self.finalizers[index % finalizers] for index in range(len(groups))]
        results = [actor.finalize.remote(request_of(group)) for actor, group in zip(actors, groups, strict=True)]
        if any(result.valid_row_count != ROLLOUTS for result in ray.get(results)):
            raise AssertionError("a row was rejected")

    def read(self, groups: Iterable[StagedGroup]) -> None:
        """Take groups as a trainer does."""
        for group in groups:
            ids = [rollout.receipt["rollout_id"] for rollout in group.rollouts]
            self.plane.get_samples(ids, TRAIN, list(COLUMNS))
            self.plane.clear_samples(ids, TRAIN)


def groups_of(name: str, tokens: int, number: int) -> list[StagedGroup]:
    """Return groups of so many tokens."""
    parents, each = chain_of(CALLS), tokens // ROWS
    names = ([f"{name}-{group}_g{index}" for index in range(ROLLOUTS)] for group in range(number))
    return [StagedGroup(tuple(rollout_of(parents, each, rollout) for rollout in rollouts)) for rollouts in names]


def request_of(group: StagedGroup) -> ReassemblyRequest:
    receipts = tuple(rollout.receipt for rollout in group.rollouts)
    ids = tuple(receipt["rollout_id"] for receipt in receipts)
    name = ids[0].removesuffix("_g0")
    return ReassemblyRequest(name, ids, None, receipts, (1.0,) * ROLLOUTS, 0, 0, (False,) * ROLLOUTS)


def calls_of(group: StagedGroup) -> Iterator[tuple[str, Any]]:
    """Yield each call's key and its row."""
    for rollout in group.rollouts:
        columns = {name: column_rows(column) for name, column in rollout.answer.items()}
        for index, key in enumerate(rollout.keys):
            yield key, TensorDict({name: pack_rows([rows[index]]) for name, rows in columns.items()}, batch_size=[1])


@cache
def batch_of(group: StagedGroup) -> tuple[list[str], Any]:
    """Return the keys of all calls, and their rows as one batch."""
    columns: dict[str, list[Any]] = {}
    for rollout in group.rollouts:
        for name, column in rollout.answer.items():
            columns.setdefault(name, []).extend(column_rows(column))
    keys = [key for rollout in group.rollouts for key in rollout.keys]
    return keys, TensorDict({name: pack_rows(rows) for name, rows in columns.items()}, batch_size=[len(keys)])


@contextmanager
def own_ray() -> Iterator[None]:
    """Start a Ray for queues of all sizes."""
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    import ray

    quiet: Any = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(num_cpus=max(COUNTS) + 1, object_store_memory=OBJECT_STORE_BYTES, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def finalizers_of(number: int) -> list[Any]:
    """Start finalizers, which attach to a queue when they are first used, beside what Ray's processors are for."""
    config = RolloutReassemblerActorConfig(TRAIN, STAGING, 0, False, False, 2**31, reads="group")
    actor = RolloutReassemblerActor.options(num_cpus=0)
    return [actor.remote(TransferQueueDataPlane(), config) for _ in range(number)]


def measure() -> Iterator[Point]:
    """Yield every point of the grid, and beside it what staging and reading cost."""
    import ray

    def let_go(actor: Any) -> None:
        import transfer_queue

        actor._reassembler._dp_client.close()
        transfer_queue.close()

    most = max(COUNTS)
    short, long = groups_of("short", SHORT, max(EACH * most, AT_LEAST)), groups_of("long", LONG, AT_LEAST)
    warm = groups_of("warm", 2 * ROWS, most)
    with own_ray():
        finalizers = finalizers_of(most)
        for units in COUNTS:
            with local_queue({"backend": {"SimpleStorage": {"num_data_storage_units": units}}}):
                farm = Farm(TransferQueueDataPlane(), units, finalizers)
                farm.fill(warm)
                farm.finalize(most, warm)
                farm.plane.clear_samples(None, TRAIN)
                farm = farm.resting()
                yield from chain(farm.life(short[:2]), farm.life(long[:2]))
                yield from (farm.grid(number, short) for number in COUNTS)
                yield farm.grid(COUNTS[1], long)
                farm.plane.close()
            ray.get([one.__ray_call__.remote(let_go) for one in finalizers])


# ── what follows ────────────────────────────────────────────────────────────────────────────────────────────────────


def network_s(tokens: int) -> float:
    """Return how long a group's bytes take, each way: what is staged and what is published, written once, read once."""
    group = inputs.group_of(ROLLOUTS, CALLS, tokens // ROWS)
    plane = PreparedPlane(group)
    group.finalize(finalizer(plane))
    staged = sum(published_bytes(rollout.answer) for rollout in group.rollouts)
    return 8 * (staged + published_bytes(plane.put)) / (GBITS * 1e9)


def main(points: Iterable[Point] | None = None) -> Iterable[Table]:
    """Yield what was measured, beside the model that was fitted to it, and what this says of larger machines."""
    found, cores = list(measure() if points is None else points), len(os.sched_getaffinity(0))
    model = fit([point for point in found if point.fitted], cores)
    median, largest = model.error(found, cores)
    rows: list[tuple[Any, ...]] = []
    for one in found:
        if one.phase == FINALIZE:
            ours, use = model.rate(one, cores), "fitted" if one.fitted else "held out"
            error, parts = 100 * (ours / one.rate - 1), [1e3 * seconds for seconds in one.seconds]
            rows.append((f"{one.tokens:,}", one.units, one.finalizers, one.rate, ours, error, use, *parts))
    yield Table(
        f"finalizing groups of {ROLLOUTS} rollouts of {CALLS} calls; {cores} cores for all processes",
        ("tokens", "units", "finalizers", "groups/s", "model", "error %", "point", *(f"{kind} ms" for kind in KINDS)),
        tuple(rows),
        (
            f"Held out: not fitted on. There the model is off by {median:.0f}% in the median, {largest:.0f}% at most.",
            f"Fitted beside the costs: {1e3 * model.latency:+.1f} ms per group that are nobody's CPU time (below zero: "
            f"more is done side by side than the model has), and {model.share:.0%} of the cores for these processes.",
            f"The faster of {ROUNDS} rounds of {EACH} groups per finalizer, at least {AT_LEAST}, with reads by group.",
            "Milliseconds: CPU time per group, without what processes take while idle. The client is the finalizer; "
            "storage units are taken together.",
        ),
    )
    rows, errors = [], {}
    for phase, (index, kind) in product(PHASES, enumerate(KINDS)):
        at = [1e3 * model.cost(phase, *sizes)[index] for sizes in ((1, SHORT), (max(COUNTS), SHORT), (1, LONG))]
        held_out = (point for point in found if point.phase == phase and not point.fitted)
        errors[phase, kind] = off(
            (model.cost(phase, one.units, one.tokens)[index], one.seconds[index]) for one in held_out
        )
        rows.append((phase, kind, *at, *errors[phase, kind]))
    sizes = f"{SHORT:,} tokens, 1 unit", f"{SHORT:,} tokens, {max(COUNTS)} units", f"{LONG:,} tokens, 1 unit"
    yield Table(
        "CPU milliseconds of a group, as the model has them",
        ("phase", "process", *sizes, "median error %", "largest error %"),
        tuple(rows),
        (
            "Errors: on points that it was not fitted on. The client is a worker, a finalizer, a trainer.",
            f"Staging: {ROWS} calls one by one, each looked for and then written, as a sink does. Reading: a trainer's "
            "columns in one read, and the clear.",
        ),
    )
    yield from estimates(model, largest, errors[STAGE, KINDS[2]][1])


def estimates(model: Model, largest: float, staging_error: float) -> Iterable[Table]:
    """Yield what is full first, and what serves a thousand trainers."""
    rows: list[tuple[Any, ...]] = []
    notes = []
    network = {tokens: network_s(tokens) for tokens in (SHORT, LONG)}
    for tokens, wire in network.items():
        client, (_, storage, controller) = model.cost(FINALIZE, 1, tokens)[0], model.whole(1, tokens)
        seconds = {"the controller": controller, "a storage unit": storage, "a finalizer": client}
        seconds[f"a unit's network, {GBITS:g} Gbit/s each way"] = wire
        rows += [(f"{tokens:,}", name, 1e3 * each, 1 / each) for name, each in seconds.items()]
        first, staging = max(seconds, key=lambda name: seconds[name]), model.cost(STAGE, 1, tokens)[2]
        notes.append(
            f"{tokens:,} tokens, one of each: {first} is full first. Finalizers and units can be added; a queue has "
            f"one controller: full at {1 / controller:.1f} groups/s. {staging / controller:.0%} of its work is "
            f"staging, {1e3 * staging / ROWS:.1f} ms per call."
        )
    columns = ("tokens", "what", "ms per group", "groups/s")
    title = "estimate: groups per second of one at most, over all phases, on a core of its own"
    yield Table(title, columns, tuple(rows), tuple(notes), estimate=True)
    rows = []
    for (tokens, wire), demand in product(network.items(), DEMANDS):
        queues, units, finalizers, reached = plan(model, demand, tokens, wire)
        gbits = GBITS * demand * wire / queues / units
        needed = queues, queues * units, queues * finalizers
        rows.append((f"{tokens:,}", demand, TRAINERS / demand, *needed, reached, gbits))
    yield Table(
        f"estimate: what serves {TRAINERS:,} trainers, with nothing busy for more than {BUSY:.0%} of its time",
        ("tokens", "groups/s asked", "s per trainer", "queues", "units", "finalizers", "groups/s", "Gbit/s per unit"),
        tuple(rows),
        (
            f"{TRAINERS:,} processes: each takes a group, trains it for so many seconds, and takes the next. As many "
            "groups are staged as are asked for.",
            "Several queues: as many Ray clusters, each with its share of the prompts; units and finalizers of all.",
            f"Its error is not known. Here, with up to {max(COUNTS)} finalizers and units, rates are off by up to "
            f"{largest:.0f}% where the model was not fitted, and what staging costs the controller by up to "
            f"{staging_error:.0f}%. Not in it: latency between machines, what many connections cost a controller, and "
            "partitions with more rows than there were here.",
        ),
        estimate=True,
    )
