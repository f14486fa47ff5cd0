"""The data planes over which the gate can run a reassembler: the memory's, and a TransferQueue on a local Ray."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field
from tensordict import TensorDictBase

from rollproof.impl.dataplane.transfer_queue import ColumnConflict, TransferQueueDataPlane, local_queue
from rollproof.properties.adapters.reassembler import ReassemblerAdapter
from rollproof.properties.errors import InputError

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
    on_queue.make_plane = QueuePartitions(TransferQueueDataPlane(TIMEOUT_S)).fresh
    return on_queue


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
