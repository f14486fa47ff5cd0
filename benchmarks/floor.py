"""How close does a finalizer come to what TransferQueue itself allows: one get, one put and one clear, unverified?

The floor takes the same columns of the same rows out of the queue in one read, puts the very rows that finalizing
publishes, and clears what was staged, by the queue's own functions. Nothing is looked at. One process does both. Beside
it stands the floor of whoever verifies on one thread: the same, and SHA-256 over as many bytes as the digests cover.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from attrs import define, field, frozen

from benchmarks import Table, timed
from benchmarks.inputs import STAGING, TRAIN, PreparedPlane, StagedGroup, fill, group_of
from rollproof.impl import base64
from rollproof.impl.actor import settle
from rollproof.impl.dataplane import new_answers
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.spec.constants import ROUTED_EXPERTS, STEP_TIMES

FLOOR, HASHED = "the floor", "the floor, and SHA-256"
BY_ROLLOUT, BY_GROUP = "finalize, reads by rollout", "finalize, reads by group"


@frozen
class Shape:
    """Groups of one form, and how often to measure them."""

    title: str
    rollouts: int
    calls: int
    tokens: int
    rounds: int = 5
    routed_dims: tuple[int, int] | None = None
    image: int | None = None

    def build(self) -> StagedGroup:
        """Return one such group, staged."""
        return group_of(self.rollouts, self.calls, self.tokens, self.routed_dims, self.image)

    def finalizer(self, plane: Any, reads: str) -> RolloutReassembler:
        """Return what finalizes it."""
        return RolloutReassembler(
            plane,
            partition_id=TRAIN,
            staging_partition=STAGING,
            pad_token_id=0,
            max_seq_len=2**31,
            router_replay_enabled=self.routed_dims is not None,
            routed_dims=self.routed_dims,
            capture_media=self.image is not None,
            reads=reads,
        )


SHAPES: Final = (
    Shape("8 x 10 calls x 500 tokens", 8, 10, 500, 9),
    Shape("16 x 20 calls x 1,600 tokens", 16, 20, 1600, 9),
    Shape("16 x 20 calls x 1,600 tokens, routes of 8 layers x 4", 16, 20, 1600, 9, routed_dims=(8, 4)),
    Shape("8 x 4 calls x 500 tokens, an image of 448 x 448 each", 8, 4, 500, 9, image=448),
    Shape("16 x 1,000 calls x 32 tokens", 16, 1000, 32, 2),
)


@define(eq=False)
class Clocked:
    """A data plane that says how long its methods took, which columns were read, and what was put last."""

    plane: Any
    seconds: dict[str, float] = field(factory=lambda: dict.fromkeys(("get", "put", "clear"), 0.0))
    columns: dict[str, None] = field(factory=dict)
    put: dict[str, Any] = field(factory=dict)

    @new_answers
    def get_samples(self, **arguments: Any) -> Any:
        """Read rows."""
        self.columns |= dict.fromkeys(arguments["select_fields"])
        return self._time("get", self.plane.get_samples, arguments)

    def put_samples(self, **arguments: Any) -> Any:
        """Write rows."""
        self.put = arguments
        return self._time("put", self.plane.put_samples, arguments)

    def clear_samples(self, **arguments: Any) -> Any:
        """Remove rows."""
        return self._time("clear", self.plane.clear_samples, arguments)

    def _time(self, name: str, method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        started = time.perf_counter()
        try:
            return method(**arguments)
        finally:
            self.seconds[name] += time.perf_counter() - started


class QueueAlone:
    """TransferQueue's own functions under a data plane's names: no confirmation, no care for what they answer."""

    def __init__(self) -> None:
        # Imported once the environment says that it should be quiet.
        self.queue = importlib.import_module("transfer_queue")

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows that are there, put together by the queue itself and not by our data plane."""
        manager = vars(self.queue.get_client().storage_manager)
        ours = {name: manager.pop(name) for name in ("_pack_field_values",) if name in manager}
        try:
            return self.queue.kv_batch_get(sample_ids, partition_id, select_fields)
        finally:
            manager.update(ours)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any, tags: Any) -> None:
        """Write rows."""
        self.queue.kv_batch_put(sample_ids, partition_id, fields, tags)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows."""
        self.queue.kv_clear(sample_ids, partition_id)


@frozen
class Run:
    """Where the milliseconds of one group went."""

    total: float
    get: float
    put: float
    clear: float
    verify: float = 0.0
    """Verification, and the assembly of routes and media."""
    pack: float = 0.0
    """The columns of the published rows, and the metrics."""


def hashed(group: StagedGroup) -> list[bytearray]:
    """Return buffers as long as what the digests of a group cover: calls, chains, rows, and routes in base64."""
    buffers = [buffer for rollout in group.rollouts for buffer in rollout.hashed]
    for rollout in group.rollouts:
        routes = rollout.answer.get(ROUTED_EXPERTS, None)
        if routes is not None:
            calls = len(rollout.chain)
            buffers += [bytearray(base64.encoded_length(routes.values().nbytes // calls)) for _ in range(calls)]
    return buffers


def floor_of(shape: Shape, group: StagedGroup, buffers: Sequence[bytearray] = ()) -> Callable[[], Run]:
    """Return what moves a staged group through the queue as finalizing does, looks at nothing, and hashes buffers."""
    example = Clocked(PreparedPlane(group))
    group.finalize(shape.finalizer(example, "rollout"))
    keys = [key for rollout in group.rollouts for key in rollout.keys]
    columns = list(example.columns)

    def run() -> Run:
        plane = Clocked(QueueAlone())

        def move() -> None:
            plane.get_samples(sample_ids=keys, partition_id=STAGING, select_fields=columns)
            for buffer in buffers:
                sha256(buffer)
            plane.put_samples(**example.put)
            plane.clear_samples(sample_ids=keys, partition_id=STAGING)

        return Run(1e3 * timed(move, 1), **milliseconds(plane))

    return run


def finalizing(shape: Shape, group: StagedGroup, queue: Any, reads: str) -> Callable[[], Run]:
    """Return what finalizes a staged group."""

    def run() -> Run:
        plane, results = Clocked(queue), []
        finalizer = shape.finalizer(plane, reads)
        total = 1e3 * timed(lambda: results.append(group.finalize(finalizer)), 1)
        found = milliseconds(plane)
        read, build = (results[0].metrics[name] for name in STEP_TIMES[:2])
        return Run(total, **found, verify=read - found["get"], pack=build)

    return run


def milliseconds(plane: Clocked) -> dict[str, float]:
    return {name: 1e3 * seconds for name, seconds in plane.seconds.items()}


def contestants(shape: Shape, group: StagedGroup, queue: Any) -> dict[str, Callable[[], Run]]:
    """Return what takes the staged group out of the queue and publishes it, by name."""
    return {
        FLOOR: floor_of(shape, group),
        HASHED: floor_of(shape, group, hashed(group)),
        BY_ROLLOUT: finalizing(shape, group, queue, "rollout"),
        BY_GROUP: finalizing(shape, group, queue, "group"),
    }


def measure(shape: Shape, queue: Any) -> dict[str, list[Run]]:
    """Return the runs of every contestant, which take turns; staging, and clearing what was published, is untimed."""
    group = shape.build()
    run = contestants(shape, group, queue)
    names = list(run)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for index in range(shape.rounds):
        start = index % len(names)
        for name in (*names[start:], *names[:start]):
            fill(queue, group)
            runs[name].append(run[name]())
            queue.clear_samples(None, TRAIN)
    return runs


def rows_of(shape: Shape, runs: Mapping[str, list[Run]]) -> Iterable[tuple[Any, ...]]:
    """Yield a row per contestant: medians over the rounds, and the ratio to the floor within them."""
    for name, mine in runs.items():
        ratios = [floor.total / run.total for floor, run in zip(runs[FLOOR], mine, strict=True)]
        parts = [statistics.median(getattr(run, part) for run in mine) for part in ("get", "put", "clear")]
        own: list[float | None] = [None, None]
        if name not in (FLOOR, HASHED):
            own = [statistics.median(getattr(run, part) for run in mine) for part in ("verify", "pack")]
        total = statistics.median(run.total for run in mine)
        yield shape.title, name, 1e3 / total, statistics.median(ratios), max(ratios), *parts, *own


def main(shapes: Iterable[Shape] = SHAPES) -> Iterable[Table]:
    """Yield one table: every shape, the floor first."""
    rows: list[tuple[Any, ...]] = []
    warm = Shape("warm", 2, 2, 8, 1)
    shapes = list(shapes)
    with local_queue():
        queue = TransferQueueDataPlane()
        measure(warm, queue)
        settle()
        for shape in shapes:
            rows += rows_of(shape, measure(shape, queue))
        queue.close()
    rounds = ", ".join(str(shape.rounds) for shape in shapes)
    yield Table(
        "finalizing over TransferQueue, beside the same rows moved through it unverified",
        ("group", "contestant", "groups/s", "x floor", "best x floor", "get", "put", "clear", "verify", "pack"),
        tuple(rows),
        (
            f"Medians of {rounds} rounds of one group, in turn; from get on in milliseconds. The ratio is to the floor "
            "of the same round. Staging is outside the clock.",
            "SHA-256 is over as many bytes as the digests of the group cover; pixels have none.",
            "Get, put and clear: inside the data plane. Ours asks the controller once more after a get and a put.",
            "Verify: with the assembly of routes and media. Pack: the columns and metrics of what is published.",
            "Queue, storage units and finalizer share this machine's processors. What is loaded is out of the garbage "
            "collector's sight, as in the actor.",
        ),
    )
