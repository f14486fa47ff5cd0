"""A check as pytest tests: the nodes that the plugin collects, and the results that they share.

An area is checked as a whole when its first test runs, in one process, whatever the number of workers: so a test's
verdict does not depend on them. A worker that waits for an area checks another one meanwhile.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterable, Iterator
from io import SEEK_END, StringIO
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import define, field, frozen
from filelock import FileLock, Timeout
from rich.console import Console

from rollproof.properties.errors import InputError
from rollproof.properties.gate.codes import met
from rollproof.properties.gate.files import write_replays, write_reports
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.gate.show import show_finding, summary
from rollproof.properties.gate.text import printable, replay_commands
from rollproof.properties.gate.workers import Task, run_task
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area

REPLAYS: Final = Path(".rollproof") / "replays"
"""Where replay files go without a report folder."""
WIDTH: Final = 100
"""Columns of a printed finding."""
PATIENCE: Final = 0.2
"""Seconds between two looks at an area that another process is checking."""


@frozen
class Checked:
    """One task's report, and the replay file of every finding."""

    report: Report
    replays: dict[str, str]


@define
class Results:
    """The reports of one run of pytest, one file per task in a folder that all its processes share."""

    folder: Path
    names: tuple[str, ...]
    areas: tuple[str, ...]
    profile: str
    seed: int
    max_examples: int | None
    report_folder: Path | None
    owned: bool
    """Whether this process made the folder, and removes it."""
    _selected: list[Task] = field(factory=list)
    _known: dict[Task, Checked] = field(factory=dict)

    @classmethod
    def of_options(cls, folder: Path, options: Any, *, owned: bool) -> Results:
        """Read the command line. Raises ``pytest.UsageError``."""
        results = cls(
            folder=folder,
            names=tuple(dict.fromkeys(options.rollproof)),
            areas=tuple(options.rollproof_area),
            profile=options.rollproof_profile,
            seed=options.rollproof_seed,
            max_examples=options.rollproof_max_examples,
            report_folder=options.rollproof_report,
            owned=owned,
        )
        unknown = [area for area in results.areas if area not in set(Area)]
        if unknown:
            raise pytest.UsageError(f"--rollproof-area {unknown[0]}: expected one of {', '.join(Area)}")
        if results.profile not in PROFILES:
            raise pytest.UsageError(f"--rollproof-profile {results.profile}: expected one of {', '.join(PROFILES)}")
        if results.seed < 0:
            raise pytest.UsageError(f"--rollproof-seed {results.seed}: expected a number of at least 0")
        if results.max_examples is not None and results.max_examples < 1:
            raise pytest.UsageError(f"--rollproof-max-examples {results.max_examples}: expected at least 1")
        return results

    @property
    def header(self) -> str:
        """What is checked, in one line."""
        return f"rollproof: {', '.join(self.names)} · profile {self.profile} · seed {self.seed}"

    @property
    def replays(self) -> Path:
        """Where replay files go."""
        return REPLAYS if self.report_folder is None else self.report_folder / "replays"

    def tasks(self, name: str) -> list[Task]:
        """Return one task per area of an implementation. Raises ``AdapterError``."""
        areas = pick_areas(load_implementation(name), self.areas)
        return [Task(name, area, self.profile, self.seed, self.max_examples) for area in areas]

    def select(self, items: Iterable[pytest.Item]) -> None:
        """Remember which tasks the selected tests need."""
        self._selected = list(dict.fromkeys(item.task for item in items if isinstance(item, RuleItem)))

    def checked(self, task: Task) -> Checked:
        """Return what a task found.

        It runs here, unless another process has it; then this one helps with other tasks.
        """
        path = self._path(task)
        while not path.exists():
            if not self._check(task, PATIENCE):
                any(self._check(other, 0) for other in self._selected if not self._path(other).exists())
        if task not in self._known:
            self._known[task] = pickle.loads(path.read_bytes())
        return self._known[task]

    def _check(self, task: Task, patience: float) -> bool:
        """Check a task and store what it found; False where another process is checking it."""
        path = self._path(task)
        try:
            with FileLock(path.with_suffix(".lock"), timeout=patience):
                if not path.exists():
                    report = run_task(task, lambda *_: None)
                    found = Checked(report, write_replays(report, self.replays))
                    part = path.with_suffix(".part")
                    part.write_bytes(pickle.dumps(found))
                    part.replace(path)
                return True
        except Timeout:
            return False

    def _path(self, task: Task) -> Path:
        return self.folder / f"{self.names.index(task.implementation)}-{task.area}.pickle"

    def lines(self) -> list[str]:
        """Write the reports, and return the verdict per implementation, over the areas that any process has checked."""
        merged: dict[int, Report] = {}
        for index, area in product(range(len(self.names)), Area):
            path = self.folder / f"{index}-{area}.pickle"
            if path.exists():
                report = pickle.loads(path.read_bytes()).report
                if index in merged:
                    merged[index].merge(report)
                else:
                    merged[index] = report
        reports = list(merged.values())
        lines = [summary(report).plain for report in reports]
        if reports and self.report_folder is not None:
            write_reports(reports, self.report_folder)
            lines.append(f"reports written to {self.report_folder}")
        return lines

    def close(self) -> None:
        """Remove the folder, where it is this process's own."""
        if self.owned:
            shutil.rmtree(self.folder, ignore_errors=True)


# ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ImplementationNode(pytest.Collector):
    """One implementation: its areas."""

    results: Results

    @classmethod
    def of(cls, session: pytest.Session, name: str, results: Results) -> ImplementationNode:
        """Return the node below the session."""
        node: ImplementationNode = cls.from_parent(session, name=name, nodeid=f"rollproof::{name}")
        node.results = results
        return node

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield one node per area."""
        try:
            tasks = self.results.tasks(self.name)
        except InputError as error:
            raise self.CollectError(f"rollproof: {error}") from error
        for task in tasks:
            yield AreaNode.of(self, task)


class AreaNode(pytest.Collector):
    """One area of an implementation: a test per invariant, per rejection code and per declared deviation."""

    parent: ImplementationNode
    task: Task

    @classmethod
    def of(cls, parent: ImplementationNode, task: Task) -> AreaNode:
        """Return the node of one task."""
        node: AreaNode = cls.from_parent(parent, name=task.area.value)
        node.task = task
        if node.config.pluginmanager.hasplugin("xdist"):
            node.add_marker(pytest.mark.xdist_group(node.nodeid))
        return node

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests, in the order in which the gate prints them."""
        planned = self.task.check().report
        for name in planned.invariants:
            yield InvariantItem.of(self, name, name)
        for _, code in planned.codes:
            yield CodeItem.of(self, f"code[{code}]", code)
        for name, sentence in planned.declared.items():
            item = DeviationItem.of(self, f"deviation[{name}]", name)
            item.add_marker(pytest.mark.xfail(reason=sentence))
            yield item


class Failed(Exception):
    """A rule does not hold; the message is all there is to show."""


class RuleItem(pytest.Item):
    """One verdict on the results of a task."""

    subject: str
    task: Task
    results: Results
    found: Checked

    @classmethod
    def of(cls, parent: AreaNode, name: str, subject: str) -> RuleItem:
        """Return the test called ``name``, about an invariant, a code or a deviation."""
        item: RuleItem = cls.from_parent(parent, name=name)
        item.subject, item.task, item.results = subject, parent.task, parent.parent.results
        item.add_marker("rollproof")
        return item

    def setup(self) -> None:
        """Wait for the task's results, or make them."""
        self.found = self.results.checked(self.task)

    def reportinfo(self) -> tuple[str, None, str]:
        """Return the title of a failure."""
        return "rollproof", None, f"{self.task.implementation}: {self.task.area} {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return a verdict, which needs no traceback."""
        return str(excinfo.value) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo, style)

    def shown(self, finding: Finding) -> str:
        """Return a finding as ``rollproof check`` prints it, and the command that repeats it."""
        text = StringIO(f"{printable(finding.complaint)}\n")
        text.seek(0, SEEK_END)
        Console(file=text, width=WIDTH, no_color=True).print(show_finding(finding))
        file = self.found.replays.get(finding.deviation or finding.invariant.id)
        commands = [] if file is None else replay_commands(file, self.task.implementation)
        return text.getvalue() + "\n".join(commands)


class InvariantItem(RuleItem):
    """An invariant holds."""

    def runtest(self) -> None:
        """Fail with its finding; skip where the implementation answers no request that it is about."""
        tally = self.found.report.invariants[self.subject]
        if tally.finding is not None:
            if BY_ID[self.subject].advisory:
                pytest.xfail(f"an advisory: {tally.finding.complaint}")
            raise Failed(self.shown(tally.finding))
        if tally.examples == 0:
            kinds = BY_ID[self.subject].requests
            if not tally.offered:
                pytest.skip(f"{self.task.implementation} answers no {' or '.join(kind.__name__ for kind in kinds)}")
            if tally.left_out:
                pytest.skip(f"{self.task.implementation} could not be asked any request that it is about")
            raise Failed("no example ran: nothing is known about it")
        if tally.missed:
            raise Failed(f"{self.task.implementation} refused all {tally.examples:,} requests that it is about")


class CodeItem(RuleItem):
    """A rejection code is reached, and answered correctly."""

    def runtest(self) -> None:
        """Fail where it was not; skip where the implementation could not be asked, or the examples are limited."""
        report, area = self.found.report, self.task.area
        tally = report.codes[area, self.subject]
        wrong = tally.driven - tally.right
        if wrong > tally.excused:
            alike = (found for found in report.falsified if self.shows(found))
            count = f"answered wrongly {wrong - tally.excused:,} of {tally.driven:,} times"
            raise Failed("\n".join([f"{self.subject}: {count}", *(self.shown(found) for found in alike)]))
        if tally.driven == 0:
            if not tally.offered:
                pytest.skip(f"{self.task.implementation} answers no request that can be refused with this code")
            if tally.left_out:
                pytest.skip(f"{self.task.implementation} could not be asked any request that is refused with this code")
            if report.exercised:
                pytest.skip(f"not exercised by {report.max_examples:,} examples per stream")
            raise Failed(f"{self.subject}: not exercised by any of {report.requests:,} requests")
        if wrong:
            pytest.xfail(f"answered otherwise {wrong:,} of {tally.driven:,} times, as declared")
            raise Failed(f"{self.subject}: answered otherwise {wrong:,} of {tally.driven:,} times")

    def shows(self, finding: Finding) -> bool:
        """Return whether a finding is about an input with the code."""
        area = finding.invariant.area
        return self.subject in {reach.name for reach in met(area, finding.request, finding.expected)}


class DeviationItem(RuleItem):
    """A declared deviation occurs; marked to fail, so that one which no longer occurs is seen too."""

    def runtest(self) -> None:
        """Fail with its smallest input."""
        finding = self.found.report.deviations.get(self.subject)
        if finding is not None:
            raise Failed(self.shown(finding))
