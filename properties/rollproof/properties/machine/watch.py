"""A data plane that knows what must never be done to it, whatever fails above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.properties.adapters.recording import published_rows
from rollproof.properties.machine.model import STAGING, TRAIN, Group
from rollproof.spec.plane import PublishedRow


class Violation(AssertionError):
    """Something that must never happen to the data plane has happened."""


@define(eq=False)
class WatchedPlane:
    """The memory's data plane, with the rules of publication: who may clear what, and what may be put when."""

    inner: MemoryDataPlane = field(factory=MemoryDataPlane)
    acting: Group | None = None
    """The group that is being finalized or recovered; None outside of that."""
    discarding: bool = False
    rows: dict[str, PublishedRow] = field(factory=dict)
    """What was last put for each sample id that is there."""

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows."""
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows; of published rows, only the acting group's, and never others in place of a whole publication."""
        if partition_id == TRAIN:
            group = self._actor("put", sample_ids)
            new = dict(zip(sample_ids, published_rows(fields, tags, 0), strict=True))
            if self.is_published(group) and any(self.rows[key] != row for key, row in new.items()):
                raise Violation(f"{group.request.group_id} was published, and is published again with other bytes")
            self.rows |= new
        self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows; of staged rows, only those that the acting group owns, once its rows are there."""
        if self.acting is not None and partition_id == STAGING:
            foreign = set(sample_ids) - self.acting.owned
            if foreign:
                raise Violation(f"{self.acting.request.group_id} clears rows of others: {sorted(foreign)}")
            if not self.discarding and not self.is_published(self.acting):
                raise Violation(f"{self.acting.request.group_id} clears its staging before its rows are there")
        if partition_id == TRAIN:
            for key in sample_ids:
                self.rows.pop(key, None)
        self.inner.clear_samples(sample_ids, partition_id)

    def tags(self, partition_id: str) -> Any:
        """Return the tags of a partition's rows."""
        return self.inner.tags(partition_id)

    def lose(self, sample_ids: Sequence[str]) -> None:
        """Lose published rows in storage."""
        for key in sample_ids:
            self.rows.pop(key, None)
        self.inner.clear_samples(list(sample_ids), TRAIN)

    def is_published(self, group: Group) -> bool:
        """Return whether all of a group's rows are there."""
        return all(key in self.rows for key in group.sample_ids)

    def _actor(self, operation: str, sample_ids: list[str]) -> Group:
        if self.acting is None or tuple(sample_ids) != self.acting.sample_ids[: len(sample_ids)]:
            raise Violation(f"{operation} of {sample_ids} without permission")
        return self.acting
