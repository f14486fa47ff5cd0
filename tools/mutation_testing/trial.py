"""One trial of a mutant: a forked process that has the faulty module in place of the real one."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import CodeType, ModuleType
from typing import Any, Final

from tools.mutation_testing.mutants import path_of
from tools.mutation_testing.units import Killed, run_tests, streams, wrong_implementations

MEMORY: Final = 8 * 2**30
"""Bytes a trial may allocate: a fault may allocate any amount."""

SLACK_S: Final = 10.0
"""Processor time that a unit may take beside ten times what it took without a fault; SIGPROF ends it then."""


class Instead(importlib.abc.MetaPathFinder):
    """Finds one module of ours, with other source."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the faulty module's spec, and nothing for any other."""
        if fullname != self.module:
            return None
        where = path_of(self.module)
        folders = [str(where.parent)] if where.name == "__init__.py" else None
        loader = _Loader(fullname, str(where), self.source)
        return importlib.util.spec_from_file_location(
            fullname, where, loader=loader, submodule_search_locations=folders
        )


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def preload() -> None:
    """Import what is heavy and not ours, so that a fork has it already."""
    for name in ("torch", "tensordict", "numpy", "attrs", "cattrs", "hypothesis.strategies", "rich.progress", "pytest"):
        importlib.import_module(name)
    from hypothesis import HealthCheck, settings
    from hypothesis.internal.charmap import charmap

    charmap()
    sys.modules["torch"].set_num_threads(1)
    settings.register_profile(
        "mutation", database=None, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("mutation")
    ours = [name for name in sys.modules if name.partition(".")[0] == "rollproof"]
    if ours:
        raise RuntimeError(f"{ours[0]} is loaded before there is a fault in it")


def alone() -> None:
    """Make this fork quiet and bounded."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    sys.setrecursionlimit(1000)


def trial(module: str, source: str, names: Sequence[str], seconds: dict[str, float], out: Connection) -> None:
    """Send ``("at", unit)`` before each unit and at last ``("killed", what)`` or ``("survived", "")``.

    Where the process ends without a last message, its current unit crashed it or ran out of time.
    """
    alone()
    sys.meta_path.insert(0, Instead(module, source))
    at = _watched(seconds, out)
    try:
        with at("import"):
            importlib.import_module(module)
            known = {unit.name: unit.run for unit in (*streams(), *wrong_implementations())}
        verdict = _units(names, known, at)
    except Killed as killed:
        verdict = str(killed)
    except Exception as error:
        verdict = f"crash: {error!r}"
    out.send(("killed", verdict[:300]) if verdict else ("survived", ""))


def _units(names: Sequence[str], known: dict[str, Callable[[], None]], at: Callable[[str], Any]) -> str:
    """Return what noticed the fault first, or an empty string."""
    for name in names:
        if name not in known:
            continue
        with at(name):
            try:
                known[name]()
            except Exception as error:
                return f"{name}: {error if isinstance(error, Killed) else repr(error)}"
    tests = [name for name in names if name.startswith("tests/")]
    with at("tests"):
        outcomes = run_tests(tests, at)
    return next((name or outcome for name, outcome in outcomes.items() if outcome.startswith("failed")), "")


def _watched(seconds: dict[str, float], out: Connection) -> Callable[[str], Any]:
    @contextmanager
    def at(name: str) -> Iterator[None]:
        out.send(("at", name))
        signal.setitimer(signal.ITIMER_PROF, SLACK_S + 10 * seconds.get(name, 2.0))
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)

    return at
