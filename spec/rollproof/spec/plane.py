"""The data plane as the spec sees it: what staging holds, and what a finalizer does to it, as values.

A finalizer reads staged rows, puts published rows, and clears staging. The spec returns these steps as a sequence of
effects, so that "one read", "publish before clear" and "clear only what you own" are checked like any other value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.staged import Row
from rollproof.spec.tensor import Tensor


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


@frozen
class Faults:
    """Which operations of the data plane fail with an error of its own. Reads are counted from 0."""

    failing_get: int | None = None
    put: bool = False
    clear: bool = False


NO_FAULTS: Final = Faults()


class OnMiss(StrEnum):
    """How a data plane says that it does not hold a row. The contract's answer is the same for all."""

    FEWER = "fewer"
    """A partial miss: the rows that are there, without an error. A total miss: a ValueError."""
    EMPTY = "empty"
    """The rows that are there, be it none."""
    KEY_ERROR = "key_error"
    """A KeyError for any miss."""


@frozen
class Staging:
    """What a staging partition holds, how the data plane over it says "not there", and how it fails."""

    rows: Mapping[str, Row] = field(factory=dict)
    faults: Faults = NO_FAULTS
    on_miss: OnMiss = OnMiss.FEWER

    def get(self, keys: Sequence[str], done: Sequence[Effect]) -> list[Row]:
        """The rows of ``keys``, in that order; ``done`` are the effects so far, this read not included.

        Raises ``Rejected(MISSING_STAGING_ROW)`` where one is absent, however the data plane says so, and ``Outage``.
        """
        if self.faults.failing_get == sum(isinstance(effect, Get) for effect in done):
            raise Outage("the data plane failed while reading")
        absent = [key for key in keys if key not in self.rows]
        if absent:
            raise Rejected(Code.MISSING_STAGING_ROW, ", ".join(absent))
        return [self.rows[key] for key in keys]

    def after(self, effects: Iterable[Effect]) -> Staging:
        """What staging holds once these effects have happened, and nothing fails any more."""
        cleared = {key for effect in effects if isinstance(effect, Clear) for key in effect.keys}
        if self.faults.clear:
            cleared = set()
        rows = {key: row for key, row in self.rows.items() if key not in cleared}
        return Staging(rows, on_miss=self.on_miss)
