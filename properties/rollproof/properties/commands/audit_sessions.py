"""``rollproof audit-sessions``: judge recorded sessions of any framework."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rollproof.properties.audit.recorded_sessions import Sessions
from rollproof.properties.gate.text import printable
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.portable import Policy

SHOWN = 3
"""Complaints that are printed for each invariant."""


@click.command("audit-sessions")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--policy", "policies", multiple=True, type=click.Choice([policy.value for policy in Policy]),
    help="Declare a choice of the trainer. May be repeated.",
)  # fmt: skip
def command(files: tuple[Path, ...], policies: tuple[str, ...]) -> None:
    """Judge recorded sessions: check what the rows in each FILE train by the calls that they were made of.

    A FILE has one session a line, as JSON, and may be gzipped: docs/check-your-trainer.md shows one. Exit code 0: no
    invariant of section 14 is broken; 1: some are; 2: some lines cannot be read.
    """
    sessions = Sessions(frozenset(policies))
    for file in files:
        sessions.read(file)
    for name, count in sorted(sessions.counts.items()):
        kind = "advisory " if BY_ID[name].advisory else ""
        click.echo(f"{kind}{name}: {BY_ID[name].sentence} Not so in {count:,} sessions:")
        for complaint in sessions.complaints[name][:SHOWN]:
            click.echo(f"  {printable(complaint)}")
    for problem in sessions.unreadable[:SHOWN]:
        click.echo(f"cannot be read: {printable(problem)}")
    click.echo(
        f"{sessions.lines:,} sessions, {sessions.rows:,} rows: {sessions.wrong:,} wrong, "
        f"{len(sessions.unreadable):,} cannot be read"
    )
    sys.exit(2 if sessions.unreadable or not sessions.lines else 1 if sessions.wrong else 0)
