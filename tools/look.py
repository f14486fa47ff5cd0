"""The first picture of the README: a real run of the gate against a wrong implementation, as SVG.

Run it from the root of a clone to draw docs/look.svg anew:  .venv/bin/python -m tools.look
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

from rollproof.properties.gate.files import write_replays
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.gate.show import show_report
from rollproof.spec.judge.requests import Area

PICTURE: Final = Path("docs/look.svg")
IMPLEMENTATION: Final = "mutant:unstamped-roots-first"
COMMAND: Final = f"rollproof check {IMPLEMENTATION} --profile quick"
REPLAYS: Final = Path(".rollproof/replays")
WIDTH: Final = 100
FETCHED: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that rich would have a browser fetch: the picture needs nothing from outside."""


def drawn() -> str:
    """Run the check, and return what it prints as an SVG document."""
    implementation = load_implementation(IMPLEMENTATION)
    report = Check(implementation, (Area.TERMINAL,), PROFILES["quick"], 0).run()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(f"[bold]$ {COMMAND}[/]", highlight=False)
    show_report(console, report, write_replays(report, REPLAYS))
    svg = console.export_svg(title="rollproof", theme=MONOKAI, unique_id="look")
    return "\n".join(line.rstrip() for line in FETCHED.sub("", svg).splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
