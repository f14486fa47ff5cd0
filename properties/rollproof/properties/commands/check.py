"""``rollproof check``: run the gate against implementations."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from rollproof.properties.adapters.data_planes import DATA_PLANES, MEMORY, running
from rollproof.properties.gate.files import write_replays, write_reports
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.show import show_report, summary
from rollproof.properties.gate.workers import PRELOAD, Task, run_tasks
from rollproof.properties.processes import prepare
from rollproof.spec.judge.requests import CAPABILITIES, Area

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended, as shells have it."""

REPLAYS: Final = Path(".rollproof") / "replays"
"""Where replay files go without ``--report``."""


class CommaSeparated(click.Choice[str]):
    """Some of the choices, separated by commas."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the choices that a value names."""
        if not isinstance(value, str):
            return tuple(value)
        return tuple(super(CommaSeparated, self).convert(name, param, ctx) for name in value.split(","))


def asked_areas(implementation: Any, areas: tuple[str, ...], capabilities: tuple[str, ...]) -> tuple[Area, ...]:
    """Return the areas to check: those named or the usual ones, and then the capabilities."""
    chosen = pick_areas(implementation, areas)
    further = pick_areas(implementation, capabilities) if capabilities else ()
    return chosen + tuple(area for area in further if area not in chosen)


@click.command("check")
@click.argument("implementations", nargs=-1, metavar="[IMPL]...")
@click.option(
    "--area",
    "areas",
    multiple=True,
    type=click.Choice([area.value for area in Area]),
    help="Check only this area. May be repeated.",
)
@click.option(
    "--capability",
    "capabilities",
    type=CommaSeparated([area.value for area in CAPABILITIES]),
    default=(),
    help="Check these capabilities, which are off by default, too: one or more, separated by commas.",
)
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True, help="Number of examples."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed gives the same examples."
)
@click.option("--max-examples", type=click.IntRange(min=1), help="Upper limit of examples per stream.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count, help="Number of processes; does not affect results."
)
@click.option(
    "--data-plane",
    type=click.Choice(DATA_PLANES),
    default=MEMORY,
    show_default=True,
    help="The data plane of a reassembler; transfer-queue starts one on a local Ray and uses a single process.",
)
@click.option(
    "--requests",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the requests that are drawn in this folder, and take those of later runs from there. It holds pickles:"
    " nobody else may be able to write to it.",
)
@click.option("--strict", is_flag=True, help="Count declared deviations that occur as failures.")
@click.option(
    "--report",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write HTML, JSON, JUnit and SARIF reports to this folder.",
)
def command(
    implementations: tuple[str, ...],
    areas: tuple[str, ...],
    capabilities: tuple[str, ...],
    profile: str,
    seed: int,
    max_examples: int | None,
    jobs: int,
    data_plane: str,
    requests: Path | None,
    strict: bool,
    folder: Path | None,
) -> None:
    """Check implementations (default: impl).

    IMPL is a registered name, "spec", "mutant:NAME", "peer:NAME", "subprocess:COMMAND", or module:object.

    Exit code 0: everything held; 1: something did not; 2: a usage error, an implementation that cannot be
    loaded, or something that it offers was not exercised; 130: interrupted.
    """
    console = Console()
    names = implementations or ("impl",)
    jobs = jobs if data_plane == MEMORY else 1
    if jobs > 1:
        prepare(*PRELOAD)
    tasks = [
        Task(name, area, profile, seed, max_examples, data_plane, requests)
        for name in names
        for area in asked_areas(load_implementation(name), areas, capabilities)
    ]
    try:
        with running(data_plane):
            reports = run_tasks(console, tasks, jobs)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    for report in reports:
        report.strict = strict
        replays = write_replays(report, REPLAYS if folder is None else folder / "replays")
        show_report(console, report, replays)
    if folder is not None:
        write_reports(reports, folder)
        console.print(f"reports written to {folder}")
    if len(reports) > 1:
        for report in reports:
            console.print(summary(report))
    sys.exit(1 if not all(report.held for report in reports) else 0 if all(one.exercised for one in reports) else 2)
