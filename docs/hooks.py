"""What the site does differently from its theme: the spec's code beside its rules is open, not folded."""

from __future__ import annotations

from typing import Any


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Unfold the sources of a contract chapter."""
    if not page.file.src_uri.startswith("contract/"):
        return html
    return html.replace('<details class="mkdocstrings-source">', '<details class="mkdocstrings-source" open>')
