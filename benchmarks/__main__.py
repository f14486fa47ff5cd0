"""Run the measurements, print their tables, and store them as JSON under ``benchmarks/results/``.

``python -m benchmarks [NAME …]``; without names, all of them.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table as RichTable

import benchmarks
from benchmarks import Table

RESULTS = Path(__file__).parent / "results"


def measurements(names: Iterable[str] = ()) -> dict[str, Callable[[], Iterable[Table]]]:
    """The ``main`` of every module of this package that has one, by module name."""
    wanted = set(names)
    found = {}
    for info in pkgutil.iter_modules(benchmarks.__path__):
        if info.name.startswith("_") or (wanted and info.name not in wanted):
            continue
        main = getattr(importlib.import_module(f"benchmarks.{info.name}"), "main", None)
        if main is not None:
            found[info.name] = main
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch": importlib.import_module("torch").__version__,
    }


def processor() -> str:
    """The processor's model name where the system tells it, else its architecture."""
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


def run(names: Iterable[str] = ()) -> int:
    """Run measurements by name, all without names. Returns the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    found = measurements(names)
    unknown = sorted(set(names) - found.keys())
    if unknown:
        console.print(f"no measurement is called {', '.join(unknown)}", style="red")
        return 2
    about = machine()
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    RESULTS.mkdir(exist_ok=True)
    for name, main in found.items():
        tables = []
        for table in main():
            show(console, table)
            tables.append(attrs.asdict(table))
        stored = {"measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": about, "tables": tables}
        (RESULTS / f"{name}.json").write_text(json.dumps(stored, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
