"""Finding an implementation by the name a user gives."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from rollproof.properties.adapters.reference import Reference
from rollproof.properties.errors import InputError
from rollproof.spec.requests import Area

ENTRY_POINTS: Final = "rollproof.implementations"
MUTANT_PREFIX: Final = "mutant:"
PROGRAM_PREFIX: Final = "subprocess:"


class AdapterError(InputError):
    """An implementation cannot be loaded or used; the message says what to do."""


def known_names() -> list[str]:
    """The names that need no import path."""
    return sorted({"spec", *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def load_implementation(name: str) -> Any:
    """The implementation called ``name``.

    That is a registered name, ``spec``, ``mutant:<name>``, ``subprocess:<command>`` or ``module:object``. A class is
    called without arguments. Raises ``InputError``.
    """
    try:
        found = _resolve(name)
        implementation = found() if isinstance(found, type) else found
    except InputError:
        raise
    except Exception as error:
        raise AdapterError(f"{name}: could not be loaded: {type(error).__name__}: {error}") from error
    for attribute in ("name", "areas", "deviations"):
        if not hasattr(implementation, attribute):
            raise AdapterError(f"{name}: not an implementation: it has no attribute {attribute!r}")
    unknown = [area for area in implementation.areas if area not in set(Area)]
    if unknown:
        raise AdapterError(f"{name}: unknown area {unknown[0]!r}, expected some of {', '.join(Area)}")
    return implementation


def _resolve(name: str) -> Any:
    if name == Reference.name:
        return Reference
    if name.startswith(PROGRAM_PREFIX):
        from rollproof.properties.adapters.program import program

        return program(name.removeprefix(PROGRAM_PREFIX))
    if name.startswith(MUTANT_PREFIX):
        from rollproof.properties.mutants import load_mutant

        return load_mutant(name.removeprefix(MUTANT_PREFIX))
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return entry.load()
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise AdapterError(
            f"{name}: no such implementation; known are {', '.join(known_names())}, "
            "or name one as module:object or subprocess:COMMAND"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def pick_areas(implementation: Any, wanted: tuple[str, ...]) -> tuple[Area, ...]:
    """The areas to check, in the contract's order. Raises ``AdapterError`` where one is not offered."""
    offered = tuple(area for area in Area if area in implementation.areas)
    missing = [area for area in wanted if area not in offered]
    if missing:
        raise AdapterError(f"{implementation.name} does not offer area {missing[0]}; it offers {', '.join(offered)}")
    return tuple(area for area in offered if not wanted or area in wanted)
