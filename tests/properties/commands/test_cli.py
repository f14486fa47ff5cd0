"""Every module of the package of commands is a command, and each says how it is used."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rollproof.properties.cli import main

NAMES = main.list_commands(click.Context(main))


def test_the_help_lists_every_command():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert [name for name in NAMES if f"\n  {name} " not in result.output] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_how_it_is_used(name):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: main {name} " in result.output
