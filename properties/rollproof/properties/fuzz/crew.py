"""Work in order, over any number of processes on any machines, that can be stopped between two examples.

What is worked on next may depend on results, but only on those that were handed out before: at most ``WINDOW`` tasks
are under way, however many processes there are, so the results do not depend on that number.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

import torch
from attrs import define, field

from rollproof.properties.cluster import Cluster
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
    """Tasks given to workers, results taken in the order of the tasks.

    ``place`` is where they work: a cluster, or a number of processes on this machine, of which 1 is this one.
    """

    def __init__(
        self, implementation: str, work: Work[Task, Result], place: int | Cluster, minutes: float | None
    ) -> None:
        self._tasks: deque[Callable[[], Result]] = deque()
        self._open = ExitStack()
        deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.stop = Stop(deadline)
        self._submit: Callable[[Task], Callable[[], Result]]
        if isinstance(place, Cluster):
            workers = self._open.enter_context(place.workers(partial(_begin, implementation), self.stop, WINDOW))
            self._submit = lambda task: workers.submit(_work_on, work, task)
        elif place == 1:
            self._open.callback(torch.set_num_threads, torch.get_num_threads())
            ready = on_one_thread(implementation)
            self._submit = lambda task: partial(work, ready, task, self.stop)
        else:
            context = worker_context()
            self.stop = Stop(deadline, context.Event())
            given = (implementation, self.stop.event, deadline)
            pool = ProcessPoolExecutor(min(place, WINDOW), context, initializer=_begin, initargs=given)
            self._open.callback(pool.shutdown, cancel_futures=True)
            self._submit = lambda task: pool.submit(_work_on, work, task).result

    def __enter__(self) -> Crew[Task, Result]:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop.event.set()
        self._open.close()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether a result must be taken before the next task is given."""
        return len(self._tasks) >= WINDOW

    def give(self, task: Task) -> None:
        """Have a task worked on."""
        self._tasks.append(self._submit(task))

    def take(self) -> Result:
        """The result of the task that was given first."""
        return self._tasks.popleft()()


def on_one_thread(implementation: str) -> Any:
    """The implementation, in a process where its work stays on the thread that is traced.

    Ours hands work to as many threads as torch has; what they take would be missing from the arcs, now and then.
    """
    torch.set_num_threads(1)
    return load_implementation(implementation)


_HERE: dict[str, Any] = {}
"""In a worker: its implementation, and when to stop."""


def _begin(implementation: str, event: Any, deadline: float | None = None) -> None:
    # Ctrl-C reaches every process of the terminal. The first of them decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _HERE.update(implementation=on_one_thread(implementation), stop=Stop(deadline, event))


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
