"""``rollproof rules``: show the catalogue, and the evidence for each of its rules."""

from __future__ import annotations

from pathlib import Path

import click

from rollproof.properties.errors import InputError
from rollproof.properties.evidence.counts import counted
from rollproof.properties.evidence.evidence_page import read_vectors, render_evidence, render_support
from rollproof.properties.evidence.rules_page import render_rule, render_rules


@click.command("rules")
@click.argument("rule", required=False, metavar="[ID]")
@click.option("--evidence", is_flag=True, help="Show the streams, examples, mutants, proofs and vectors of every rule.")
@click.option(
    "--vectors",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("vectors"),
    show_default=True,
    help="Folder of the test vectors, for --evidence.",
)
def command(rule: str | None, evidence: bool, vectors: Path) -> None:
    """Show the catalogue of invariants and rejection codes; with ID, one of them and the evidence for it."""
    if evidence:
        click.echo(render_evidence(counted(), read_vectors(vectors)), nl=False)
        return
    if rule is None:
        click.echo(render_rules(), nl=False)
        return
    text = render_rule(rule)
    if text is None:
        raise InputError(f"{rule}: no such invariant or rejection code; see rollproof rules")
    click.echo(text + render_support(rule), nl=False)
