"""The data plane as a finalizer uses it: one batched read after another, one publication, one removal (section 5).

What a finalizer does is kept as a list of effects, so that "one read", "publish before clear" and "clear only what you
own" are checked like any other value. A data plane answers a request for rows that it does not hold in one of several
ways: fewer rows, an empty answer, or an error of its own for "not there" (a row whose storage was lost is not there
either). All of them are a miss. Every other error, whatever its type, is an outage, which says nothing about the rows:
it propagates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from attrs import define, field, frozen

from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import Row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import fault, first_of


class Outage(Exception):
    """The data plane failed with an error of its own, other than "not there"."""


@frozen
class PublishedRow:
    """One row of a published group: its columns without padding, and its tags (section 8)."""

    columns: Mapping[str, Tensor]
    tags: Mapping[str, Any]


@frozen
class Get:
    """A batched read of staged rows."""

    partition: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]


@frozen
class Put:
    """The publication of a group's rows."""

    partition: str
    sample_ids: tuple[str, ...]
    rows: tuple[PublishedRow, ...]


@frozen
class Clear:
    """The removal of staged rows."""

    partition: str
    keys: tuple[str, ...]


Effect: TypeAlias = Get | Put | Clear


@define
class DataPlane:
    """The staged rows by key, and every effect so far in order. Each method raises ``Outage`` if the plane fails."""

    rows: Mapping[str, Row] = field(factory=dict)
    effects: list[Effect] = field(factory=list, init=False)

    def get(self, partition: str, keys: Sequence[str], columns: Sequence[str]) -> list[Row]:
        """Return the staged rows of ``keys``, in that order.

        Raise ``Rejected(MISSING_STAGING_ROW)`` if one is not there.
        """
        self.take_effect(Get(partition, tuple(keys), tuple(columns)))
        absent = [key for key in keys if key not in self.rows]
        if absent:
            raise Rejected(Code.MISSING_STAGING_ROW, f"{first_of(absent)}: {fault('staged row', None, 'one')}")
        return [self.rows[key] for key in keys]

    def put(self, partition: str, sample_ids: Sequence[str], rows: Sequence[PublishedRow]) -> None:
        """Publish ``rows`` under ``sample_ids``, all or none."""
        self.take_effect(Put(partition, tuple(sample_ids), tuple(rows)))

    def clear(self, partition: str, keys: Sequence[str]) -> None:
        """Remove the staged rows of ``keys``."""
        self.take_effect(Clear(partition, tuple(keys)))
        self.rows = {key: row for key, row in self.rows.items() if key not in keys}

    def take_effect(self, effect: Effect) -> None:
        """Record that ``effect`` happens."""
        self.effects.append(effect)
