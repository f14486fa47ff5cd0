"""``rollproof vectors``: files of requests and the contract's answers, for implementations in any language."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from rollproof.properties.gate.load import load_implementation
from rollproof.properties.vectors.vector_files import write_files
from rollproof.properties.vectors.verify import Result, read_folder, verify
from rollproof.spec.judge.requests import Area

FOLDER = click.Path(file_okay=False, path_type=Path)
AREAS = tuple(area.value for area in Area)


@click.group("vectors")
def command() -> None:
    """Write test vectors, or check an implementation with them. docs/vectors.md describes the files."""


@command.command("export")
@click.argument("folder", type=FOLDER)
@click.option(
    "--area",
    "areas",
    multiple=True,
    type=click.Choice([area.value for area in Area]),
    help="Export only this area. May be repeated.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed gives the same files."
)
def export_command(folder: Path, areas: tuple[str, ...], seed: int) -> None:
    """Write a file of vectors and its schema to FOLDER for each area."""
    from rollproof.properties.vectors.export import export

    console = Console()
    for area in Area:
        if not areas or area.value in areas:
            with console.status(f"{area}: choosing vectors"):
                file = export(area, seed)
            write_files([file], folder)
            console.print(f"{folder / area.value}.json: {len(file.vectors)} vectors, {len(file.notes)} flags")


@command.command("verify")
@click.argument("folder", type=FOLDER)
@click.argument("implementation", default="impl", metavar="[IMPL]")
def verify_command(folder: Path, implementation: str) -> None:
    """Check IMPL (default: impl) with the vectors in FOLDER. Exit code 1 if an answer is wrong."""
    target = load_implementation(implementation)
    results = [verify(file, target) for file in read_folder(folder)]
    for result in results:
        click.echo(line(result))
        for failure in result.failures:
            vector = failure.vector
            click.echo(f"  tcId {vector.number} [{', '.join(vector.flags)}] {vector.comment}")
            click.echo(f"    {failure.invariant}: {failure.complaint}")
    passed, failed = sum(result.passed for result in results), sum(len(result.failures) for result in results)
    click.echo(f"{target.name}: {passed} passed, {failed} failed")
    if not passed and not failed:
        click.echo(f"{target.name} offers none of the operations in these files", err=True)
    sys.exit(0 if passed and not failed else 1)


def line(result: Result) -> str:
    """Return one file's counts."""
    counts = [f"{result.passed} passed", f"{len(result.failures)} failed"]
    counts += [f"{count} known deviations ({name})" for name, count in result.deviations.items()]
    if result.not_offered:
        counts.append(f"{result.not_offered} not offered")
    if result.left_out:
        counts.append(f"{result.left_out} left out")
    return f"{result.area}.json: {', '.join(counts)}"
