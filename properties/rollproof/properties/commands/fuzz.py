"""``rollproof fuzz``: search for disagreements for a given time, or check that hostile inputs stay within limits."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from rollproof.properties.cluster import RAY_HELP, Cluster, placed
from rollproof.properties.errors import InputError
from rollproof.properties.fuzz.campaign import Campaign, run_campaign
from rollproof.properties.fuzz.campaign_summary import print_limit, show_limit, shown_live
from rollproof.properties.fuzz.hostile_run import hostile_summary, hostile_tables, limits_text, run_hostile
from rollproof.properties.fuzz.limits import guarded, judged, measure
from rollproof.properties.fuzz.report import show_campaign, view
from rollproof.properties.fuzz.reproducers import read_limit, write_limits
from rollproof.properties.gate.load import load_implementation, named_in_file, pick_areas
from rollproof.properties.gate.text import repeated, safe
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.requests import Area

REPLAYS: Final = Path(".rollproof") / "replays"
CORPORA: Final = Path(".rollproof") / "fuzz"
ENOUGH: Final = 10**8
"""Hostile inputs for any number of minutes."""


@click.command("fuzz")
@click.argument("implementations", nargs=-1, metavar="[IMPL]...")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Time per implementation.")
@click.option("--examples", type=click.IntRange(min=1), help="Number of examples per implementation.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed gives the same examples."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Number of processes; does not affect results.  [default: 1; with --ray, all free processors there]",
)
@click.option("--ray", "address", metavar="ADDRESS", help=RAY_HELP)
@click.option(
    "--area",
    "areas",
    multiple=True,
    type=click.Choice([area.value for area in Area]),
    help="Fuzz only this area. May be repeated.",
)
@click.option(
    "--corpus",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for inputs that reached new code  [default: .rollproof/fuzz/IMPL]",
)
@click.option(
    "--hostile", is_flag=True, help="Send hostile inputs to the implementation only, and check time and memory limits."
)
@click.option(
    "--measure", "measured", type=click.Path(path_type=Path), help="Re-measure the input in this file and exit."
)
def command(
    implementations: tuple[str, ...],
    minutes: float | None,
    examples: int | None,
    seed: int,
    workers: int | None,
    address: str | None,
    areas: tuple[str, ...],
    corpus: Path | None,
    hostile: bool,
    measured: Path | None,
) -> None:
    """Fuzz implementations (default: impl): search for disagreements with the spec, guided by coverage.

    Inputs that reach new code are stored, and replayed by the next run. Ctrl-C ends a run early and keeps its
    findings.
    """
    console = Console()
    if measured is not None:
        if address is not None:
            raise InputError("--measure runs in this process only: --ray does not apply")
        sys.exit(measure_again(console, measured, implementations))
    if minutes is None and examples is None:
        raise InputError("expected --minutes or --examples")
    if hostile and (areas or corpus):
        raise InputError("--hostile cannot be combined with --area or --corpus")
    held = True
    with placed(address, workers, 1) as place:
        for name in implementations or ("impl",):
            if hostile:
                held &= fuzz_hostile(console, name, examples or ENOUGH, seed, place, minutes)
                continue
            implementation = load_implementation(name)
            folder = corpus or CORPORA / safe(name)
            campaign = Campaign.of(name, implementation, pick_areas(implementation, areas), seed, folder)
            with shown_live(console, partial(view, campaign, table=console.is_terminal)) as changed:
                run_campaign(campaign, examples, minutes, place, changed)
            show_campaign(console, campaign, REPLAYS)
            held &= campaign.held
    sys.exit(0 if held else 1)


def fuzz_hostile(
    console: Console, name: str, examples: int, seed: int, place: int | Cluster, minutes: float | None
) -> bool:
    """Return whether hostile inputs stay within the limits."""
    report = run_hostile(console, name, examples, seed, place, minutes)
    console.print(hostile_tables(report))
    files = write_limits(name, report.findings, REPLAYS)
    for finding, file in zip(report.findings, files, strict=True):
        print_limit(console, finding, repeated("rollproof fuzz --measure", file, name))
    console.print(limits_text(), soft_wrap=True)
    console.print(hostile_summary(report), soft_wrap=True)
    return not report.findings


def measure_again(console: Console, file: Path, implementations: tuple[str, ...]) -> int:
    """Ask an implementation a recorded input again (default: the installed one that the file names)."""
    recorded, request = read_limit(file)
    name = implementations[0] if implementations else named_in_file(file, recorded, "fuzz --measure")
    implementation = load_implementation(name)
    with guarded():
        found = measure(implementation, realize_request(request))
        finding = judged(implementation, request, found, str(file))
    if finding is None:
        console.print(f"[green]{name} stays within the limits on this input[/]")
        return 0
    console.print(show_limit(finding))
    return 0 if finding.deviation else 1
