"""The picture at the top of the README: what a real run prints, and nothing that a browser must fetch."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tools.look import COMMAND, PICTURE, drawn

ROOT = Path(__file__).parents[1]


def words(svg: str) -> str:
    """Return the text of a picture."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", svg, flags=re.S))).split())


def verdicts(svg: str) -> list[str]:
    return re.findall(r"TERMINAL-\d|falsified|held|where|the contract|the implementation", words(svg))


def test_the_readme_opens_with_the_picture_of_a_command_that_fetches_nothing() -> None:
    svg = (ROOT / PICTURE).read_text(encoding="utf-8")
    assert f"]({PICTURE})" in (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    assert f"$ {COMMAND}" in words(svg)
    assert "falsified" in verdicts(svg)
    assert not re.search(r"@font-face|url\(http|<image|href", svg)


@pytest.mark.deep
def test_the_picture_is_that_of_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svg = (ROOT / PICTURE).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert verdicts(svg) == verdicts(drawn())
