"""The lines that each unit reaches, and how long each takes: one run of everything on the real code, under coverage."""

from __future__ import annotations

import ast
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from coverage import Coverage

from tools.mutation_testing import ROOT, ROOTS
from tools.mutation_testing.mutants import COMPLAINTS, Mutant, modules_of, path_of
from tools.mutation_testing.units import UNTRACED, Killed, run_tests, streams, wrong_implementations

CACHE: Final = ROOT / "build" / "mutation"


@frozen
class Reach:
    """Processor ``seconds`` of each unit, and the units by module and line."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, tuple[str, ...]]]

    def units(self, mutant: Mutant) -> list[str]:
        """Return the units that could notice the mutant, the quickest first.

        A line of a function can be noticed by the units that run it. What runs at import, or in a function called then,
        may be noticed by any stream, and by the units that use the module. Wrong implementations test only the
        invariants.
        """
        by_line = self.lines.get(mutant.module, {})
        rows = _statement(path_of(mutant.module).read_text(encoding="utf-8"), mutant.row)
        names = {name for row in rows or () for name in by_line.get(row, ())}
        if rows is None or "" in names:
            reached = {name for found in by_line.values() for name in found} - {""}
            names = reached | {name for name in self.seconds if not reached or name.startswith("stream ")}
        if not mutant.module.startswith(COMPLAINTS):
            names = {name for name in names if not name.startswith("wrong ")}
        by_time = sorted(names, key=lambda name: (name.startswith("tests/"), self.seconds.get(name, 0.0), name))
        return by_time or list(UNTRACED)


def _statement(source: str, row: int) -> range | None:
    """Return the lines of the innermost statement that holds ``row``, of a block its head; None outside functions."""
    best: ast.stmt | None = None
    inside = False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not node.lineno <= row <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.FunctionDef):
            inside = inside or row >= node.body[0].lineno
        if best is None or node.lineno >= best.lineno:
            best = node
    if best is None or not inside:
        return None
    body = getattr(best, "body", None)
    last = body[0].lineno if body and row < body[0].lineno else (best.end_lineno or row) + 1
    return range(best.lineno, max(last, row + 1))


def measure() -> Reach:
    """Run every unit once, in a process that has loaded nothing of ours.

    Raises ``RuntimeError`` where one fails without any fault made.
    """
    coverage = Coverage(
        data_file=None, config_file=False, branch=False, include=[str(ROOT / name / "*") for name in ROOTS]
    )
    seconds: dict[str, float] = {}
    outcomes: dict[str, str] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        coverage.switch_context(name)
        started = time.process_time()
        yield
        seconds[name] = round(time.process_time() - started, 3)

    coverage.start()
    for unit in (*streams(), *wrong_implementations()):
        try:
            with timed(unit.name):
                unit.run()
        except Killed:
            outcomes[unit.name] = "failed" if unit.name.startswith("stream ") else "slow"
    outcomes |= run_tests(None, timed)
    coverage.stop()
    failed = [name for name, outcome in outcomes.items() if outcome.startswith("failed")]
    if failed:
        raise RuntimeError(f"fails without a fault: {failed[0]}")
    seconds = {name: spent for name, spent in seconds.items() if outcomes.get(name, "passed") == "passed"}
    data = coverage.get_data()
    lines = {
        module: {
            line: tuple(name for name in names if not name or name in seconds)
            for line, names in data.contexts_by_lineno(str(path_of(module))).items()
        }
        for root in ROOTS
        for module in modules_of(root)
    }
    return Reach(seconds, lines)


def cache_path() -> Path:
    """Return where the reach of the present sources and tests is kept."""
    digest = hashlib.sha256()
    for root in (*ROOTS, "properties", "tests"):
        for path in sorted((ROOT / root).rglob("*.py")):
            digest.update(path.read_bytes())
    return CACHE / f"reach-{digest.hexdigest()[:16]}.json"


def save(reach: Reach) -> None:
    """Keep it for the next run."""
    CACHE.mkdir(parents=True, exist_ok=True)
    contexts = {name: index for index, name in enumerate(["", *reach.seconds])}
    lines: dict[str, Any] = {
        module: {line: [contexts[name] for name in names] for line, names in found.items()}
        for module, found in reach.lines.items()
    }
    cache_path().write_text(json.dumps({"seconds": reach.seconds, "lines": lines}), encoding="utf-8")


def load() -> Reach | None:
    """Return what was measured on the present sources; None where nothing was."""
    if not cache_path().exists():
        return None
    found = json.loads(cache_path().read_text(encoding="utf-8"))
    names = ["", *found["seconds"]]
    lines = {
        module: {int(line): tuple(names[index] for index in indices) for line, indices in by_line.items()}
        for module, by_line in found["lines"].items()
    }
    return Reach(found["seconds"], lines)
