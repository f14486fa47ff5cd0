"""TransferQueue as a data plane: rows in storage units behind a controller, all of them Ray actors.

The queue answers in ways that a finalizer must not trust. A put returns although the controller never
learned of it; a read has no deadline; rows of different dtypes come back cast to one, or end the process that reads
them; and a row that is cleared while it is read may come back as the row that took its place. This module turns each of
them into a missing row, an error or the rows as they are, and otherwise leaves the queue's answers alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final, TypeVar

import torch
from attrs import define, field
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from rollproof.impl.arguments import as_seconds
from rollproof.impl.dataplane import MissingRows, new_answers
from rollproof.impl.dataplane.memory import pack_rows

T = TypeVar("T")

CONTROLLER: Final = {"name": "TransferQueueController", "namespace": "transfer_queue"}
"""The Ray actor by which processes find a running queue."""

START_CPUS: Final = 8
"""The resources of a local Ray. The queue's actors take three; its start blocks forever on what is not offered."""

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


GRACE_S: Final = 5.0
"""How long an operation that is past its time may take to be cancelled, before it is left behind."""


FORKED: Final = (
    "Ray was connected before this process was forked, and its threads and sockets stayed behind: start processes by "
    "spawn, or as Ray actors"
)

_inherited: list[bool] = []
"""Not empty in a process that was forked from one that was connected to Ray: any use of Ray there waits for ever."""


_attaching = threading.Lock()


def _note_fork() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        _inherited.append(True)


os.register_at_fork(after_in_child=_note_fork)


class ColumnConflict(ValueError):
    """A column was put with another dtype than the live rows of its partition have. Those rows were taken back."""


@define(eq=False)
class TransferQueueDataPlane:
    """A client of the queue that runs in this process's Ray cluster.

    It can be sent to Ray actors: it attaches to the queue when it is first used. Threads may share it. An operation
    that takes longer than ``timeout_s`` seconds raises ``TimeoutError``; whether it takes effect is then unknown.
    """

    timeout_s: float = 120.0
    store: ClassVar[str] = "TransferQueue"
    """All clients in a process have the one queue of its Ray cluster."""
    _pid: int | None = field(default=None, init=False, repr=False)
    """The process that attached."""
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)
    _client: Any = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.timeout_s = as_seconds("timeout_s", self.timeout_s)

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

    @new_answers
    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """Return the rows that are there, in request order, with those of the columns that all of them have.

        Raises ``MissingRows`` if none is there, if one is registered and not yet written, was cleared meanwhile, or is
        gone from storage; ``TimeoutError``, and the queue's own errors.
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
        """Return the ids of a partition's rows, rows that are registered and not yet written included."""
        return list(self.tags(partition_id))

    def tags(self, partition_id: str) -> Mapping[str, Mapping[str, Any]]:
        """Return the tags of a partition's rows, by sample id."""
        return self._run(_tags, partition_id)

    def close(self) -> None:
        """Stop this client's thread; the queue and its rows stay. A closed client attaches anew when it is used.

        Operations that are under way in other threads end in ``ConnectionError``.
        """
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                asyncio.run_coroutine_threadsafe(_end(self._loop), self._loop)
            self._loop = self._client = self._pid = None

    def _run(self, operation: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Wait for an operation of the process's queue client, on this data plane's own event loop."""
        if self._pid not in (None, os.getpid()):
            raise RuntimeError(FORKED)
        client, loop = self._attached()
        coroutine = operation(client, *arguments)
        limited = asyncio.wait_for(coroutine, self.timeout_s)
        future = asyncio.run_coroutine_threadsafe(limited, loop)
        try:
            return future.result(self.timeout_s + GRACE_S)
        except TimeoutError as error:
            future.cancel()
            if not loop.is_running():
                limited.close()
                coroutine.close()
            raise TimeoutError(f"{error}" or f"no answer from TransferQueue in {self.timeout_s:g} s") from error
        except CancelledError as error:
            raise ConnectionError(
                "the client was closed during an operation; whether it took effect is unknown"
            ) from error

    def _attached(self) -> tuple[Any, asyncio.AbstractEventLoop]:
        """Return the queue's client and the running event loop."""
        if not self._lock.acquire(timeout=self.timeout_s):
            raise TimeoutError(f"another thread did not attach to TransferQueue in {self.timeout_s:g} s")
        try:
            if self._client is None:
                self._client = _within(self.timeout_s, attach)
            if self._loop is None:
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="transfer-queue", daemon=True).start()
            return self._client, self._loop
        finally:
            self._lock.release()


def _within(seconds: float, act: Callable[[], T]) -> T:
    """Return what ``act`` returns; after ``TimeoutError`` it is left behind in its thread."""
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(act())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="transfer-queue-attach", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}" or f"TransferQueue could not be attached to in {seconds:g} s") from error


async def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what runs on a loop, and stop it once that is done."""
    others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task(loop)]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop.call_soon(loop.stop)


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
    """Return a column that the queue can write: it misreads a row of a larger tensor as contiguous and fails."""
    if isinstance(column, torch.Tensor) and not column.is_nested and column.dim() and column.stride(-1) != 1:
        return column.clone(memory_format=torch.contiguous_format)
    return column


async def _get(client: Any, keys: list[str], partition: str, columns: list[str]) -> TensorDict:
    found = await _metadata(client, keys, partition)
    if not found.size:
        raise MissingRows(partition, keys)
    if not found.is_ready:
        # It is registered and was never written: what a put that broke off leaves.
        raise MissingRows(partition, keys)
    shared = [name for name in columns if name in found.field_names]
    if not shared:
        return TensorDict({}, batch_size=[found.size])
    try:
        data: TensorDict = await client.async_get_data(found.select_fields(shared))
    except KeyError as error:
        if type(error).__name__ != "StorageKeyNotFoundError":
            raise
        # The queue's own word for a row that its storage has lost, or that was cleared a moment ago.
        raise MissingRows(partition, keys) from error
    if (await _metadata(client, keys, partition)).global_indexes != found.global_indexes:
        # Cleared while it was read: another row may have taken its place, and its answer.
        raise MissingRows(partition, keys)
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
    """Return where the registered rows are, in request order, and the columns that all of them have."""
    return await client.async_kv_retrieve_meta(keys=keys, partition_id=partition, create=False)


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def attach() -> Any:
    """Return the process's client of the running queue. ``RuntimeError`` where there is none, or after a fork.

    Waits for the queue's controller for ever: one thread at a time.
    """
    if _inherited:
        raise RuntimeError(FORKED)
    import ray
    import transfer_queue

    with _attaching:
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
    """Return rows as one batched column. Rows that are not tensors stay a stack of what they are."""
    if all(isinstance(row, torch.Tensor) for row in rows):
        return pack_rows([_aligned(row) for row in rows])
    return NonTensorStack(*rows)


def _aligned(row: torch.Tensor) -> torch.Tensor:
    """Return a row where torch may compute with it.

    A received row is in the message's buffer at any address, and torch's loops read 16 bytes at a time from
    addresses that are multiples of its element size: on others, some of them end the process.
    """
    if row.data_ptr() % row.element_size() == 0:
        return row
    return row.reshape(-1).view(torch.uint8).clone().view(row.dtype).reshape(row.shape)


@contextmanager
def local_queue(settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Run a queue on this machine while the context is open, on a Ray of its own where none is connected.

    ``settings`` are the queue's own, as ``transfer_queue.init`` takes them. The local Ray sends no telemetry, has no
    dashboard and a small object store, and does not outlive the context. It listens where Ray does, which is not only
    loopback: Ray takes the machine's own address in place of 127.0.0.1.
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
