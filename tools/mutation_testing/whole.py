"""The survivors once more, each on the whole suite of its root: a reason is a claim, and only a run tests it.

A trial (``trial``) runs what was seen to reach the changed line, in a fork, and stops early where it can. Here the
faulty module is written into a copy of its source root, and a fresh process runs every test over that copy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tools.mutation_testing import ROOT
from tools.mutation_testing.mutants import Mutant
from tools.mutation_testing.units import APART, PYTEST

SUITES: Final = {"spec": ("tests/spec", "tests/properties/strategies"), "impl": ("tests/impl",)}
"""The tests of each root; those about Ray or a GPU are left out."""

LIMIT_S: Final = 3600.0
"""A suite that takes longer has an endless loop in it."""


def noticed(mutant: Mutant, *, faulty: bool = True) -> str:
    """Return the first test of the whole suite that fails with the mutant in place, or an empty string.

    Not ``faulty``: over an unchanged copy, which must pass.
    """
    root = mutant.module.split(".")[1]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / root
        shutil.copytree(ROOT / root, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if faulty:
            source = mutant.source()
            assert source is not None
            (copy / mutant.path.relative_to(ROOT / root)).write_text(source, encoding="utf-8")
        return _first_failure(copy, SUITES[root])


def _first_failure(copy: Path, suite: Iterable[str]) -> str:
    """Return the first test that fails where ``copy`` comes before the real source root."""
    apart = [f"--ignore-glob=*/{name}" for name in sorted(APART)]
    command = [sys.executable, "-m", "pytest", *PYTEST, "-x", "-rfE", "--tb=no", "-m", "not deep", *apart, *suite]
    path = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "out of time"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0] if lines else f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}"


def verdicts(mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, str]]:
    """Yield each mutant with the first test that notices it, or an empty string.

    Raises ``RuntimeError`` where a suite fails over a copy without any fault.
    """
    passed: set[str] = set()
    for mutant in mutants:
        root = mutant.module.split(".")[1]
        if root not in passed:
            failure = noticed(mutant, faulty=False)
            if failure:
                raise RuntimeError(f"{root}: the real code fails: {failure}")
            passed.add(root)
        yield mutant, noticed(mutant)
