"""Spreading a check over processes, one task per implementation and area, and showing how far it is.

Every task draws its own examples from the seed, so the findings do not depend on how many processes there are.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from queue import Empty
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rollproof.properties.dataplanes import MEMORY, over
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import Report
from rollproof.properties.gate.run import Check
from rollproof.spec.requests import Area

Advance = Callable[[str, str, int], None]
"""Called with an implementation's name, a stream's name, and the number of examples just done."""


@frozen
class Task:
    """One area of one implementation, as a worker is told about it."""

    implementation: str
    area: Area
    profile: str
    seed: int
    max_examples: int | None = None
    data_plane: str = MEMORY

    def check(self) -> Check:
        """The check to run."""
        implementation = over(load_implementation(self.implementation), self.data_plane)
        return Check(implementation, (self.area,), PROFILES[self.profile], self.seed, self.max_examples)


def run_tasks(console: Console, tasks: Sequence[Task], jobs: int) -> list[Report]:
    """Run all tasks and merge their reports, one per implementation, in the order of the tasks."""
    planned = [task.check().planned for task in tasks]
    with shown(console, tasks, planned) as advance:
        parts = run_here(tasks, advance) if jobs == 1 or len(tasks) == 1 else run_apart(tasks, planned, jobs, advance)
    reports: dict[str, Report] = {}
    for task, part in zip(tasks, parts, strict=True):
        if task.implementation in reports:
            reports[task.implementation].merge(part)
        else:
            reports[task.implementation] = part
    return list(reports.values())


@contextmanager
def shown(console: Console, tasks: Sequence[Task], planned: Sequence[int]) -> Iterator[Advance]:
    """A progress bar per implementation."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {task.implementation: progress.add_task(task.implementation, total=0) for task in tasks}
        for name, bar in bars.items():
            pairs = zip(tasks, planned, strict=True)
            progress.update(bar, total=sum(count for task, count in pairs if task.implementation == name))

        def advance(name: str, stream: str, count: int) -> None:
            progress.update(bars[name], advance=count, description=f"{name}: {stream}")

        yield advance


def run_here(tasks: Sequence[Task], advance: Advance) -> list[Report]:
    """One task after the other, in this process."""
    return [run_task(task, advance) for task in tasks]


def run_task(task: Task, advance: Advance) -> Report:
    """One task; the report carries the name under which the implementation was asked for."""
    check = task.check()
    check.report.implementation = task.implementation
    check.progress = lambda stream, count: advance(task.implementation, f"{task.area} · {stream}", count)
    return check.run()


def run_apart(tasks: Sequence[Task], planned: Sequence[int], jobs: int, advance: Advance) -> list[Report]:
    """The longest tasks first, each in one of ``jobs`` worker processes."""
    context = worker_context()
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(min(jobs, len(tasks)), context) as pool,
    ):
        progress = manager.Queue()
        order = sorted(range(len(tasks)), key=lambda index: -planned[index])
        futures = {index: pool.submit(work, tasks[index], progress) for index in order}
        follow(list(futures.values()), progress, advance)
        return [futures[index].result() for index in range(len(tasks))]


def worker_context() -> Any:
    """Processes that inherit what is slow to import, where the platform can: they start from a clean server."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "rollproof.properties.adapters.ours", "rollproof.properties.captured"])
    return context


def work(task: Task, progress: Any) -> Report:
    """In a worker: run a task, and send what was done about ten times a second."""
    done: dict[str, int] = {}
    sent = time.monotonic()

    def advance(name: str, stream: str, count: int) -> None:
        nonlocal sent
        done[stream] = done.get(stream, 0) + count
        if time.monotonic() - sent > 0.1:
            progress.put((name, stream, sum(done.values())))
            done.clear()
            sent = time.monotonic()

    report = run_task(task, advance)
    progress.put((task.implementation, task.area.value, sum(done.values())))
    return report


def follow(futures: Sequence[Future[Report]], progress: Any, advance: Advance) -> None:
    """Show what the workers send, until all are done."""
    while True:
        pending = wait(futures, timeout=0).not_done
        try:
            while True:
                advance(*progress.get(timeout=0.1))
        except Empty:
            if not pending:
                return
