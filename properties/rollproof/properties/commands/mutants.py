"""``rollproof mutants``: run the gate against wrong implementations, and check that it notices each of them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from attrs import asdict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollproof.properties.errors import InputError
from rollproof.properties.gate.rates import on_target, rate_of, rate_table
from rollproof.properties.gate.trial import Verdict, try_mutant
from rollproof.properties.gate.workers import PRELOAD
from rollproof.properties.mutants import MUTANTS, Mutant
from rollproof.properties.mutants.known_faults import KNOWN_FAULTS
from rollproof.properties.processes import processes, tell
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area


@click.command("mutants")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--area",
    "areas",
    multiple=True,
    type=click.Choice([area.value for area in Area]),
    help="Only mutants of this area. May be repeated.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed gives the same examples."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Try so many seeds, from --seed on; of mutants, print kill rates.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count, help="Number of processes; does not affect results."
)
@click.option(
    "--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the verdicts to this file."
)
@click.option(
    "--right", is_flag=True, help="Check right variants of our implementation instead: those with a NAME, or all."
)
@click.option("--known-faults", is_flag=True, help="List the faults found in public code with their mutants, and exit.")
def command(
    names: tuple[str, ...],
    areas: tuple[str, ...],
    seed: int,
    seeds: int,
    jobs: int,
    file: Path | None,
    right: bool,
    known_faults: bool,
) -> None:
    """Run the gate against wrong implementations: those with a NAME, or all of them.

    Each must be killed by the invariant that it names. Exit code 1 lists the survivors; with --seeds it means that
    a kill rate is below its target, and with --right that a right variant was called wrong.
    """
    console = Console()
    if known_faults:
        console.print(fault_table())
        return
    if right:
        from rollproof.properties.gate.variants import all_held

        sys.exit(0 if all_held(console, names, range(seed, seed + seeds), jobs) else 1)
    mutants = chosen(names, areas)
    verdicts = tried(console, mutants, range(seed, seed + seeds), jobs)
    if seeds > 1:
        if file is not None:
            file.write_text(json.dumps(report(verdicts, seed), indent=1) + "\n", encoding="utf-8")
        rates = [rate_of(verdicts, mutant.name) for mutant in mutants]
        console.print(rate_table(rates))
        sys.exit(0 if on_target(console, rates) else 1)
    console.print(verdict_table(verdicts))
    if file is not None:
        file.write_text(json.dumps(report(verdicts, seed), indent=1) + "\n", encoding="utf-8")
    survivors = [verdict for verdict in verdicts if not verdict.killed]
    for verdict in survivors:
        console.print(f"[bold red]survived:[/] {verdict.mutant}: {verdict.sentence} ({verdict.invariant} held)")
    console.print(f"[bold]{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed by their invariant[/]")
    sys.exit(1 if survivors else 0)


def chosen(names: Sequence[str], areas: Sequence[str]) -> list[Mutant]:
    """Return the selected mutants, in the catalogue's order. Raises ``InputError`` for an unknown name."""
    unknown = [name for name in names if name not in {mutant.name for mutant in MUTANTS}]
    if unknown:
        raise InputError(f"no mutant {unknown[0]!r}; rollproof mutants without a name runs them all")
    found = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    found = [mutant for mutant in found if not areas or BY_ID[mutant.invariant].area.value in areas]
    if not found:
        raise InputError(f"no selected mutant belongs to area {', '.join(areas)}")
    return found


def tried(console: Console, mutants: Sequence[Mutant], seeds: Sequence[int], jobs: int) -> list[Verdict]:
    """Try the mutants seed by seed under a progress bar, and return the verdicts in that order."""
    trials = [(mutant, seed) for seed in seeds for mutant in mutants]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("mutants", total=len(trials))

        def hear(verdict: Verdict) -> None:
            fate = "killed" if verdict.killed else "[red]survived[/]"
            progress.update(bar, advance=1, description=f"{verdict.mutant}: {fate}")

        return verdicts_of(trials, jobs, hear)


def verdicts_of(trials: Sequence[tuple[Mutant, int]], jobs: int, hear: Callable[[Verdict], None]) -> list[Verdict]:
    """Return the verdicts in the order of the trials; ``hear`` gets each as soon as it is known."""
    if jobs == 1 or len(trials) == 1:
        verdicts = []
        for mutant, seed in trials:
            verdicts.append(try_mutant(mutant, seed))
            hear(verdicts[-1])
        return verdicts
    with processes(min(jobs, len(trials)), preload=PRELOAD) as workers:
        return workers.run(work, [(mutant.name, seed) for mutant, seed in trials], hear)


def work(name: str, seed: int) -> Verdict:
    """Find the mutant by its name, because its replacements cannot be sent, and try it; this runs in a worker."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    verdict = try_mutant(mutant, seed)
    tell(verdict)
    return verdict


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Tabulate mutant, the invariant that must fail, after how many requests it did, what else failed, and origin."""
    table = Table(title="Mutants", title_justify="left", expand=True)
    table.add_column("mutant", ratio=2)
    table.add_column("killed by", no_wrap=True)
    table.add_column("after", justify="right")
    table.add_column("fell too", ratio=1)
    table.add_column("origin", ratio=2)
    for verdict in verdicts:
        after = f"{verdict.fell[verdict.invariant]:,}" if verdict.killed else "survived"
        style = "" if verdict.killed else "red"
        others = ", ".join(verdict.others)
        table.add_row(verdict.mutant, verdict.invariant, after, others, verdict.origin, style=style)
    return table


def fault_table() -> Table:
    """Tabulate fault, mutant, invariant."""
    table = Table(title="Faults met in public", title_justify="left", expand=True)
    table.add_column("fault", ratio=2)
    table.add_column("reported", ratio=2)
    table.add_column("mutants and their invariants", ratio=2)
    for fault in KNOWN_FAULTS:
        claimed = "\n".join(f"{mutant.name} ({mutant.invariant})" for mutant in fault.mutants)
        table.add_row(fault.what, fault.reported, claimed, end_section=True)
    return table


def report(verdicts: Sequence[Verdict], seed: int) -> dict[str, object]:
    """Return the verdicts as JSON."""
    entries = [{**asdict(verdict), "killed": verdict.killed} for verdict in verdicts]
    return {"format": "rollproof-mutants-1", "seed": seed, "mutants": entries}
