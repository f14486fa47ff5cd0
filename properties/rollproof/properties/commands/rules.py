"""``rollproof rules``: read the catalogue."""

from __future__ import annotations

import click

from rollproof.properties.errors import InputError
from rollproof.properties.rules import render_rule, render_rules


@click.command("rules")
@click.argument("rule", required=False, metavar="[ID]")
def command(rule: str | None) -> None:
    """The catalogue of invariants and rejection codes; with ID, one of them."""
    if rule is None:
        click.echo(render_rules(), nl=False)
        return
    text = render_rule(rule)
    if text is None:
        raise InputError(f"{rule}: no such invariant or rejection code; see rollproof rules")
    click.echo(text, nl=False)
