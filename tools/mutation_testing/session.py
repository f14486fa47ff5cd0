"""Trying many mutants, and recording their outcomes, a JSON line each, so that an interrupted run can continue."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import cattrs
from attrs import asdict, define, field, frozen

from tools.mutation_testing.mutants import Mutant
from tools.mutation_testing.reach import CACHE, Reach, cache_path, load, measure, save
from tools.mutation_testing.trial import trial

FORK: Final = multiprocessing.get_context("fork")

TRIAL_S: Final = 3600.0
"""No trial takes longer; every unit of it has a limit of its own."""


@frozen
class Result:
    """A mutant's outcome: ``killed`` by the first unit that noticed it, or alive after ``units`` units."""

    id: str
    diff: str
    killed: bool
    by: str
    units: int
    seconds: float


def session_path(root: str) -> Path:
    """Return the path of the results of a source root."""
    return CACHE / f"{root}.jsonl"


def results(root: str) -> dict[str, Result]:
    """Return the latest result of each mutant."""
    path = session_path(root)
    if not path.exists():
        return {}
    found = [cattrs.structure(json.loads(line), Result) for line in path.read_text(encoding="utf-8").splitlines()]
    return {result.id: result for result in found}


def remember(root: str, result: Result) -> None:
    """Add a result to the file."""
    session_path(root).parent.mkdir(parents=True, exist_ok=True)
    with session_path(root).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def reach() -> Reach:
    """Return what reaches which line now, measured in a fork if not yet known. Raises ``RuntimeError``."""
    if not cache_path().exists():
        process = FORK.Process(target=_measure)
        process.start()
        process.join()
    found = load()
    if found is None:
        raise RuntimeError("something fails without a fault; run the tests")
    return found


def _measure() -> None:
    save(measure())


@define
class _Running:
    mutant: Mutant
    process: Any
    units: int
    at: str = "start"
    started: float = field(factory=time.monotonic)


def try_all(
    mutants: Iterable[Mutant],
    who: Callable[[Mutant], list[str]],
    seconds: dict[str, float],
    jobs: int,
    *,
    faulty: bool = True,
) -> Iterator[Result]:
    """Try mutants on the units that ``who`` names, ``jobs`` at a time; results are yielded as they are known.

    Not ``faulty``: the real source in the place of the mutant, which must survive.
    """
    waiting = list(reversed(list(mutants)))
    running: dict[Connection, _Running] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            names = who(mutant)
            ours, theirs = FORK.Pipe(duplex=False)
            source = mutant.source() if faulty else mutant.path.read_text(encoding="utf-8")
            process = FORK.Process(target=trial, args=(mutant.module, source, names, seconds, theirs))
            process.start()
            theirs.close()
            running[ours] = _Running(mutant, process, len(names))
        for ready in wait(list(running), timeout=1.0):
            assert isinstance(ready, Connection)
            verdict = _hear(ready, running[ready])
            if verdict is not None:
                yield _end(ready, running.pop(ready), *verdict)
        for late in [conn for conn, one in running.items() if time.monotonic() - one.started > TRIAL_S]:
            yield _end(late, running.pop(late), "killed", "out of time")


def _hear(ready: Connection, one: _Running) -> tuple[str, str] | None:
    try:
        word, what = ready.recv()
    except EOFError:
        return "killed", f"{one.at}: crashed or out of time"
    if word == "at":
        one.at = what
        return None
    return word, what


def _end(ready: Connection, one: _Running, word: str, what: str) -> Result:
    ready.close()
    if one.process.is_alive():
        one.process.kill()
    one.process.join()
    spent = round(time.monotonic() - one.started, 2)
    return Result(one.mutant.id, one.mutant.diff(), word == "killed", what, one.units, spent)
