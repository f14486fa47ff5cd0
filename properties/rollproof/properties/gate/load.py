"""Finding an implementation by the name a user gives."""

from __future__ import annotations

import importlib
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from attrs import fields

from rollproof.properties.adapters.asking import policies_of
from rollproof.properties.adapters.functions import METHODS, Functions
from rollproof.properties.adapters.protocol import offers
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.errors import InputError, extra_hint, message_of
from rollproof.properties.peers.manifest import PREFIX as PEER_PREFIX
from rollproof.properties.peers.manifest import peer_folder
from rollproof.spec.constants import AS_STAGED, UNREPAIRED_SENTINEL
from rollproof.spec.judge.requests import CAPABILITIES, KINDS, Area, Kind
from rollproof.spec.portable import Policy
from rollproof.spec.records import CAPABILITY

ENTRY_POINTS: Final = "rollproof.implementations"
MUTANT_PREFIX: Final = "mutant:"
RIGHT_PREFIX: Final = "right:"
PROGRAM_PREFIX: Final = "subprocess:"


class AdapterError(InputError):
    """An implementation cannot be loaded or used; the message says what to do."""


def known_names() -> list[str]:
    """Return the names that need no import path."""
    return sorted({"spec", *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def is_installed(name: str) -> bool:
    """Return whether the name can only mean what is installed here: no command, no module to import.

    Files that people send to each other may name no other implementation.
    """
    return name in known_names() or name.startswith(MUTANT_PREFIX)


def named_in_file(path: Path, name: object, command: str) -> str:
    """Return the implementation that a file names. Raises ``AdapterError`` unless that is an installed one."""
    if isinstance(name, str) and is_installed(name):
        return name
    raise AdapterError(
        f"{path}: names {'no implementation' if name is None else repr(name)[:200]}; a file can only name an installed "
        f"one ({', '.join(known_names())}); say which one to ask: rollproof {command} {path} IMPLEMENTATION"
    )


def load_implementation(name: str) -> Any:
    """Return the implementation called ``name``.

    That is a registered name, ``spec``, ``mutant:<name>``, ``right:<name>``, ``peer:<name>``,
    ``subprocess:<command>`` or ``module:object``. A class is called without arguments. Raises ``InputError``.
    """
    try:
        found = _resolve(name)
        implementation = Functions(name, found) if inspect.isfunction(found) and found.__name__ in METHODS else found
        if isinstance(found, type):
            implementation = found()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        hint = extra_hint(error)
        if hint is not None:
            raise AdapterError(f"{name}: {hint}") from error
        what = f"{type(error).__name__}: {message_of(error)}"
        raise AdapterError(f"{name}: could not be loaded: {what}") from error
    for attribute in ("name", "areas", "deviations"):
        if not hasattr(implementation, attribute):
            what = f"it has no attribute {attribute!r}"
            if inspect.isfunction(implementation):
                what = f"a function must be called {' or '.join(METHODS)}"
            raise AdapterError(f"{name}: not an implementation: {what}")
    for kind in KINDS:
        _check_parameters(name, implementation, kind)
    unknown = [area for area in implementation.areas if area not in set(Area)]
    if unknown:
        raise AdapterError(f"{name}: unknown area {unknown[0]!r}, expected some of {', '.join(Area)}")
    undefined = [policy for policy in policies_of(implementation) if policy not in set(Policy)]
    if undefined:
        raise AdapterError(f"{name}: unknown policy {undefined[0]!r}, expected some of {', '.join(Policy)}")
    choice = getattr(implementation, "expect_boundary", None)
    if choice not in (None, AS_STAGED, UNREPAIRED_SENTINEL):
        raise AdapterError(
            f"{name}: expect_boundary: got {choice!r}, expected {AS_STAGED!r} or {UNREPAIRED_SENTINEL!r}"
        )
    return implementation


def _check_parameters(name: str, implementation: Any, kind: Kind) -> None:
    """Raise ``AdapterError`` if the method for this kind of request does not take the request's fields."""
    if kind.measured or not offers(implementation, kind.request):
        return
    expected = [field.name for field in fields(kind.request) if field.metadata != CAPABILITY]
    try:
        inspect.signature(getattr(implementation, kind.method)).bind(*expected)
    except TypeError as error:
        raise AdapterError(f"{name}: {kind.method}: {error}; expected the arguments {', '.join(expected)}") from error


def _resolve(name: str) -> Any:
    if name == Reference.name:
        return Reference
    if name.startswith(PROGRAM_PREFIX):
        from rollproof.properties.wire.program import program

        return program(name.removeprefix(PROGRAM_PREFIX))
    if name.startswith(PEER_PREFIX):
        from rollproof.properties.peers.peer import load_peer

        registered = peer_folder(name.removeprefix(PEER_PREFIX)).manifest.in_process
        return load_peer(name.removeprefix(PEER_PREFIX)) if registered is None else _resolve(registered)
    if name.startswith(MUTANT_PREFIX):
        from rollproof.properties.mutants import load_mutant

        return load_mutant(name.removeprefix(MUTANT_PREFIX))
    if name.startswith(RIGHT_PREFIX):
        from rollproof.properties.right import load_right

        return load_right(name.removeprefix(RIGHT_PREFIX))
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            return entry.load()
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise AdapterError(
            f"{name}: no such implementation; known are {', '.join(known_names())}, "
            "or name one as peer:NAME, module:object or subprocess:COMMAND"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def pick_areas(implementation: Any, wanted: tuple[str, ...]) -> tuple[Area, ...]:
    """Return the areas to check, in the contract's order: those ``wanted``, or all but those of capabilities.

    Raises ``AdapterError`` where one is not offered.
    """
    offered = tuple(area for area in Area if area in implementation.areas)
    usual = tuple(area for area in offered if area not in CAPABILITIES)
    missing = [area for area in wanted if area not in offered]
    if missing:
        raise AdapterError(f"{implementation.name} does not offer area {missing[0]}; it offers {', '.join(offered)}")
    return tuple(area for area in offered if area in wanted) if wanted else usual
