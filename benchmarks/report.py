"""The stored results as a page of the site, with their plots: ``python -m benchmarks report``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import cattrs
import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks import Plot, Table, slope

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
AGAIN: Final = RESULTS / "again"
"""A second run: where it measured the same commit, its ratios stand beside those of the first."""
PAGE: Final = ROOT / "docs" / "evidence" / "speed.md"
ORDER: Final = (
    *("linearize", "scaling", "group", "memory", "floor", "dataplane", "scale", "routes", "retained", "cuts"),
    *("device", "estimate"),
)
"""How the page reads. A measurement that is not named here comes last."""
INTRODUCTION: Final = """\
# Speed

Written by `make bench`, which races the contestants in one run and stores what it found under `benchmarks/results/`;
`python -m benchmarks report` writes this page from there. Times are of the machine that a section names, ratios carry
over to others. Each section is one file of `benchmarks/`, named at its end.
"""
ESTIMATE: Final = (
    '!!! warning "An estimate, not a measurement"\n    Nothing of this was run: it follows from other figures.\n'
)
STYLE: Final[Any] = {
    "svg.hashsalt": "rollproof",  # the same figures give the same file
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
MARKERS: Final = "osD^v"


def write(results: Path = RESULTS, page: Path = PAGE) -> list[Path]:
    """Write the page, and beside it, in a folder of its name, its plots. Returns the files."""
    stored, seconds = read(results), read(results / AGAIN.name)
    names = sorted(stored, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    plots = page.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    files, parts = [page], [INTRODUCTION]
    for name in names:
        tables, again = tables_of(stored[name]), []
        commit = stored[name].get("commit")
        if commit and name in seconds and seconds[name].get("commit") == commit:
            again = tables_of(seconds[name])
        parts += section(name, stored[name], tables, again, plots.name)
        for table in tables:
            if table.plot is not None:
                files.append(plots / f"{table.plot.name}.svg")
                draw(table, table.plot, files[-1])
    page.write_text("\n".join(parts))
    return files


def read(folder: Path) -> dict[str, Any]:
    """Return what a run stored, by the names of its measurements."""
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def tables_of(stored: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a measurement."""
    return [cattrs.structure(table, Table) for table in stored["tables"]]


def section(
    name: str, stored: Mapping[str, Any], tables: Sequence[Table], again: Sequence[Table], plots: str
) -> Iterator[str]:
    """Yield one measurement: its question, its tables and its plots; ``again`` has the tables of a second run."""
    question, _, rest = (importlib.import_module(f"benchmarks.{name}").__doc__ or name).partition("\n")
    yield f"## {question.rstrip('.')}\n"
    yield f"{rest.strip()}\n"
    for table, second in zip_longest(tables, again):
        yield f"**{table.title[0].upper()}{table.title[1:]}**\n"
        if table.estimate:
            yield ESTIMATE
        yield "\n".join(markdown(table, second)) + "\n"
        if table.plot is not None:
            yield f"![{table.title}]({plots}/{table.plot.name}.svg)\n"
        yield "".join(f"- {note}\n" for note in table.notes)
    about = ", ".join(f"{what} {value}" for what, value in stored["machine"].items())
    commit = f", commit {stored['commit']}" if stored.get("commit") else ""
    yield f"`benchmarks/{name}.py`, {stored['measured'][:10]}{commit}; {about}.\n"
    if again:
        yield "In brackets: the same ratio in a second run of that commit.\n"


def markdown(table: Table, again: Table | None = None) -> Iterator[str]:
    """Yield the table's lines, with the ratios of a second run in brackets."""
    yield row_of(table.columns)
    yield row_of(["---", *["---:"] * (len(table.columns) - 1)])
    comparable = again is not None and again.columns == table.columns and len(again.rows) == len(table.rows)
    seconds = again.rows if again is not None and comparable else table.rows
    ratios = [comparable and is_ratio(column) for column in table.columns]
    for row, second in zip(table.rows, seconds, strict=True):
        cells = zip(map(shown, row), map(shown, second), ratios, strict=True)
        yield row_of(f"{cell} ({other})" if ratio else cell for cell, other, ratio in cells)


def is_ratio(column: str) -> bool:
    """Return whether a column compares two contestants of one run."""
    return "x" in column.split() or column.endswith("speed-up")


def row_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown(value: Any) -> str:
    """Return a value for readers: three significant digits, thousands separated."""
    if value is None:
        return "–"
    if isinstance(value, float):
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{digits}f}" if abs(value) >= 0.001 else f"{value:.1e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def draw(table: Table, plot: Plot, path: Path) -> None:
    """Draw the plot's lines as an SVG file, each with its slope; a dotted one is linear."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot(xscale="log", yscale="log", xlabel=plot.x, ylabel=plot.y)
        for name, marker in zip(plot.lines, MARKERS, strict=False):
            points = table.line(name)
            steep = slope(points)
            label = name if steep is None else f"{name.removesuffix(' ms')}, slope {steep:.2f}"
            axes.plot(*zip(*points, strict=True), marker=marker, label=label)
        axes.plot(*linear(table.line(plot.lines[0])), color="grey", linestyle=":", label="linear, slope 1")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def linear(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return a line of slope 1 through the largest point, down to where the smallest begins."""
    (largest, high), smallest = points[-1], max(points[0][0], points[-1][0] / 1000)
    return [smallest, largest], [high * smallest / largest, high]
