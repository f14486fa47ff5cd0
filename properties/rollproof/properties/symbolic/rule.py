"""Symbolic rules: a sentence of the contract as a function of scalars that returns True.

CrossHair runs such a function on symbolic values. Where it has followed every path and none returned False, the
sentence holds for all arguments within the preconditions, not only for those that were tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import frozen

Statement: TypeAlias = Callable[..., bool]
"""``pre:`` lines of its docstring bound the arguments, and ``post: _`` asks that it returns True."""


@frozen
class Rule:
    """A sentence that is proved: its place in the contract, what it supports, and for which arguments."""

    statement: Statement
    section: str
    """Section of the contract."""
    invariants: tuple[str, ...]
    """The invariants of the catalogue that rest on it."""
    bounds: str
    """For which arguments, in words; the preconditions say it exactly."""
    witness: tuple[Any, ...]
    """Arguments within the bounds: without any, the rule would hold of nothing."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.statement.__name__

    @property
    def module(self) -> str:
        """The chapter: the last part of the module's name."""
        return self.statement.__module__.rpartition(".")[2]

    @property
    def sentence(self) -> str:
        """What holds: the first line of the docstring."""
        return (self.statement.__doc__ or "").partition("\n")[0]


def rule(
    section: str, invariants: str | tuple[str, ...], bounds: str, witness: tuple[Any, ...]
) -> Callable[[Statement], Rule]:
    """Declare the decorated statement as a rule."""
    named = (invariants,) if isinstance(invariants, str) else invariants
    return lambda statement: Rule(statement, section, named, bounds, witness)


@frozen
class Pair:
    """A rule that spec and implementation state each in its own way, as two functions of the same scalars."""

    name: str
    sentence: str
    """What both of them say."""
    section: str
    invariants: tuple[str, ...]
    bounds: str
    witness: tuple[Any, ...]
    spec: Callable[..., object]
    impl: Callable[..., object]

    @property
    def module(self) -> str:
        """The module that declares it: the last part of its name."""
        return self.spec.__module__.rpartition(".")[2]


def pair(
    section: str, invariants: str | tuple[str, ...], bounds: str, witness: tuple[Any, ...]
) -> Callable[[type], Pair]:
    """Declare a class with a docstring and the static methods ``spec`` and ``impl`` as a pair, named in snake case."""
    named = (invariants,) if isinstance(invariants, str) else invariants

    def declare(sides: type) -> Pair:
        name = re.sub("(?<!^)(?=[A-Z])", "_", sides.__name__).lower()
        sentence = (sides.__doc__ or "").partition("\n")[0]
        return Pair(name, sentence, section, named, bounds, witness, sides.spec, sides.impl)  # type: ignore[attr-defined]

    return declare
