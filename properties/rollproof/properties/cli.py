"""The command ``rollproof``: check an implementation, replay a finding, read the rules.

Exit codes: 0 the invariants held, 1 one was falsified, 2 a wrong call or an implementation that cannot be used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from rollproof.properties.gate.files import ReplayError, read_replay, write_replays, write_reports
from rollproof.properties.gate.load import AdapterError, known_names, load_implementation, pick_areas
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.results import Finding
from rollproof.properties.gate.run import both_answers
from rollproof.properties.gate.show import show_finding, show_report, summary
from rollproof.properties.gate.workers import Task, run_tasks
from rollproof.properties.rules import render_rule, render_rules
from rollproof.properties.strategies.recipes import realize_request
from rollproof.spec.requests import Area

REPLAYS = Path(".rollproof") / "replays"
"""Where replay files go without ``--report``."""


class Main(click.Group):
    """A group that turns what a user can get wrong into one clear line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; ``AdapterError`` and ``ReplayError`` end with exit code 2 and no traceback."""
        try:
            return super().invoke(ctx)
        except (AdapterError, ReplayError) as error:
            fail(str(error))


def fail(message: str) -> NoReturn:
    """End with exit code 2 and one line on standard error."""
    click.echo(f"rollproof: {message}", err=True)
    sys.exit(2)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollproof")
def main() -> None:
    """Check implementations of the rollout-reassembly contract against its executable spec."""


@main.command()
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
@click.option("--report", "folder", type=click.Path(file_okay=False, path_type=Path), help="Write JSON and JUnit here.")
def check(
    implementations: tuple[str, ...],
    areas: tuple[str, ...],
    profile: str,
    seed: int,
    max_examples: int | None,
    jobs: int,
    folder: Path | None,
) -> None:
    """Check implementations (default: impl).

    IMPL is a registered name, "spec", "mutant:NAME", or module:object.
    """
    console = Console()
    names = implementations or ("impl",)
    tasks = [
        Task(name, area, profile, seed, max_examples)
        for name in names
        for area in pick_areas(load_implementation(name), areas)
    ]
    reports = run_tasks(console, tasks, jobs)
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


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("implementation", required=False)
def replay(file: Path, implementation: str | None) -> None:
    """Put a replay FILE's request to an implementation again (default: the one it failed for)."""
    console = Console()
    recorded = read_replay(file)
    name = implementation or recorded.implementation
    target = load_implementation(name)
    item = recorded.invariant
    if item.area not in target.areas:
        fail(f"{name} does not offer area {item.area}")
    expected, actual = both_answers(target, recorded.request)
    complaint = item.check(realize_request(recorded.request), expected, actual)
    known = next((known.id for known in target.deviations if known.applies(recorded.request, expected, actual)), None)
    if complaint is None:
        console.print(f"[green]{item.id} holds for {name} on this input[/]")
        return
    finding = Finding(item.id, recorded.request, expected, actual, complaint, "replay", 1, known)
    console.print(show_finding(finding, None))
    sys.exit(0 if known else 1)


@main.command()
@click.argument("rule", required=False, metavar="[ID]")
def rules(rule: str | None) -> None:
    """The catalogue of invariants and rejection codes; with ID, one of them."""
    if rule is None:
        click.echo(render_rules(), nl=False)
        return
    text = render_rule(rule)
    if text is None:
        fail(f"{rule}: no such invariant or rejection code; see rollproof rules")
    click.echo(text, nl=False)


@main.command()
def implementations() -> None:
    """The names that ``check`` knows."""
    for name in known_names():
        click.echo(name)
