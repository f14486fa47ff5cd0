"""Changes to the theme and to the build: unfolded sources in the contract, plots drawn from stored measurements."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

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
    """Unfold the sources of a contract chapter."""
    if not page.file.src_uri.startswith("contract/"):
        return html
    return html.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
