"""A data plane that records what a finalizer does to it, and fails where a request says so.

It wraps a real data plane and speaks NeMo RL's three methods. What it records are the spec's effects, so that an
implementation's reads and writes can be compared with the contract's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from attrs import define, field
from tensordict import TensorDict

from rollproof.properties.tensors import from_torch, named_columns, row_fields
from rollproof.spec.constants import TOKEN_ROW_COLUMNS
from rollproof.spec.plane import NO_FAULTS, Clear, Effect, Faults, Get, OnMiss, PublishedRow, Put, Staging
from rollproof.spec.tensor import Tensor

OUTAGES: Final = (ConnectionError, TimeoutError, RuntimeError, OSError)
"""The kinds of error that a failing operation raises, in turn. None of them says that a row is missing."""


@define
class RecordingPlane:
    """``inner`` with a memory of effects. ``begin`` starts a new step with its own faults."""

    inner: Any
    on_miss: OnMiss = OnMiss.FEWER
    pad_token_id: int = 0
    effects: list[Effect] = field(factory=list)
    faults: Faults = NO_FAULTS
    raised: BaseException | None = None
    """The error that this plane raised on purpose in the current step."""
    held: set[str] = field(factory=set)
    """The staging keys that the inner plane holds."""

    @classmethod
    def over(cls, inner: Any, staging: Staging, partition: str, pad_token_id: int = 0) -> RecordingPlane:
        """A recorder over ``inner``, into which every row of ``staging`` is put first, one put per row."""
        plane = cls(inner, staging.on_miss, pad_token_id, faults=staging.faults)
        for key, row in staging.rows.items():
            inner.put_samples(sample_ids=[key], partition_id=partition, fields=row_fields(dict(row)), tags=[{}])
            plane.held.add(key)
        return plane

    def begin(self, faults: Faults) -> None:
        """Forget the effects of the last step; ``faults`` are the new one's."""
        self.effects, self.faults, self.raised = [], faults, None

    def _fail(self, operation: str) -> None:
        kind = OUTAGES[len(self.held) % len(OUTAGES)]
        self.raised = kind(f"injected outage of {operation}")
        raise self.raised

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> TensorDict:
        """A batched read, as the inner plane answers it, or in another of the ways to say "not there"."""
        reads = sum(isinstance(effect, Get) for effect in self.effects)
        self.effects.append(Get(partition_id, tuple(sample_ids), tuple(select_fields)))
        if self.faults.failing_get == reads:
            self._fail("get_samples")
        absent = [key for key in sample_ids if key not in self.held]
        if absent and self.on_miss is OnMiss.KEY_ERROR:
            raise KeyError(absent[0])
        if len(absent) == len(sample_ids) and self.on_miss is OnMiss.EMPTY:
            return TensorDict({}, batch_size=[0])
        answer: TensorDict = self.inner.get_samples(
            sample_ids=list(sample_ids), partition_id=partition_id, select_fields=list(select_fields)
        )
        return answer

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: Sequence[dict[str, Any]] | None = None,
    ) -> Any:
        """A publication."""
        self.effects.append(Put(partition_id, tuple(sample_ids), published_rows(fields, tags, self.pad_token_id)))
        if self.faults.put:
            self._fail("put_samples")
        return self.inner.put_samples(sample_ids=list(sample_ids), partition_id=partition_id, fields=fields, tags=tags)

    def clear_samples(self, sample_ids: Sequence[str], partition_id: str) -> None:
        """A removal."""
        self.effects.append(Clear(partition_id, tuple(sample_ids)))
        if self.faults.clear:
            self._fail("clear_samples")
        self.held.difference_update(sample_ids)
        self.inner.clear_samples(sample_ids=list(sample_ids), partition_id=partition_id)


def published_rows(
    fields: TensorDict | None, tags: Sequence[dict[str, Any]] | None, pad_token_id: int
) -> tuple[PublishedRow, ...]:
    """What a put publishes, row by row, without padding."""
    columns: list[dict[str, Tensor]] = [{} for _ in tags or ()]
    if fields is not None:
        columns = [{} for _ in range(fields.batch_size[0])]
        lengths = [int(length) for length in fields.get("input_lengths")] if "input_lengths" in fields else None
        for name, rows in named_columns(fields):
            for index, value in enumerate(rows):
                length = lengths[index] if lengths is not None and name in TOKEN_ROW_COLUMNS else None
                columns[index][name] = from_torch(unpadded(name, value, length, pad_token_id))
    every = tags if tags is not None else [{} for _ in columns]
    return tuple(PublishedRow(row, dict(tag)) for row, tag in zip(columns, every, strict=True))


def unpadded(name: str, row: torch.Tensor, length: int | None, pad_token_id: int) -> torch.Tensor:
    """A per-token row cut to its length, if what is cut off is the padding that the contract allows.

    Other padding stays, so that the row is seen to differ.
    """
    if length is None or row.dim() == 0 or row.shape[0] <= length:
        return row
    padding = {"input_ids": pad_token_id, "routed_experts": -1}.get(name, 0)
    return row[:length] if bool((row[length:] == padding).all()) else row
