"""The data planes over which the gate can run a reassembler: the memory's, and a TransferQueue on a local Ray.

TransferQueue has a property that no client can undo; over it, an implementation declares it beside its own deviations.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field
from tensordict import TensorDictBase

from rollproof.impl.dataplane.transfer_queue import ColumnConflict, TransferQueueDataPlane, local_queue
from rollproof.properties.adapters.reassembler import ReassemblerAdapter
from rollproof.properties.errors import InputError
from rollproof.properties.protocol import Deviation
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import PublishedRow, Put
from rollproof.spec.requests import Accepted, Answer, Area, FinalizeGroups, FinalizeRollout, Request, RolloutAnswer

MEMORY: Final = "memory"
TRANSFER_QUEUE: Final = "transfer-queue"
DATA_PLANES: Final = (MEMORY, TRANSFER_QUEUE)

TIMEOUT_S: Final = 60.0


def running(name: str) -> AbstractContextManager[None]:
    """A context in which the data plane can be used in this process."""
    return local_queue() if name == TRANSFER_QUEUE else nullcontext()


def over(implementation: Any, name: str) -> Any:
    """The implementation over a data plane. ``InputError`` where it has no data plane to choose."""
    if name == MEMORY:
        return implementation
    if not isinstance(implementation, ReassemblerAdapter):
        raise InputError(f"{implementation.name} is no reassembler over a data plane: --data-plane does not apply")
    on_queue: Any = implementation
    on_queue.deviations = (*implementation.deviations, *FORGOTTEN)
    on_queue.make_plane = QueuePartitions(TransferQueueDataPlane(TIMEOUT_S)).fresh
    return on_queue


# ── what the queue forgets ──────────────────────────────────────────────────────────────────────────────────────────


def forgets_columns(request: Request, expected: Answer, actual: Answer) -> bool:
    """Whether rows in two dtypes lost columns, and nothing came of it but rollouts that are rejected.

    The controller marks a put as done before it compares dtypes, and at the first column whose live rows have another
    one it leaves off: neither that column nor those after it are noted for the row. Where the rows for which they were
    noted are cleared, the columns are gone from the controller, although the storage unit has them.
    """
    if not isinstance(request, FinalizeRollout | FinalizeGroups) or not mixes_dtypes(request):
        return False
    if not isinstance(expected, Accepted) or not isinstance(actual, Accepted):
        return False
    if isinstance(actual.value, RolloutAnswer):
        return actual.value.rollout is not None and not actual.value.rollout.valid
    return all(
        step.failure == contract.failure and only_rejects(contract, step)
        for contract, step in zip(expected.value, actual.value, strict=True)
    )


def mixes_dtypes(request: FinalizeRollout | FinalizeGroups) -> bool:
    """Whether one column is staged in several dtypes."""
    dtypes = defaultdict(set)
    for row in request.staging.rows.values():
        for name, value in row.items():
            dtypes[name].add(value.dtype)
    return any(len(found) > 1 for found in dtypes.values())


def only_rejects(contract: GroupOutcome, own: GroupOutcome) -> bool:
    """Whether every row that was published is the contract's, or trains nothing."""
    required = rows_of(contract)
    return all(
        row == required.get(key) or not any(row.columns["sample_mask"].values()) for key, row in rows_of(own).items()
    )


def rows_of(outcome: GroupOutcome) -> Mapping[str, PublishedRow]:
    """The published rows by sample id."""
    puts = (effect for effect in outcome.effects if isinstance(effect, Put))
    return {key: row for put in puts for key, row in zip(put.sample_ids, put.rows, strict=True)}


FORGOTTEN: Final = tuple(
    Deviation(
        "transfer-queue-forgets-columns",
        area,
        "7",
        "A row that another client put in another dtype than the live rows have loses columns once those are cleared: "
        "TransferQueue's controller stops at the mismatch. The rollout is rejected; our client refuses such a put.",
        forgets_columns,
    )
    for area in (Area.ROUTES, Area.MEDIA)
)


# ── one queue for many requests ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class QueuePartitions:
    """Gives each request partitions of its own on one queue, and clears those of the one before."""

    queue: TransferQueueDataPlane
    _serials: Iterator[int] = field(factory=itertools.count, init=False)
    _last: OwnPartitions | None = field(default=None, init=False)

    def fresh(self) -> OwnPartitions:
        """An empty data plane; the last one is cleared and must no longer be used."""
        self.clear()
        self._last = OwnPartitions(self.queue, f"request {next(self._serials)}")
        return self._last

    def clear(self) -> None:
        """Remove what the last request left."""
        for partition in self._last.partitions if self._last else ():
            self.queue.clear_samples(None, partition)
        self._last = None


@define(eq=False)
class OwnPartitions:
    """A queue whose partitions have a prefix to their names."""

    queue: TransferQueueDataPlane
    prefix: str
    partitions: set[str] = field(factory=set, init=False)

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Write rows. What our client refuses, a worker with another client would have staged: so it is here."""
        partition = self._own(partition_id)
        try:
            self.queue.put_samples(sample_ids, partition, fields, tags)
        except ColumnConflict:
            import transfer_queue

            transfer_queue.kv_batch_put(sample_ids, partition, fields, tags)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """Read rows."""
        return self.queue.get_samples(sample_ids, self._own(partition_id), select_fields)

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Remove rows."""
        self.queue.clear_samples(sample_ids, self._own(partition_id))

    def _own(self, partition_id: str) -> str:
        partition = f"{self.prefix}/{partition_id}"
        self.partitions.add(partition)
        return partition
