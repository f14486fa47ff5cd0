"""``rollproof fuzz``: look for disagreements for as long as one likes, or hold hostile inputs against limits."""

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
from rollproof.properties.fuzz.files import read_limit, write_limits
from rollproof.properties.fuzz.hostile_run import hostile_summary, hostile_tables, limits_text, run_hostile
from rollproof.properties.fuzz.limits import guarded, judged, measure
from rollproof.properties.fuzz.report import show_campaign, view
from rollproof.properties.fuzz.show import show_limit, shown_live
from rollproof.properties.gate.files import safe
from rollproof.properties.gate.load import load_implementation, pick_areas
from rollproof.properties.strategies.recipes import realize_request
from rollproof.spec.requests import Area

REPLAYS: Final = Path(".rollproof") / "replays"
CORPORA: Final = Path(".rollproof") / "fuzz"
ENOUGH: Final = 10**8
"""Hostile inputs for any number of minutes."""


@click.command("fuzz")
@click.argument("implementations", nargs=-1, metavar="[IMPL]...")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="How long, per implementation.")
@click.option("--examples", type=click.IntRange(min=1), help="How many examples, per implementation.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same examples.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes; they do not change results.  [default: 1; with --ray, all free processors there]",
)
@click.option("--ray", "address", metavar="ADDRESS", help=RAY_HELP)
@click.option(
    "--area", "areas", multiple=True, type=click.Choice([area.value for area in Area]), help="Only this area."
)
@click.option(
    "--corpus",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where inputs are kept that reached something new  [default: .rollproof/fuzz/IMPL]",
)
@click.option("--hostile", is_flag=True, help="Hostile inputs, asked of the implementation alone, against limits.")
@click.option(
    "--measure", "measured", type=click.Path(path_type=Path), help="Measure the input in this file again, and no more."
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
    """Fuzz implementations (default: impl): look for disagreements with the spec, steered by coverage.

    Inputs that reach something new are kept, and replayed at the next start. Ctrl-C ends a run early and keeps what it
    found.
    """
    console = Console()
    if measured is not None:
        if address is not None:
            raise InputError("--measure asks in this process alone: --ray does not apply")
        sys.exit(measure_again(console, measured, implementations))
    if minutes is None and examples is None:
        raise InputError("say how long: --minutes or --examples")
    if hostile and (areas or corpus):
        raise InputError("--hostile has kinds of input, no areas and no corpus")
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
    """Whether hostile inputs stay within the limits."""
    report = run_hostile(console, name, examples, seed, place, minutes)
    console.print(hostile_tables(report))
    files = write_limits(name, report.findings, REPLAYS)
    for finding, file in zip(report.findings, files, strict=True):
        console.print(show_limit(finding, file))
    console.print(limits_text(), soft_wrap=True)
    console.print(hostile_summary(report), soft_wrap=True)
    return not report.findings


def measure_again(console: Console, file: Path, implementations: tuple[str, ...]) -> int:
    """Put a recorded input to an implementation again (default: the one it was found with)."""
    recorded, request = read_limit(file)
    name = implementations[0] if implementations else recorded
    implementation = load_implementation(name)
    with guarded():
        found = measure(implementation, realize_request(request))
        finding = judged(implementation, request, found, str(file))
    if finding is None:
        console.print(f"[green]{name} stays within the limits on this input[/]")
        return 0
    console.print(show_limit(finding, None))
    return 0 if finding.deviation else 1
