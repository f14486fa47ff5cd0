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
from rollproof.properties.protocol import Deviation
from rollproof.spec.constants import MEDIA_FLAG_COLUMNS, SCALAR_COLUMNS
from rollproof.spec.requests import Answer, Area, Request

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
    on_queue.deviations = (*implementation.deviations, *WIDENED)
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


# ── what the queue cannot show ──────────────────────────────────────────────────────────────────────────────────────

NARROW: Final = frozenset({"int32", "int16", "int8", "uint8", "bool"})
"""Dtypes whose every value is an int64, so that torch stacks them with int64 as int64."""


def widened(request: Request, _expected: Answer, _actual: Answer) -> bool:
    """Whether some staged rows hold a scalar column as int64 and others hold it narrower."""
    rows = getattr(getattr(request, "staging", None), "rows", {})
    for name in (*SCALAR_COLUMNS, *MEDIA_FLAG_COLUMNS):
        dtypes = {row[name].dtype for row in rows.values() if name in row and len(row[name].shape) == 1}
        if "int64" in dtypes and dtypes & NARROW:
            return True
    return False


WIDENED: Final = tuple(
    Deviation(
        id=f"queue-widens-scalars-{area}",
        area=area,
        section="9",
        sentence=(
            "A scalar column that one row staged narrower than int64 and another as int64 arrives as int64: the queue "
            "stacks the rows before anybody sees them. The values are the same, and the digest covers them."
        ),
        applies=widened,
    )
    for area in (Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA)
)
