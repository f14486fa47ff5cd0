"""The command ``rollproof``.

Exit codes: 0 what was checked held, 1 something was falsified, 2 a wrong call, or input that cannot be used.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Any

import click

from rollproof.properties import commands
from rollproof.properties.errors import InputError


class Main(click.Group):
    """Finds its commands in ``commands``, and turns what a user can get wrong into one clear line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The modules of the package."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of one module, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}").command
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an ``InputError`` ends with exit code 2 and no traceback."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.echo(f"rollproof: {error}", err=True)
            sys.exit(2)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollproof")
def main() -> None:
    """Check implementations of the rollout-reassembly contract against its executable spec."""
