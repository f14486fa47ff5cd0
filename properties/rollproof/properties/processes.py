"""Worker processes of this machine: the only way in which commands use more than one core.

Ctrl-C reaches every process of a terminal. Workers ignore it and leave the decision to the process that started them:
when its context ends with an exception, they are killed at once. A worker also ends when that process is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, Final, TypeVar

from attrs import frozen

Result = TypeVar("Result")

Begin = Callable[[Any], None]
"""Called first in every worker's process, with an event that is set once the work is to stop."""

Hear = Callable[[Any], None]
"""Called with every message that a worker sent by ``tell``."""

LISTEN_SECONDS: Final = 0.1
"""How often the process that waits for results takes messages, and asks whether to stop."""


def never() -> bool:
    """Return False: work that is not stopped."""
    return False


def nothing(_: Any) -> None:
    """Do nothing: work that needs no preparation, or messages that nobody reads."""


def worker_context(*preload: str) -> BaseContext:
    """Return how workers start: from a clean server that has imported the modules ``preload``, where there is one."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    return context


def prepare(*preload: str) -> None:
    """Have the server of ``worker_context`` import its modules already, while this process goes on."""
    if worker_context(*preload).get_start_method() == "forkserver":
        forkserver.ensure_running()


@frozen
class Processes:
    """A number of worker processes. ``stop`` says when they are to be told to stop."""

    _pool: ProcessPoolExecutor
    _messages: Any
    _bell: Any
    _stop: Callable[[], bool]

    def start(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have ``work`` called in a worker."""
        return self._pool.submit(_call, work, *arguments)

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
        """Have ``work`` called in a worker; the function returned waits for its result, and raises its error."""
        future = self.start(work, *arguments)
        return lambda: self._result(future)

    def _result(self, future: Future[Result]) -> Result:
        if not future.done():
            self._follow([future], nothing)
        return future.result()

    def run(self, work: Callable[..., Result], tasks: Iterable[Sequence[Any]], hear: Hear = nothing) -> list[Result]:
        """Call ``work`` with the arguments of every task, and return the results in their order.

        The first error ends the run. ``hear`` gets all messages before this returns.
        """
        futures = [self.start(work, *arguments) for arguments in tasks]
        self._follow(futures, hear)
        return [future.result() for future in futures]

    def _follow(self, futures: Sequence[Future[Any]], hear: Hear) -> None:
        pending: set[Future[Any]] = set(futures)
        while pending:
            done, pending = wait(pending, timeout=LISTEN_SECONDS)
            # A message is in the pipe before the result of its task is: once all are done, none is missing.
            while not self._messages.empty():
                hear(self._messages.get())
            for future in done:
                future.result()
            if self._stop():
                self._bell.set()

    def ring(self) -> None:
        """Tell the workers to stop."""
        self._bell.set()


@contextmanager
def processes(
    count: int,
    begin: Begin = nothing,
    stop: Callable[[], bool] = never,
    *,
    preload: Sequence[str] = (),
    context: BaseContext | None = None,
) -> Iterator[Processes]:
    """Start ``count`` worker processes, and end them with the context: at once if it ends with an exception.

    Every worker calls ``begin`` first. An error in it is raised by every task of that worker.
    """
    context = context or worker_context(*preload)
    messages, bell = context.SimpleQueue(), context.Event()
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, context, initializer=_enter, initargs=(begin, bell, messages))
    try:
        yield Processes(pool, messages, bell, stop)
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raise
    finally:
        bell.set()
        pool.shutdown(cancel_futures=True)
        messages.close()


# ── in a worker ─────────────────────────────────────────────────────────────────────────────────────────────────────

_TELL: list[Callable[[Any], None]] = []
_FAILED: list[Exception] = []
"""Why this worker could not begin."""


def tell(message: Any) -> None:
    """Send a message to the process that started this worker."""
    _TELL[-1](message)


def _enter(begin: Begin, bell: Any, messages: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _TELL.append(messages.put)
    try:
        begin(bell)
    except Exception as error:
        _FAILED.append(error)


def _end_with_parent() -> None:
    """End this worker with its parent, because a process that is killed cannot tell its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(work: Callable[..., Result], *arguments: Any) -> Result:
    if _FAILED:
        raise _FAILED[0]
    return work(*arguments)
