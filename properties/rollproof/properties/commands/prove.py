"""``rollproof prove``: prove the scalar rules over all paths, and compare spec and implementation."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rollproof.properties.errors import InputError
from rollproof.properties.symbolic.rule import Pair, Rule

if TYPE_CHECKING:
    from rollproof.properties.symbolic.proofs import Proof


@click.command("prove")
@click.argument("rules", nargs=-1, metavar="[RULE]...")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0, min_open=True),
    default=60.0,
    show_default=True,
    help="Processor seconds per rule; a rule without an answer by then stays open.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=os.cpu_count, help="Number of processes.")
@click.option(
    "--json", "report", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcomes to this file."
)
@click.option(
    "--table", type=click.Path(dir_okay=False, path_type=Path), help="Write the documentation page to this file."
)
def command(rules: tuple[str, ...], timeout: float, jobs: int, report: Path | None, table: Path | None) -> None:
    """Prove the contract's scalar rules with CrossHair (default: all of them).

    RULE is the name of a rule, or of a chapter: values, terminal, lineage, routes, media, retained, group, boundary;
    or pairs, where CrossHair searches for a difference between spec and implementation.
    """
    if find_spec("crosshair") is None:
        raise InputError("prove needs CrossHair: pip install 'rollproof[prove]'")
    from rollproof.properties.symbolic.proofs import as_json, as_table, summary
    from rollproof.properties.symbolic.registry import ITEMS

    items = chosen(rules, ITEMS)
    if find_spec("torch") is None and any(isinstance(item, Pair) for item in items):
        raise InputError("pairs needs torch: pip install 'rollproof[torch]'; the chapters are proved without it")
    console = Console()
    proofs = shown(console, items, timeout, jobs)
    if report is not None:
        report.write_text(json.dumps(as_json(items, proofs), indent=1) + "\n", encoding="utf-8")
    if table is not None:
        table.write_text(as_table(items, proofs), encoding="utf-8")
    console.print(summary(proofs), highlight=False)
    sys.exit(1 if any(proof.is_refuted for proof in proofs) else 0)


def chosen(names: Sequence[str], items: Sequence[Rule | Pair]) -> list[Rule | Pair]:
    """Return the items with these names or from these modules, in the order of the registry; all without names."""
    known = {name for item in items for name in (item.name, item.module)}
    for name in names:
        if name not in known:
            raise InputError(f"{name}: no such rule or chapter; docs/evidence/proofs.md lists them")
    return [item for item in items if not names or item.name in names or item.module in names]


def shown(console: Console, items: Sequence[Rule | Pair], timeout: float, jobs: int) -> list[Proof]:
    """Prove the items, and print each outcome as soon as it is there."""
    from rollproof.properties.symbolic.proving import prove_all

    bounds = {item.name: item.bounds for item in items}
    columns = (TextColumn("proving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(items))

        def done(proof: Proof) -> None:
            colour = "red" if proof.is_refuted else "green" if proof.status.is_proved else "yellow"
            known = escape(f"({bounds[proof.name]}; {proof.seconds:.1f} s)")
            line = f"{proof.name}: [{colour}]{proof.status.value}[/] [dim]{known}[/]"
            detail = f"\n    {escape(proof.detail)}" if proof.detail else ""
            progress.console.print(line + detail, highlight=False, soft_wrap=True)
            progress.advance(bar)

        return prove_all(items, timeout, jobs, done)
