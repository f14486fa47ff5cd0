"""What a mutant is, and how it answers."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from attrs import frozen

from rollproof.properties.adapters.reference import Reference
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Request

Replacement = Callable[[Any], Any]
"""From the original to what takes its place."""

SOURCES: Final = re.compile(r"([\w.-]+/[\w.-]+) (\d+(?:, \d+)*)")
"""Public sources as an origin names them: a repository, then the numbers of its threads."""


def threads(origin: str) -> frozenset[str]:
    """The public threads that a text names, each as ``owner/name number``; none where a rule is the origin."""
    found = SOURCES.findall(origin)
    return frozenset(f"{repository} {number}" for repository, numbers in found for number in numbers.split(", "))


def patches(**replacements: Replacement) -> dict[str, Replacement]:
    """Keyword arguments with "__" for the dot between module and name."""
    return {name.replace("__", ".", 1): replacement for name, replacement in replacements.items()}


def passing(*phrases: str) -> Any:
    """A check that lets some violations pass: those whose ``ValueError`` says one of ``phrases``."""

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


@frozen
class Mutant:
    """A wrong implementation: what it gets wrong, where that was seen, and which invariant must notice.

    ``patches`` maps a name in a module of the spec (``group.build_rows``) to its replacement.
    """

    name: str
    invariant: str
    origin: str
    sentence: str
    patches: dict[str, Replacement]

    @property
    def sources(self) -> frozenset[str]:
        """The public threads that reported the fault."""
        return threads(self.origin)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The spec with the replacements in place."""
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
    """The spec with a mutant's fault. It offers the area of the mutant's invariant alone."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = f"mutant:{mutant.name}"  # type: ignore[misc]
        self.areas = frozenset({BY_ID[mutant.invariant].area})  # type: ignore[misc]

    def ask(self, request: Request) -> Any:
        """The wrong answer."""
        with self.mutant.applied():
            return super().ask(request)
