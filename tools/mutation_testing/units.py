"""The units that can kill a mutant: a stream of the gate, a wrong implementation that must be caught, a test.

Everything of ours is imported inside the functions: they run in a process that has loaded the mutant by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen

from tools.mutation_testing import ROOT

TESTS: Final = (
    "tests/spec",
    "tests/impl",
    "tests/properties/strategies",
    "tests/properties/nemo_gym/test_captured.py",
)
"""The quick tests. The others run the gate, start processes, or are about neither root."""

APART: Final = {"test_transfer_queue.py", "test_pool.py", "test_kernels.py"}
"""Of those, the ones about Ray or a GPU."""

UNTRACED: Final = ("tests/impl/test_kernels.py",)
"""Too slow to be traced; for lines that nothing else reaches."""

SEED: Final = 0
PER_STREAM: Final = 40
"""Examples of a stream of weight 1; a stream that drives one code runs ``PER_CODE``."""
PER_CODE: Final = 8
WRONG_LIMIT: Final = 20
"""A wrong implementation that is not caught within so many examples of a stream is tried on the next stream."""
WRONG_S: Final = 10.0
"""A wrong implementation that takes longer to be caught is too slow, and left out."""

PYTEST: Final = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:xdist", "-p", "no:cov"),
    *("--rootdir", str(ROOT), "--override-ini", "addopts=--import-mode=importlib"),
)


class Killed(Exception):
    """The unit noticed something; the message says what."""


@frozen
class Unit:
    """``run()`` raises where it notices a fault."""

    name: str
    run: Callable[[], None]


def streams() -> list[Unit]:
    """Return the gate's streams, run on our implementation with the spec as the judge."""
    from rollproof.properties.gate.load import load_implementation
    from rollproof.properties.gate.run import streams_for
    from rollproof.spec.judge.requests import Area

    ours = load_implementation("impl")

    def judged(stream: Any) -> Callable[[], None]:
        return lambda: _judge(ours, stream)

    return [Unit(f"stream {stream.area}: {stream.name}", judged(stream)) for stream in streams_for(Area, ours)]


def _judge(implementation: Any, stream: Any) -> None:
    from rollproof.properties.gate.profiles import Profile
    from rollproof.spec.judge.catalogue import CATALOGUE

    number = Profile("mutation", PER_STREAM, PER_CODE).examples(stream.weight, drives_code=bool(stream.codes))
    complaint = _first_complaint(implementation, stream, number, CATALOGUE)
    if complaint is not None:
        raise Killed(complaint)


def _first_complaint(implementation: Any, stream: Any, number: int, invariants: Iterable[Any]) -> str | None:
    from hypothesis import Phase

    from rollproof.properties.gate.run import both_answers, exercise
    from rollproof.properties.strategies.rollouts.recipes import realize_request

    def examine(request: Any) -> None:
        expected, actual = both_answers(implementation, request)
        realized = realize_request(request)
        for item in invariants:
            complaint = item.check(realized, expected, actual) if item.covers(request) else None
            if complaint is not None:
                raise _Complaint(f"{item.id}: {complaint}")

    try:
        exercise(stream.strategy, examine, number, SEED, (Phase.generate,))
    except _Complaint as found:
        return str(found)
    return None


class _Complaint(BaseException):
    """Stops Hypothesis without being treated as a failure to investigate."""


def wrong_implementations() -> list[Unit]:
    """Return the known wrong implementations: their invariants must keep catching them."""
    from rollproof.properties.mutants import MUTANTS

    def caught(mutant: Any) -> Callable[[], None]:
        return lambda: _must_catch(mutant)

    return [Unit(f"wrong {mutant.name}", caught(mutant)) for mutant in MUTANTS]


def _must_catch(mutant: Any) -> None:
    from rollproof.properties.gate.run import streams_for
    from rollproof.properties.mutants import MutantImplementation
    from rollproof.spec.judge.catalogue import BY_ID

    implementation, item = MutantImplementation(mutant), BY_ID[mutant.invariant]
    deadline = time.monotonic() + WRONG_S
    for stream in streams_for([item.area], implementation):
        if time.monotonic() > deadline:
            break
        if _first_complaint(implementation, stream, WRONG_LIMIT, [item]) is not None:
            return
    raise Killed(f"{mutant.invariant} holds for mutant:{mutant.name}")


# ── tests ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Picked:
    """A pytest plugin: runs the tests of these ids or files, in their order.

    None means all tests that need no service.
    """

    ids: tuple[str, ...] | None
    around: Callable[[str], Any]
    """Called with a test's id; the context manager it returns is entered while the test runs."""
    outcomes: dict[str, str]
    """Filled with what became of each test: passed, failed or skipped. The empty id represents the collection."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect the others."""
        if self.ids is None:
            items[:] = [item for item in items if not {"queue", "local_queue"} & set(getattr(item, "fixturenames", ()))]
        else:
            order = {name: index for index, name in enumerate(self.ids)}
            places = [(order.get(item.nodeid, order.get(item.nodeid.partition("::")[0])), item) for item in items]
            wanted = [(place, item) for place, item in places if place is not None]
            items[:] = [item for _, item in sorted(wanted, key=lambda pair: pair[0])]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Report which test runs."""
        with self.around(item.nodeid):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst of a test's phases."""
        if report.failed or report.when == "call" or report.skipped:
            self.outcomes.setdefault(report.nodeid, report.outcome)
            if report.failed:
                self.outcomes[report.nodeid] = "failed"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a module that cannot be collected as failed."""
        if report.failed:
            self.outcomes[""] = f"failed: {report.nodeid}"


def _files(pattern: str) -> Iterator[Path]:
    for path in ROOT.glob(pattern):
        yield from (file for file in path.rglob("test_*.py") if file.name not in APART) if path.is_dir() else [path]


def run_tests(ids: Iterable[str] | None, around: Callable[[str], Any]) -> dict[str, str]:
    """Run tests in this process, up to the first failure where ``ids`` says which; return the outcome of each."""
    picked = Picked(None if ids is None else tuple(ids), around, {})
    if picked.ids is None:
        files = sorted(str(path) for pattern in TESTS for path in _files(pattern))
        pytest.main([*PYTEST, *files], plugins=[picked])
    elif picked.ids:
        files = list(dict.fromkeys(str(ROOT / name.partition("::")[0]) for name in picked.ids))
        pytest.main([*PYTEST, "-x", *files], plugins=[picked])
    return picked.outcomes
