"""Run the measurements, print their tables, store them as JSON under ``benchmarks/results/``, and write their page.

``python -m benchmarks [--gpu] [--again] [NAME …]``; without names, all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console
from rich.table import Table as RichTable

import benchmarks
from benchmarks import Table, report
from benchmarks.report import AGAIN, RESULTS


def measurements(names: Iterable[str] = (), gpu: bool = False) -> dict[str, Callable[[], Iterable[Table]]]:
    """Return the ``main`` of every module here that has one, by module name; with ``gpu``, those for a device."""
    wanted = set(names)
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.name.startswith("_") or (wanted and info.name not in wanted):
            continue
        module = importlib.import_module(f"benchmarks.{info.name}")
        main = getattr(module, "main", None)
        if main is not None and (gpu or not getattr(module, "NEEDS_CUDA", False)):
            found[info.name] = main
    return found


def machine() -> dict[str, Any]:
    """Return what the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": importlib.import_module("torch").__version__,
    }


def commit() -> str | None:
    """Return the commit that is measured, with a plus where its code was changed; None outside a repository."""
    head = git("rev-parse", "--short=7", "HEAD")
    return head and head + ("+" if git("status", "--porcelain", "--", "*.py", "*.toml") else "")


def git(*arguments: str) -> str | None:
    """Return what git says of this repository; None where it says nothing."""
    done = subprocess.run(["git", *arguments], cwd=report.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def processor() -> str:
    """Return the processor's model name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def show(console: Console, table: Table) -> None:
    """Print one table with its notes."""
    shown = RichTable(title=table.title, title_justify="left", title_style="bold")
    for index, name in enumerate(table.columns):
        shown.add_column(name, justify="left" if index == 0 else "right")
    for row in table.rows:
        shown.add_row(*(f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row))
    console.print(shown)
    for note in table.notes:
        console.print(f"  {note}", highlight=False)
    console.print()


def run(names: Iterable[str] = (), gpu: bool = False, folder: Path = RESULTS) -> None:
    """Run measurements by name, all without names, and store what each found. Raises ``click.ClickException``."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    found = measurements(names, gpu)
    unknown = sorted(set(names) - found.keys())
    if unknown:
        raise Wrong(f"no such measurement: {', '.join(unknown)}{'' if gpu else ' (some need --gpu)'}")
    about, measured_at = machine(), commit()
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    folder.mkdir(parents=True, exist_ok=True)
    for name, main in found.items():
        tables = []
        for table in main():
            show(console, table)
            tables.append(attrs.asdict(table))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        stored = {"measured": now, "commit": measured_at, "machine": about, "tables": tables}
        (folder / f"{name}.json").write_text(json.dumps(stored, indent=2) + "\n")


class Wrong(click.ClickException):
    """A usage error: one line, exit status 2."""

    exit_code = 2


@click.command
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--gpu", is_flag=True, help="Also measure the CUDA device.")
@click.option("--again", is_flag=True, help="Keep this run beside the first, to show how far their ratios agree.")
def command(names: tuple[str, ...], gpu: bool, again: bool) -> None:
    """Run the measurements by NAME, all without names, and write the page of all results.

    The name "report" runs nothing and writes the page from what is stored.
    """
    if gpu and not importlib.import_module("torch").cuda.is_available():
        raise Wrong("--gpu needs a CUDA device, and torch finds none")
    if names != ("report",):
        run(names, gpu, AGAIN if again else RESULTS)
    for path in report.write():
        click.echo(f"wrote {os.path.relpath(path)}")


if __name__ == "__main__":
    command(prog_name="python -m benchmarks")
