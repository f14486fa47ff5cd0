"""TransferQueue as a data plane: rows in storage units behind a controller, all of them Ray actors.

The queue answers in ways that a finalizer must not take at face value. A put returns although the controller never
learned of it; a read has no deadline; rows of different dtypes come back cast to one, or end the process that reads
them; and a row that is cleared while it is read may come back as the row that took its place. This module turns each of
them into a missing row, an error or the rows as they are, and otherwise leaves the queue's answers alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import torch
from attrs import define, field
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from rollproof.impl.dataplane.memory import pack_rows

T = TypeVar("T")

CONTROLLER: Final = {"name": "TransferQueueController", "namespace": "transfer_queue"}
"""The Ray actor by which processes find a running queue."""

START_CPUS: Final = 8
"""What a local Ray offers. The queue's actors take three; what nobody offers, its start waits for without end."""

OBJECT_STORE_BYTES: Final = 128 * 2**20
"""A local Ray's object store: rows go past it, from storage units to clients."""

QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",
    "TQ_LOGGING_LEVEL": "CRITICAL",
    "TQ_CLIENT_ZMQ_IO_THREADS": "1",
}
"""Environment of a local Ray and of its actors: no telemetry, no reports of misses that are answers here.

Ray runs its workers at niceness 15, at which a queue on a busy machine may take minutes to start.
"""


class ColumnConflict(ValueError):
    """A column was put with another dtype than the live rows of its partition have. Those rows were taken back."""


@define(eq=False)
class TransferQueueDataPlane:
    """A client of the queue that runs in this process's Ray cluster.

    It can be sent to Ray actors: it attaches to the queue when it is first used. Threads may share it. An operation
    that takes longer than ``timeout_s`` seconds raises ``TimeoutError``; whether it takes effect is then unknown.
    """

    timeout_s: float = 120.0
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)
    _client: Any = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __reduce__(self) -> tuple[type[TransferQueueDataPlane], tuple[float]]:
        return type(self), (self.timeout_s,)

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Write rows; all of them can be read once this returns, and none before.

        Raises ``ColumnConflict``, ``RuntimeError`` where the queue took the rows and its controller does not know
        them, ``TimeoutError``, and the queue's own errors. Unless it was a conflict, the same rows may be put again.
        """
        if sample_ids:
            self._run(_put, list(sample_ids), partition_id, fields, tags)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """The rows that are there, in request order, with those of the columns that all of them have.

        Raises ``ValueError`` if none is there, or if one is registered and not yet written; ``KeyError`` if one was
        cleared meanwhile; ``TimeoutError``, and the queue's own errors.
        """
        if not sample_ids:
            return TensorDict({}, batch_size=[0])
        return self._run(_get, list(sample_ids), partition_id, list(select_fields))

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Remove rows and their tags; None removes the partition."""
        if sample_ids is None:
            self._run(_clear_partition, partition_id)
        elif sample_ids:
            self._run(_clear, list(sample_ids), partition_id)

    def sample_ids(self, partition_id: str) -> list[str]:
        """The ids of a partition's rows, rows that are registered and not yet written included."""
        return list(self.tags(partition_id))

    def tags(self, partition_id: str) -> Mapping[str, Mapping[str, Any]]:
        """The tags of a partition's rows, by sample id."""
        return self._run(_tags, partition_id)

    def close(self) -> None:
        """Stop this client's thread; the queue and its rows stay. A closed client attaches anew when it is used."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = self._client = None

    def _run(self, operation: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Wait for an operation of the process's queue client, on this data plane's own event loop."""
        with self._lock:
            if self._client is None:
                self._client = attach()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="transfer-queue", daemon=True).start()
            client, loop = self._client, self._loop
        limited = asyncio.wait_for(operation(client, *arguments), self.timeout_s)
        try:
            return asyncio.run_coroutine_threadsafe(limited, loop).result()
        except TimeoutError as error:
            raise TimeoutError(f"{error}" or f"no answer from TransferQueue in {self.timeout_s:g} s") from error


# ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _put(
    client: Any, keys: list[str], partition: str, fields: TensorDictBase | None, tags: list[dict[str, Any]] | None
) -> None:
    import transfer_queue

    if fields is None:
        await transfer_queue.async_kv_batch_put(keys, partition, None, tags)
        return
    columns = {str(name): _plain(column) for name, column in fields.items()}
    batch = TensorDict(columns, batch_size=fields.batch_size)
    await transfer_queue.async_kv_batch_put(keys, partition, batch, tags)
    written = await _metadata(client, keys, partition)
    for name, column in columns.items():
        live, dtype = written.field_schema.get(name, {}).get("dtype"), getattr(column, "dtype", None)
        if live is not None and live != dtype:
            await _clear(client, keys, partition)
            raise ColumnConflict(f"{name}: put as {dtype}, the live rows of {partition!r} have {live}")
    if written.size < len(keys) or not written.is_ready or not columns.keys() <= set(written.field_names):
        raise RuntimeError(f"the controller does not know all of the {len(keys)} rows put into {partition!r}")


def _plain(column: Any) -> Any:
    """A column that the queue can write: it takes one row of a larger tensor for contiguous and fails on its stride."""
    if isinstance(column, torch.Tensor) and not column.is_nested and column.dim() and column.stride(-1) != 1:
        return column.clone(memory_format=torch.contiguous_format)
    return column


async def _get(client: Any, keys: list[str], partition: str, columns: list[str]) -> TensorDict:
    found = await _metadata(client, keys, partition)
    if not found.size:
        raise ValueError(f"partition {partition!r} holds none of the {len(keys)} requested rows")
    if not found.is_ready:
        raise ValueError(f"partition {partition!r}: a requested row is not yet written")
    shared = [name for name in columns if name in found.field_names]
    if not shared:
        return TensorDict({}, batch_size=[found.size])
    data: TensorDict = await client.async_get_data(found.select_fields(shared))
    if (await _metadata(client, keys, partition)).global_indexes != found.global_indexes:
        raise KeyError(f"partition {partition!r}: a row was cleared while it was read")
    return data


async def _clear(client: Any, keys: list[str], partition: str) -> None:
    found = await _metadata(client, keys, partition)
    if found.size:
        await client.async_clear_samples(found)


async def _clear_partition(client: Any, partition: str) -> None:
    await client.async_clear_partition(partition)


async def _tags(client: Any, partition: str) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, dict[str, Any]]] = await client.async_kv_list(partition)
    return listed.get(partition, {})


async def _metadata(client: Any, keys: list[str], partition: str) -> Any:
    """Where the rows that are registered lie, in request order, and the columns that all of them have."""
    return await client.async_kv_retrieve_meta(keys=keys, partition_id=partition, create=False)


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def attach() -> Any:
    """The process's client of the running queue. ``RuntimeError`` where there is none."""
    import ray
    import transfer_queue

    try:
        ray.get_actor(**CONTROLLER)
    except ValueError as error:
        raise RuntimeError("no TransferQueue is running in this Ray cluster: call transfer_queue.init()") from error
    transfer_queue.init()
    client = transfer_queue.get_client()
    _pack_exactly(client.storage_manager)
    return client


def _pack_exactly(manager: Any) -> None:
    """Let a client put the rows of a read together without torch's conversions.

    Left alone, it stacks scalars as whatever dtype holds them all, and makes other rows of different dtypes a strided
    nested tensor: of the first row's dtype, or a segmentation fault. It offers no setting for it.
    """
    if not hasattr(manager, "_pack_field_values"):
        raise RuntimeError(f"{type(manager).__name__}: this version of TransferQueue is not known to be read safely")
    manager._pack_field_values = _pack


def _pack(rows: list[Any]) -> Any:
    """Rows as one batched column. Rows that are no tensors stay a stack of what they are."""
    if all(isinstance(row, torch.Tensor) for row in rows):
        return pack_rows([_aligned(row) for row in rows])
    return NonTensorStack(*rows)


def _aligned(row: torch.Tensor) -> torch.Tensor:
    """A row where torch may compute with it.

    A received row lies in the message's buffer at any address, and torch's loops read 16 bytes at a time from
    addresses that are multiples of its element size: on others, some of them end the process.
    """
    if row.data_ptr() % row.element_size() == 0:
        return row
    return row.reshape(-1).view(torch.uint8).clone().view(row.dtype).reshape(row.shape)


@contextmanager
def local_queue(settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """A queue on this machine while the context is open, on a Ray of its own where none is connected.

    ``settings`` are the queue's own, as ``transfer_queue.init`` takes them. The local Ray sends nothing home, has no
    dashboard and a small object store, and does not outlive the context. It listens where Ray does, which is not
    loopback alone: Ray takes the machine's own address in place of 127.0.0.1.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    import ray
    import transfer_queue
    from omegaconf import OmegaConf

    own_ray = not ray.is_initialized()
    if own_ray:
        ray.init(
            num_cpus=START_CPUS,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    try:
        transfer_queue.init(OmegaConf.create(dict(settings or {})))
        yield
    finally:
        with suppress(Exception):
            transfer_queue.close()
        if own_ray:
            ray.shutdown()
