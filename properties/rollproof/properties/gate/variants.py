"""Running the gate against right variants of our implementation, each of which it must hold."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rollproof.properties.errors import InputError
from rollproof.properties.gate.workers import Task, run_tasks
from rollproof.properties.right import EVERY_RIGHT, PortableRight, Right, areas_of
from rollproof.spec.judge.requests import Area


def chosen(names: Sequence[str]) -> list[Right | PortableRight]:
    """Return the right variants asked for, in their order. Raise ``InputError`` for a name that none has."""
    unknown = [name for name in names if name not in {variant.name for variant in EVERY_RIGHT}]
    if unknown:
        raise InputError(
            f"no right variant {unknown[0]!r}; there are {', '.join(variant.name for variant in EVERY_RIGHT)}"
        )
    return [variant for variant in EVERY_RIGHT if not names or variant.name in names]


def fallen(
    console: Console, variants: Sequence[Right | PortableRight], seeds: Sequence[int], jobs: int
) -> dict[str, list[str]]:
    """Check right variants in their areas at each seed, and return by name what fell of each."""
    fell: dict[str, list[str]] = {variant.name: [] for variant in variants}
    for seed in seeds:
        pairs = [(variant, area) for variant in variants for area in Area if area in areas_of(variant)]
        tasks = [Task(f"right:{variant.name}", area, "quick", seed) for variant, area in pairs]
        for variant, found in zip(variants, run_tasks(console, tasks, jobs), strict=True):
            fell[variant.name] += [f"{finding.invariant_id} (seed {seed})" for finding in found.falsified]
            fell[variant.name] += [f"not exercised (seed {seed}): {name}" for name in found.not_exercised]
    return fell


def all_held(console: Console, names: Sequence[str], seeds: Sequence[int], jobs: int) -> bool:
    """Check right variants at each seed, print what fell of each, and return whether nothing did."""
    variants = chosen(names)
    fell = fallen(console, variants, seeds, jobs)
    table = Table(title="Right variants", title_justify="left", expand=True)
    for column in ("variant", "what it does otherwise", "fell"):
        table.add_column(column, ratio=2 if column == "what it does otherwise" else 1)
    for variant in variants:
        words = ", ".join(fell[variant.name])
        table.add_row(variant.name, variant.sentence, words or "held", style="red" if words else "")
    console.print(table)
    held = sum(not words for words in fell.values())
    at = "" if len(seeds) == 1 else f" at {len(seeds)} seeds"
    console.print(f"[bold]{held} of {len(variants)} right variants held{at}[/]")
    return held == len(variants)
