"""How a run is shown, with and without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from rollproof.properties.fuzz.limits import LimitFinding
from rollproof.properties.gate.snippet import change_lines, input_title
from rollproof.properties.gate.text import printable

LIVE_SECONDS: Final = 0.5
PLAIN_SECONDS: Final = 15.0
"""How often progress is shown, in a terminal and elsewhere."""


@contextmanager
def shown_live(console: Console, view: Callable[[], RenderableType]) -> Iterator[Callable[[], None]]:
    """Update a view in a terminal, or print it now and then; call what is yielded after every change."""
    interval = LIVE_SECONDS if console.is_terminal else PLAIN_SECONDS
    last = time.monotonic()

    def due() -> bool:
        nonlocal last
        now = time.monotonic()
        if now - last < interval:
            return False
        last = now
        return True

    if not console.is_terminal:
        yield lambda: console.print(view(), soft_wrap=True) if due() else None
        return
    with Live(view(), console=console, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(view(), refresh=True) if due() else None


def print_limit(console: Console, finding: LimitFinding, command: str) -> None:
    """Print an input beyond a limit, and below it the command that measures it again, in one line to be copied."""
    console.print(show_limit(finding))
    console.print(Text(f"{command}\n", style="cyan"), soft_wrap=True)


def show_limit(finding: LimitFinding) -> Panel:
    """Return an input beyond a limit as a panel."""
    lines = [
        Text(printable(finding.figure), style="bold"),
        Text(f"from {finding.source}"),
        Text(f"\n{input_title(finding.request)}"),
        *(Text(f"  {line}") for line in change_lines(finding.request)),
    ]
    title = f"deviation {finding.deviation}" if finding.deviation else f"beyond a limit: {finding.limit}"
    return Panel(Group(*lines), title=title, title_align="left")
