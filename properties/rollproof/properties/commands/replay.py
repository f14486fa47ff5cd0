"""``rollproof replay``: ask an implementation a recorded request again.

A replay file is data that people send to each other: it can name an installed implementation, but neither a command
to run nor a module to import. Those come from the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from rollproof.properties.adapters.protocol import deviation_of
from rollproof.properties.gate.files import read_replay
from rollproof.properties.gate.load import AdapterError, load_implementation, named_in_file
from rollproof.properties.gate.results import Finding
from rollproof.properties.gate.run import both_answers, complaint_of
from rollproof.properties.gate.show import show_finding
from rollproof.properties.strategies.rollouts.recipes import realize_request


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("implementation", required=False)
def command(file: Path, implementation: str | None) -> None:
    """Ask the request in a replay FILE again.

    IMPLEMENTATION defaults to the installed one that the file names. A module:object or a subprocess:COMMAND must be
    given here.
    """
    console = Console()
    recorded = read_replay(file)
    name = implementation or named_in_file(file, recorded.implementation, "replay")
    target = load_implementation(name)
    item = recorded.invariant
    if item.area not in target.areas:
        raise AdapterError(f"{name} does not offer area {item.area}")
    expected, actual = both_answers(target, recorded.request)
    complaint = complaint_of(item, realize_request(recorded.request), expected, actual)
    known = deviation_of(target, recorded.request, expected, actual)
    if complaint is None:
        console.print(f"[green]{item.id} holds for {name} on this input[/]")
        return
    finding = Finding(item.id, recorded.request, expected, actual, complaint, "replay", 1, known)
    console.print(show_finding(finding))
    sys.exit(0 if known else 1)
