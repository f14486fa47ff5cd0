"""The command ``rollproof``.

Exit codes: 0 everything held, 1 something was falsified, 2 usage error, or input that cannot be used.
"""

from __future__ import annotations

import pkgutil
import sys
from importlib import import_module
from typing import Any

import click

from rollproof.properties import commands
from rollproof.properties.errors import InputError, extra_hint


class Main(click.Group):
    """The group of commands: finds them in ``commands``, and reports an input error or a missing extra in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the package's modules."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of one module, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}").command
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an ``InputError`` or a missing extra ends with exit code 2 and no traceback."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            click.echo(f"rollproof: {error}", err=True)
            sys.exit(2)
        except ModuleNotFoundError as error:
            hint = extra_hint(error)
            if hint is None:
                raise
            click.echo(f"rollproof: {ctx.invoked_subcommand} {hint}", err=True)
            sys.exit(2)


@click.group(cls=Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollproof")
def main() -> None:
    """Check implementations of the rollout-reassembly contract against its executable spec."""
