"""The pytest plugin: ``pytest --rollproof IMPL`` collects the suite as tests.

Every invariant, every rejection code that some input must be answered with, and every declared deviation of an
implementation is one test, called ``rollproof::IMPL::AREA::NAME``. Nothing of rollproof is imported, and nothing is
collected, unless the option is given or a test uses ``rollproof_implementation``.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rollproof.properties.pytest_suite.suite import Results

SHARED = "rollproof_folder"
"""Where the controller of pytest-xdist tells its workers the folder that all share."""
RESULTS: pytest.StashKey[Results] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options, named as those of ``rollproof check``."""
    group = parser.getgroup("rollproof", "implementations of the rollout contract")
    add = group.addoption
    add("--rollproof", action="append", default=[], metavar="IMPL", help="check IMPL; may be repeated")
    add("--rollproof-area", action="append", default=[], metavar="AREA", help="only this area; may be repeated")
    add("--rollproof-profile", default="ci", metavar="NAME", help="how many examples: quick, ci (default) or deep")
    add("--rollproof-seed", default=0, type=int, metavar="N", help="same seed, same examples (default: 0)")
    add("--rollproof-max-examples", type=int, metavar="N", help="at most so many examples per stream")
    add("--rollproof-report", type=Path, metavar="DIR", help="write what was found there, in every format")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; with ``--rollproof``, check the options and prepare the folder that results go to."""
    config.addinivalue_line("markers", "rollproof: a rule of the rollout contract, collected by --rollproof")
    if config.option.rollproof:
        from rollproof.properties.pytest_suite.suite import Results

        inherited = getattr(config, "workerinput", {}).get(SHARED)
        folder = Path(inherited or mkdtemp(prefix="rollproof-"))
        config.stash[RESULTS] = Results.of_options(folder, config.option, owned=inherited is None)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Share the controller's folder with every worker of pytest-xdist: no area is checked twice."""
    results = node.config.stash.get(RESULTS, None)
    if results is not None:
        node.workerinput[SHARED] = str(results.folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder, where it is this process's own."""
    results = config.stash.get(RESULTS, None)
    if results is not None:
        results.close()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Return what is checked, and how thoroughly."""
    results = config.stash.get(RESULTS, None)
    return None if results is None else results.header


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect the implementations beside what the command line names."""
    report = yield
    results = collector.config.stash.get(RESULTS, None)
    if isinstance(collector, pytest.Session) and results is not None:
        from rollproof.properties.pytest_suite.suite import ImplementationNode

        nodes = [ImplementationNode.of(collector, name, results) for name in results.names]
        report.result = [*(report.result or ()), *nodes]
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Select the areas with a selected test: only they are worth checking."""
    results = session.config.stash.get(RESULTS, None)
    if results is not None:
        results.select(session.items)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print one line per implementation; with ``--rollproof-report``, its files."""
    results = config.stash.get(RESULTS, None)
    if results is not None and results.lines():
        terminalreporter.section("rollproof")
        for line in results.lines():
            terminalreporter.write_line(line)


# ── for tests of one's own ──────────────────────────────────────────────────────────────────────────────────────────


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses an implementation once for each that is given; without any, skip it."""
    if "rollproof_implementation" in metafunc.fixturenames:
        nothing = pytest.param(None, id="none", marks=pytest.mark.skip(reason="no implementation: give --rollproof"))
        given = list(dict.fromkeys(metafunc.config.option.rollproof))
        metafunc.parametrize("rollproof_implementation", given or [nothing], indirect=True, scope="session")


@pytest.fixture(scope="session")
def rollproof_implementation(request: pytest.FixtureRequest) -> Any:
    """Return each implementation given with ``--rollproof``, with the interface of ``adapters.protocol.Adapter``."""
    from rollproof.properties.gate.load import load_implementation

    return load_implementation(request.param)
