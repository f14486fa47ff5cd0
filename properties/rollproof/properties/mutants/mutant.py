"""Mutants: their definition, and how they answer."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from attrs import frozen

from rollproof.properties.adapters.reference import Reference
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Request

Replacement = Callable[[Any], Any]
"""From the original to what takes its place."""

SOURCES: Final = re.compile(r"([\w.-]+/[\w.-]+) (\d+(?:, \d+)*)")
"""Public sources as an origin names them: a repository, then the numbers of its threads."""


def threads(origin: str) -> frozenset[str]:
    """Return the public threads that an origin names, as ``owner/name number``; none where a rule is the origin."""
    found = SOURCES.findall(origin)
    return frozenset(f"{repository} {number}" for repository, numbers in found for number in numbers.split(", "))


def patches(**replacements: Replacement) -> dict[str, Replacement]:
    """Return patches from keyword arguments that have "__" for each dot between modules and name."""
    return {re.sub("(?<=[a-z])__", ".", name): replacement for name, replacement in replacements.items()}


def passing(*phrases: str) -> Any:
    """Let some violations pass a check: those whose ``ValueError`` contains one of ``phrases``."""

    def replacement(check: Any) -> Any:
        def wrong(*arguments: Any) -> Any:
            try:
                return check(*arguments)
            except ValueError as error:
                if not any(phrase in str(error) for phrase in phrases):
                    raise
                return None

        return wrong

    return replacement


def remembering(staged: list[Any]) -> Replacement:
    """Keep the staged rows of the latest rollout in a list, for another patch; replaces ``rollout.rebuild``."""

    def replacement(rebuild: Any) -> Any:
        def wrong(receipt: Any, rows: Any) -> Any:
            staged[:] = rows
            return rebuild(receipt, rows)

        return wrong

    return replacement


@frozen
class Mutant:
    """A wrong implementation: its fault, where that was seen, and which invariant must notice.

    ``patches`` maps a name in a module of the spec (``group.build_rows``, ``judge.oracle.linearize``) to its
    replacement.
    """

    name: str
    invariant: str
    origin: str
    sentence: str
    patches: dict[str, Replacement]
    policies: frozenset[str] = frozenset()
    """What it declares beside the reference's own: the fault hides behind a policy."""

    @property
    def sources(self) -> frozenset[str]:
        """The public threads that reported the fault."""
        return threads(self.origin)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the functions in the spec while the context lasts."""
        undo = []
        try:
            for path, replacement in self.patches.items():
                module_name, _, attribute = path.rpartition(".")
                module = importlib.import_module(f"rollproof.spec.{module_name}")
                original = getattr(module, attribute)
                undo.append((module, attribute, original))
                setattr(module, attribute, replacement(original))
            yield
        finally:
            for module, attribute, original in reversed(undo):
                setattr(module, attribute, original)


class MutantImplementation(Reference):
    """The spec with a mutant's fault. It offers only the area of the mutant's invariant."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = f"mutant:{mutant.name}"  # type: ignore[misc]
        self.areas = frozenset({BY_ID[mutant.invariant].area})  # type: ignore[misc]
        self.policies = Reference.policies | mutant.policies  # type: ignore[misc]

    def ask(self, request: Request) -> Any:
        """Return the wrong answer."""
        with self.mutant.applied():
            return super().ask(request)
