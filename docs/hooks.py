"""Changes to the theme and to the build: ids in one piece, unfolded sources, plots drawn from stored measurements."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ID_CELL = re.compile(r"<td>(?=[A-Z]+(-[A-Z]+)*-[0-9]+</td>)")
PLOT = re.compile(r"\]\((speed/[\w-]+\.svg)\)")


def on_pre_build(config: Any, **_: Any) -> None:
    """Draw the plots that the page on speed shows, from ``benchmarks/results``, unless all of them exist."""
    page = Path(config["docs_dir"]) / "evidence" / "speed.md"
    plots = PLOT.findall(page.read_text(encoding="utf-8"))
    if all((page.parent / plot).exists() for plot in plots):
        return
    sys.path.insert(0, str(Path(config["config_file_path"]).parent))
    from benchmarks.report import write

    write()


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Keep an id on one line in a table, and unfold the sources of a contract chapter."""
    html = ID_CELL.sub('<td class="id">', html)
    if not page.file.src_uri.startswith("contract/"):
        return html
    return html.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
