"""What a run looks like in a terminal, and where there is none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from rollproof.properties.fuzz.limits import LimitFinding
from rollproof.properties.gate.show import LONGEST_INPUT
from rollproof.properties.strategies.codec import dump

LIVE_SECONDS: Final = 0.5
PLAIN_SECONDS: Final = 15.0
"""How often progress is shown, in a terminal and elsewhere."""


@contextmanager
def shown_live(console: Console, view: Callable[[], RenderableType]) -> Iterator[Callable[[], None]]:
    """A view kept up to date in a terminal, or printed now and then; call what is yielded after every change."""
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


def show_limit(finding: LimitFinding, file: str | None) -> Panel:
    """An input beyond a limit."""
    text = json.dumps(dump(finding.request), ensure_ascii=True)
    shown = text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]}… ({len(text):,} characters)"
    lines = [
        Text(finding.figure, style="bold"),
        Text(f"from {finding.source}"),
        Text(f"\nsmallest input seen: {type(finding.request).__name__}"),
        Text(shown),
    ]
    if file is not None:
        lines.append(Text(f"\nrollproof fuzz --measure {file}", style="cyan"))
    title = f"deviation {finding.deviation}" if finding.deviation else f"beyond a limit: {finding.limit}"
    return Panel(Group(*lines), title=title, title_align="left")
