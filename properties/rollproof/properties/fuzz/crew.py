"""Work in order, over any number of processes, that can be stopped between two examples.

What is worked on next may depend on results, but only on those that were handed out before: at most ``WINDOW`` tasks
are under way, however many processes there are, so the results do not depend on that number.
"""

from __future__ import annotations

import importlib
import pkgutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

import rollproof.properties
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.workers import worker_context

Task = TypeVar("Task")
Result = TypeVar("Result")

WINDOW: Final = 32
"""Tasks under way; more workers than this have nothing to do."""

Work = Callable[[Any, Task, Callable[[], bool]], Result]
"""Called with an implementation, a task, and a function that says when to stop."""


@define
class Stop:
    """When to stop: once asked to, or at a time of ``time.monotonic``."""

    deadline: float | None = None
    event: Any = field(factory=Event)

    def __call__(self) -> bool:
        """Whether to stop now."""
        return self.event.is_set() or (self.deadline is not None and time.monotonic() > self.deadline)


class Crew(Generic[Task, Result]):
    """Tasks given to workers, results taken in the order of the tasks."""

    def __init__(self, implementation: str, work: Work[Task, Result], workers: int, minutes: float | None) -> None:
        self._work = work
        self._tasks: deque[Task | Future[Result]] = deque()
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._pool: ProcessPoolExecutor | None = None
        if workers == 1:
            self.stop = Stop(deadline)
            self._implementation = prepared(implementation)
        else:
            context = worker_context()
            self.stop = Stop(deadline, context.Event())
            self._pool = ProcessPoolExecutor(
                min(workers, WINDOW), context, initializer=_begin, initargs=(implementation, deadline, self.stop.event)
            )

    def __enter__(self) -> Crew[Task, Result]:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop.event.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether a result must be taken before the next task is given."""
        return len(self._tasks) >= WINDOW

    def give(self, task: Task) -> None:
        """Have a task worked on."""
        self._tasks.append(task if self._pool is None else self._pool.submit(_work_on, self._work, task))

    def take(self) -> Result:
        """The result of the task that was given first."""
        first = self._tasks.popleft()
        if isinstance(first, Future):
            return first.result()
        return self._work(self._implementation, first, self.stop)


def prepared(implementation: str) -> Any:
    """The implementation, in a process that has loaded all there is.

    Hypothesis draws constants from the modules of the project that are loaded, so every process must have the same.
    """
    for module in pkgutil.walk_packages(rollproof.properties.__path__, f"{rollproof.properties.__name__}."):
        with suppress(ImportError):
            importlib.import_module(module.name)
    return load_implementation(implementation)


_HERE: dict[str, Any] = {}
"""In a worker: its implementation, and when to stop."""


def _begin(implementation: str, deadline: float | None, event: Any) -> None:
    # Ctrl-C reaches every process of the terminal. The first of them decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _HERE.update(implementation=prepared(implementation), stop=Stop(deadline, event))


def _work_on(work: Work[Task, Result], task: Task) -> Result:
    return work(_HERE["implementation"], task, _HERE["stop"])


@contextmanager
def interruptible(stop: Stop) -> Iterator[None]:
    """Let the first Ctrl-C stop between two examples; a second one interrupts."""

    def interrupt(*_: object) -> None:
        if stop.event.is_set():
            raise KeyboardInterrupt
        stop.event.set()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
