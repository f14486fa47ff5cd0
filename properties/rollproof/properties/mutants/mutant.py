"""What a mutant is, and how it answers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from rollproof.properties.adapters.reference import Reference
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Request

Replacement = Callable[[Any], Any]
"""From the original to what takes its place."""


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
