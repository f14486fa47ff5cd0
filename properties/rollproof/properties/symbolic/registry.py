"""All symbolic rules, chapter by chapter, and all pairs: what ``rollproof prove``, the docs and the tests read."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from rollproof.properties.symbolic import boundary, group, lineage, media, pairs, retained, routes, terminal, values
from rollproof.properties.symbolic.rule import Pair, Rule


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that a module declares, in its order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Rule))


CHAPTERS: Final = (values, terminal, lineage, routes, media, retained, group, boundary)

RULES: Final[tuple[Rule, ...]] = tuple(rule for chapter in CHAPTERS for rule in rules_of(chapter))
"""Every rule."""

PAIRS: Final[tuple[Pair, ...]] = tuple(value for value in vars(pairs).values() if isinstance(value, Pair))
"""Every rule that spec and implementation state each in their own way."""

ITEMS: Final[tuple[Rule | Pair, ...]] = (*RULES, *PAIRS)
"""All of them; their names are distinct."""
