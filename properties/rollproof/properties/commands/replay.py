"""``rollproof replay``: put a recorded request to an implementation again."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from rollproof.properties.gate.files import read_replay
from rollproof.properties.gate.load import AdapterError, load_implementation
from rollproof.properties.gate.results import Finding
from rollproof.properties.gate.run import both_answers
from rollproof.properties.gate.show import show_finding
from rollproof.properties.strategies.recipes import realize_request


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("implementation", required=False)
def command(file: Path, implementation: str | None) -> None:
    """Put a replay FILE's request to an implementation again (default: the one it failed for)."""
    console = Console()
    recorded = read_replay(file)
    name = implementation or recorded.implementation
    target = load_implementation(name)
    item = recorded.invariant
    if item.area not in target.areas:
        raise AdapterError(f"{name} does not offer area {item.area}")
    expected, actual = both_answers(target, recorded.request)
    complaint = item.check(realize_request(recorded.request), expected, actual)
    known = next((known.id for known in target.deviations if known.applies(recorded.request, expected, actual)), None)
    if complaint is None:
        console.print(f"[green]{item.id} holds for {name} on this input[/]")
        return
    finding = Finding(item.id, recorded.request, expected, actual, complaint, "replay", 1, known)
    console.print(show_finding(finding, None))
    sys.exit(0 if known else 1)
