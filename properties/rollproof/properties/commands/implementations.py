"""``rollproof implementations``: what ``check`` knows by name."""

from __future__ import annotations

import click

from rollproof.properties.gate.load import known_names


@click.command("implementations")
def command() -> None:
    """The names that ``check`` knows."""
    for name in known_names():
        click.echo(name)
