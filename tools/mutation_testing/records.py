"""Records about single mutants: why survivors are not faults, and a few that must stay killed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

from tools.mutation_testing.mutants import Mutant, mutants_of, path_of
from tools.mutation_testing.session import try_all

FILE: Final = Path(__file__).with_name("survivors.toml")


@frozen
class Records:
    """Reasons why the mutants of these ids change nothing that the contract covers; and what ``kills`` others."""

    reasons: dict[str, str]
    kills: dict[str, str]


def records() -> Records:
    """Return what the file says. Raises ``ValueError`` where it says something twice."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    survivors, killed = found.get("survivor", []), found.get("killed", [])
    reasons = {entry["id"]: entry["reason"] for entry in survivors}
    if len(reasons) != len(survivors):
        raise ValueError(f"{FILE.name}: a survivor is listed twice")
    return Records(reasons, {entry["id"]: entry["by"] for entry in killed})


def find(identity: str) -> Mutant | None:
    """Return the mutant of this id in the present source; None where there is none any more."""
    module, _, rest = identity.partition(" | ")
    operator = rest.rsplit(" | ", 2)[-2]
    if not path_of(module).exists():
        return None
    found = (mutant for mutant in mutants_of(module, frozenset({operator})) if mutant.id == identity)
    return next((mutant for mutant in found if mutant.source() is not None), None)


def complaints() -> Iterator[str]:
    """Yield what no longer holds: records of mutants that are gone, kills that kill nothing or the real code too."""
    known = records()
    for identity in known.reasons:
        if find(identity) is None:
            yield f"no such mutant: {identity}"
    mutants = [mutant for mutant in map(find, known.kills) if mutant is not None]
    for identity in known.kills.keys() - {mutant.id for mutant in mutants}:
        yield f"no such mutant: {identity}"
    for result in try_all(mutants, lambda mutant: [known.kills[mutant.id]], {}, jobs=2):
        unit = known.kills[result.id]
        if not result.killed or not result.by.startswith(unit):
            yield f"not killed by {unit}: {result.id} {result.by}"
    units = list(dict.fromkeys(known.kills.values()))
    for result in try_all(mutants[:1], lambda _: units, {}, jobs=1, faulty=False):
        if result.killed:
            yield f"the real code is killed: {result.by}"
