"""``rollproof mutants``: run the gate against every wrong implementation, and see that it notices each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from attrs import asdict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollproof.properties.errors import InputError
from rollproof.properties.gate.workers import worker_context
from rollproof.properties.mutants import MUTANTS, Mutant
from rollproof.properties.mutants.known_faults import KNOWN_FAULTS
from rollproof.properties.mutants.trial import Verdict, try_mutant
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Area


@click.command("mutants")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--area", "areas", multiple=True, type=click.Choice([area.value for area in Area]), help="Only of this.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same examples.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=os.cpu_count, help="Processes; results do not depend on it."
)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the verdicts here.")
@click.option("--known-faults", is_flag=True, help="List the faults met in public with their mutants; run nothing.")
def command(
    names: tuple[str, ...], areas: tuple[str, ...], seed: int, jobs: int, file: Path | None, known_faults: bool
) -> None:
    """Run the gate against wrong implementations, by NAME or all of them.

    Each must be killed by the invariant that it names. Exit code 1 lists the survivors.
    """
    console = Console()
    if known_faults:
        console.print(fault_table())
        return
    mutants = chosen(names, areas)
    verdicts = list(tried(console, mutants, seed, jobs))
    verdicts.sort(key=lambda verdict: [mutant.name for mutant in mutants].index(verdict.mutant))
    console.print(verdict_table(verdicts))
    if file is not None:
        file.write_text(json.dumps(report(verdicts, seed), indent=1) + "\n", encoding="utf-8")
    survivors = [verdict for verdict in verdicts if not verdict.killed]
    for verdict in survivors:
        console.print(f"[bold red]survived:[/] {verdict.mutant}: {verdict.sentence} ({verdict.invariant} held)")
    console.print(f"[bold]{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed by their invariant[/]")
    sys.exit(1 if survivors else 0)


def chosen(names: Sequence[str], areas: Sequence[str]) -> list[Mutant]:
    """The mutants asked for, in the catalogue's order. Raises ``InputError`` for a name that none has."""
    unknown = [name for name in names if name not in {mutant.name for mutant in MUTANTS}]
    if unknown:
        raise InputError(f"no mutant {unknown[0]!r}; rollproof mutants without a name runs them all")
    found = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    found = [mutant for mutant in found if not areas or BY_ID[mutant.invariant].area.value in areas]
    if not found:
        raise InputError(f"no mutant of these is one of area {', '.join(areas)}")
    return found


def tried(console: Console, mutants: Sequence[Mutant], seed: int, jobs: int) -> Iterator[Verdict]:
    """The verdicts as they come, with a progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("mutants", total=len(mutants))
        for verdict in verdicts_of(mutants, seed, jobs):
            fate = "killed" if verdict.killed else "[red]survived[/]"
            progress.update(bar, advance=1, description=f"{verdict.mutant}: {fate}")
            yield verdict


def verdicts_of(mutants: Sequence[Mutant], seed: int, jobs: int) -> Iterator[Verdict]:
    """One mutant after the other here, or each in one of ``jobs`` worker processes."""
    if jobs == 1 or len(mutants) == 1:
        for mutant in mutants:
            yield try_mutant(mutant, seed)
        return
    with ProcessPoolExecutor(min(jobs, len(mutants)), worker_context()) as pool:
        for future in as_completed([pool.submit(work, mutant.name, seed) for mutant in mutants]):
            yield future.result()


def work(name: str, seed: int) -> Verdict:
    """In a worker: the mutant is found again by its name, because its replacements cannot travel."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    return try_mutant(mutant, seed)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Mutant, the invariant that must fall, after how many requests it did, what else fell, where the fault is from."""
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
    """Fault, mutant, invariant."""
    table = Table(title="Faults met in public", title_justify="left", expand=True)
    table.add_column("fault", ratio=2)
    table.add_column("reported", ratio=2)
    table.add_column("mutants and their invariants", ratio=2)
    for fault in KNOWN_FAULTS:
        claimed = "\n".join(f"{mutant.name} ({mutant.invariant})" for mutant in fault.mutants)
        table.add_row(fault.what, fault.reported, claimed, end_section=True)
    return table


def report(verdicts: Sequence[Verdict], seed: int) -> dict[str, object]:
    """The verdicts as JSON."""
    entries = [{**asdict(verdict), "killed": verdict.killed} for verdict in verdicts]
    return {"format": "rollproof-mutants-1", "seed": seed, "mutants": entries}
