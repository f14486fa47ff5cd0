"""Work in order, over any number of processes on any machines, that can be stopped between two examples.

What is worked on next may depend on results, but only on those that were handed out before: at most ``WINDOW`` tasks
are under way, however many processes there are, so the results do not depend on that number.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

from rollproof.properties.cluster import Cluster, workers
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.workers import PRELOAD

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
        """Return whether to stop now."""
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
        self.stop = Stop(None if minutes is None else time.monotonic() + 60 * minutes)
        self._submit: Callable[[Task], Callable[[], Result]]
        if place == 1:
            self._open.callback(keep_to_one_thread())
            ready = load_implementation(implementation)
            self._submit = lambda task: partial(work, ready, task, self.stop)
        else:
            begin = partial(_begin, implementation)
            crew = self._open.enter_context(workers(place, begin, self.stop, WINDOW, PRELOAD))
            self._submit = lambda task: crew.submit(_work_on, work, task)

    def __enter__(self) -> Crew[Task, Result]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.event.set()
        self._open.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def full(self) -> bool:
        """Whether a result must be taken before the next task is given."""
        return len(self._tasks) >= WINDOW

    def give(self, task: Task) -> None:
        """Give a task to a worker."""
        self._tasks.append(self._submit(task))

    def take(self) -> Result:
        """Return the result of the task that was given first."""
        return self._tasks.popleft()()


def keep_to_one_thread() -> Callable[[], None]:
    """Keep torch's work in this process on the thread that is traced, and return what undoes it.

    Ours hands work to as many threads as torch has; their lines would now and then be missing from the arcs.
    """
    try:
        import torch
    except ModuleNotFoundError:
        return lambda: None
    undo = partial(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return undo


_HERE: dict[str, Any] = {}
"""In a worker: its implementation, and when to stop."""


def _begin(implementation: str, event: Any) -> None:
    keep_to_one_thread()
    _HERE.update(implementation=load_implementation(implementation), stop=Stop(None, event))


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
