"""``rollproof check``: run the gate against implementations."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rollproof.properties.dataplanes import DATA_PLANES, MEMORY, running
from rollproof.properties.gate.files import write_replays, write_reports
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.show import show_report, summary
from rollproof.properties.gate.workers import Task, run_tasks
from rollproof.spec.requests import Area

REPLAYS: Final = Path(".rollproof") / "replays"
"""Where replay files go without ``--report``."""


@click.command("check")
@click.argument("implementations", nargs=-1, metavar="[IMPL]...")
@click.option(
    "--area", "areas", multiple=True, type=click.Choice([area.value for area in Area]), help="Only this area."
)
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), default="ci", show_default=True, help="How many examples."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same examples.")
@click.option("--max-examples", type=click.IntRange(min=1), help="At most so many examples per stream.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count, help="Processes; results do not depend on it."
)
@click.option(
    "--data-plane",
    type=click.Choice(DATA_PLANES),
    default=MEMORY,
    show_default=True,
    help="What a reassembler runs over; transfer-queue starts one on a local Ray, in this process alone.",
)
@click.option(
    "--report",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write HTML, JSON, JUnit and SARIF here.",
)
def command(
    implementations: tuple[str, ...],
    areas: tuple[str, ...],
    profile: str,
    seed: int,
    max_examples: int | None,
    jobs: int,
    data_plane: str,
    folder: Path | None,
) -> None:
    """Check implementations (default: impl).

    IMPL is a registered name, "spec", "mutant:NAME", "subprocess:COMMAND", or module:object.
    """
    console = Console()
    names = implementations or ("impl",)
    tasks = [
        Task(name, area, profile, seed, max_examples, data_plane)
        for name in names
        for area in pick_areas(load_implementation(name), areas)
    ]
    with running(data_plane):
        reports = run_tasks(console, tasks, jobs if data_plane == MEMORY else 1)
    for report in reports:
        replays = write_replays(report, REPLAYS if folder is None else folder / "replays")
        show_report(console, report, replays)
    if folder is not None:
        write_reports(reports, folder)
        console.print(f"reports written to {folder}")
    if len(reports) > 1:
        for report in reports:
            console.print(summary(report))
    sys.exit(0 if all(report.held for report in reports) else 1)
