"""``rollproof oracle``: answer requests that arrive as lines of JSON."""

from __future__ import annotations

import json
import sys

import click

from rollproof.properties.gate.load import load_implementation
from rollproof.properties.wire.schema import protocol_schema
from rollproof.properties.wire.serve import serve


@click.command("oracle")
@click.argument("implementation", default="spec", metavar="[IMPL]")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of requests and answers, and exit.")
def command(implementation: str, schema: bool) -> None:
    """Answer requests from standard input, one JSON object per line, with the contract's answers or those of IMPL.

    The protocol is rollproof-oracle-1; docs/protocol.md describes it.
    """
    if schema:
        click.echo(json.dumps(protocol_schema(), indent=1))
        return
    serve(load_implementation(implementation), sys.stdin.buffer, sys.stdout.buffer)
