"""Spreading a check over processes, one task per implementation and area, and showing the progress.

Every task draws its own examples from the seed, so the findings do not depend on how many processes there are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Final

from attrs import frozen
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rollproof.properties.adapters.data_planes import MEMORY, over
from rollproof.properties.gate.kept import KeptRequests
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import Report
from rollproof.properties.gate.run import Check
from rollproof.properties.processes import processes, tell
from rollproof.spec.judge.requests import Area

Advance = Callable[[str, str, int], None]
"""Called with an implementation's name, a stream's name, and the number of examples just done."""


PRELOAD: Final = (__name__, "rollproof.properties.adapters.ours", "rollproof.properties.nemo_gym.captured")
"""Modules that are slow to import and used by every task."""


@frozen
class Task:
    """One area of one implementation, as a worker gets it."""

    implementation: str
    area: Area
    profile: str
    seed: int
    max_examples: int | None = None
    data_plane: str = MEMORY
    requests: Path | None = None
    """Where requests are kept between runs."""

    def check(self) -> Check:
        """Return the check to run."""
        implementation = over(load_implementation(self.implementation), self.data_plane)
        kept = None if self.requests is None else KeptRequests(self.requests)
        return Check(implementation, (self.area,), PROFILES[self.profile], self.seed, self.max_examples, kept=kept)


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
    """Show a progress bar per implementation: what is checked, how far it is, and how long it will still take.

    When interrupted, say how much was checked.
    """
    totals: Counter[str] = Counter()
    for task, count in zip(tasks, planned, strict=True):
        totals[task.implementation] += count
    done: Counter[str] = Counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            bars = {name: progress.add_task(name, total=total) for name, total in totals.items()}

            def advance(name: str, stream: str, count: int) -> None:
                done[name] += count
                progress.update(bars[name], advance=count, description=f"{name}: {stream}")

            yield advance
    except KeyboardInterrupt:
        for name, total in totals.items():
            console.print(
                f"{name}: interrupted after {done[name]:,} of {total:,} examples", highlight=False, markup=False
            )
        raise


def run_here(tasks: Sequence[Task], advance: Advance) -> list[Report]:
    """Run one task after the other, in this process."""
    return [run_task(task, advance) for task in tasks]


def run_task(task: Task, advance: Advance) -> Report:
    """Run one task; the report carries the name under which the implementation was requested."""
    check = task.check()
    check.report.implementation = task.implementation
    check.progress = lambda stream, count: advance(task.implementation, f"{task.area} · {stream}", count)
    return check.run()


def run_apart(tasks: Sequence[Task], planned: Sequence[int], jobs: int, advance: Advance) -> list[Report]:
    """Run the longest tasks first, each in one of ``jobs`` worker processes."""
    order = sorted(range(len(tasks)), key=lambda index: -planned[index])
    with processes(min(jobs, len(tasks)), preload=PRELOAD) as workers:
        reports = workers.run(work, [(tasks[index],) for index in order], lambda message: advance(*message))
    return [report for _, report in sorted(zip(order, reports, strict=True), key=itemgetter(0))]


def work(task: Task) -> Report:
    """Run a task in a worker, and report what was done about ten times a second."""
    done = 0
    told = time.monotonic()

    def advance(name: str, stream: str, count: int) -> None:
        nonlocal done, told
        done += count
        if time.monotonic() - told > 0.1:
            tell((name, stream, done))
            done, told = 0, time.monotonic()

    report = run_task(task, advance)
    tell((task.implementation, task.area.value, done))
    return report
