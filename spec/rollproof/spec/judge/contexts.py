"""The contexts of a session as a tree of tokens: what a row's position is, whatever the layout of the row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve, field, frozen

from rollproof.spec.portable import Call, Policy, RoutedRow, Row

ROOT: Final = 0
"""The empty context."""


@frozen
class Sampling:
    """A call generated the token that a context ends with. ``log_prob`` is None where it recorded none for it."""

    call: int
    log_prob: float | None


@frozen
class Contexts:
    """Every prefix of every call's context, as a number; equal prefixes are one."""

    after: dict[tuple[int, int], int] = field(factory=dict)
    """Where a token leads from a prefix."""
    samplings: dict[int, list[Sampling]] = field(factory=dict)
    """Who generated the last token of a prefix."""
    depths: dict[int, int] = field(factory=dict)
    """How many tokens a prefix has."""

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Contexts:
        """Return the contexts of a session."""
        contexts = cls()
        for index, call in enumerate(calls):
            contexts.add(index, call)
        return contexts

    def add(self, index: int, call: Call) -> None:
        """Add one call."""
        place = ROOT
        for position, token in enumerate((*call.prompt_ids, *call.generated_ids)):
            place = self.after.setdefault((place, token), len(self.after) + 1)
            self.depths[place] = position + 1
            generated = position - len(call.prompt_ids)
            if generated >= 0:
                recorded = () if call.log_probs is None else call.log_probs
                log_prob = recorded[generated] if generated < len(recorded) else None
                self.samplings.setdefault(place, []).append(Sampling(index, log_prob))

    def walk(self, row: Row | RoutedRow) -> Iterator[tuple[int, int | None]]:
        """Yield each position of a row that is not padding, with its prefix; None from where no call has it."""
        place: int | None = ROOT
        for position, token in enumerate(row.ids):
            if row.attention is None or row.attention[position]:
                place = None if place is None else self.after.get((place, token))
                yield position, place


def rectangular(row: Row | RoutedRow) -> bool:
    """Return whether the columns of a row are as long as its ids."""
    others = (row.routes, row.fill) if isinstance(row, RoutedRow) else (row.log_probs,)
    return all(column is None or len(column) == len(row.ids) for column in (row.mask, row.attention, *others))


def unshifted(row: Row, policies: frozenset[str]) -> Row:
    """Return a row with mask and log-probs at the tokens that they are about."""
    if Policy.SHIFTS_LABELS not in policies or not row.ids:
        return row
    log_probs = None if row.log_probs is None else (None, *row.log_probs[:-1])
    return evolve(row, mask=(0, *row.mask[:-1]), log_probs=log_probs)
