"""The page of the measurements: written from what is stored, the same every time."""

from __future__ import annotations

import json
import re

import attrs
import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("matplotlib", reason="in the extra dev")

from benchmarks import Plot, Table, report
from benchmarks.__main__ import command

TABLE = Table(
    "what grows",
    ("size", "ours ms", "theirs ms"),
    ((1, 0.5, 1.0), (10, 1234.5, None), (100, 9999.0, None)),
    ("theirs stops before 10.",),
    Plot("grows", ("ours ms", "theirs ms"), "sizes", "milliseconds"),
)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    tables = [TABLE, attrs.evolve(TABLE, plot=None, estimate=True)]
    stored = {
        "measured": "2026-01-02T03:04:05Z",
        "machine": {"cpus": 2},
        "tables": [attrs.asdict(one) for one in tables],
    }
    (folder / "scaling.json").write_text(json.dumps(stored))
    return folder


def test_tables_plots_and_where_they_come_from(results, tmp_path):
    page = tmp_path / "speed.md"
    files = report.write(results, page)
    assert [path.name for path in files] == ["speed.md", "grows.svg"]
    again = report.write(results, tmp_path / "again" / "speed.md")
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in again]
    text, drawn = page.read_text(), (tmp_path / "speed" / "grows.svg").read_text()
    assert "## Is the cost of verifying a rollout linear" in text
    assert "| 10 | 1,234 | – |\n" in text
    assert "![what grows](speed/grows.svg)" in text
    assert "`benchmarks/scaling.py`, 2026-01-02; cpus 2." in text
    assert text.count("An estimate, not a measurement") == 1
    assert ">ours, slope 2.15<" in drawn
    assert "theirs ms" in drawn  # one point has no slope


def test_a_second_run_of_the_commit_stands_beside_the_first(tmp_path):
    table = Table("who is faster", ("who", "ms", "median x ours"), (("ours", 2.0, 1.0), ("theirs", 9.0, 4.5)))
    second = attrs.evolve(table, rows=(("ours", 3.0, 1.0), ("theirs", 12.0, 4.0)))
    stored = {"measured": "2026-01-02T03:04:05Z", "commit": "abc1234", "machine": {"cpus": 2}}
    for folder, one in ("results", table), ("results/again", second):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "linearize.json").write_text(json.dumps(stored | {"tables": [attrs.asdict(one)]}))
    page = tmp_path / "speed.md"
    report.write(tmp_path / "results", page)
    assert "| theirs | 9.00 | 4.50 (4.00) |\n" in page.read_text()
    assert "`benchmarks/linearize.py`, 2026-01-02, commit abc1234; cpus 2." in page.read_text()
    other = stored | {"commit": "abc1235", "tables": [attrs.asdict(second)]}
    (tmp_path / "results" / "again" / "linearize.json").write_text(json.dumps(other))
    report.write(tmp_path / "results", page)
    assert "| theirs | 9.00 | 4.50 |\n" in page.read_text()


def test_the_page_of_the_site_is_that_of_the_stored_results(tmp_path):
    written = report.write(page=tmp_path / "speed.md")
    assert written[0].read_text() == report.PAGE.read_text()
    assert written[1:]
    assert {f"speed/{path.name}" for path in written[1:]} == set(
        re.findall(r"\]\((.*\.svg)\)", report.PAGE.read_text())
    )


def test_wrong_calls_are_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, message in (["--gpu"], "needs a CUDA device"), (["nope"], "no such measurement: nope"):
        result = CliRunner().invoke(command, arguments)
        assert (result.exit_code, result.output.count("\n")) == (2, 1)
        assert message in result.output


def test_a_device_is_measured_only_where_it_is_asked_for():
    result = CliRunner().invoke(command, ["device"])
    assert result.exit_code == 2
    assert "need --gpu" in result.output
