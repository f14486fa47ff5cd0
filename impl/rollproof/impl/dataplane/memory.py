"""A data plane inside the process, for tests, for trying things out and for single-process training.

It answers as TransferQueue does, because a finalizer must cope with that: a read that misses some rows
gives fewer rows and no error, a read that misses all of them raises ``MissingRows``, and a selected column that some
row lacks is dropped silently. Vectors come back as jagged nested tensors even if all have one length, scalars
dense, and rows that fit into neither as a stack of single tensors.

It copies every row as it is put, and builds every answer anew: no caller can reach into what is stored.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from attrs import define, field
from tensordict import NonTensorStack, TensorDict, TensorDictBase

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import MissingRows, new_answers
from rollproof.impl.host_memory import concatenated
from rollproof.impl.nested import nested_from


@define(eq=False)
class MemoryDataPlane:
    """Rows by partition and sample id, behind one lock."""

    dense: bool = False
    """Whether rows of one shape are answered as one dense tensor, as some planes do; else vectors are jagged."""
    _rows: dict[str, dict[str, dict[str, torch.Tensor]]] = field(factory=dict, init=False)
    _tags: dict[str, dict[str, dict[str, Any]]] = field(factory=dict, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Write rows; columns and tags of a row that is there already are updated.

        ``fields`` holds tensors of batch size ``[len(sample_ids)]``, dense or nested; ``ValueError`` if it does not,
        or if ``tags`` has another length.
        """
        count = len(sample_ids)
        if tags is not None and len(tags) != count:
            raise ValueError(f"tags: got {len(tags)}, expected {count}, one per row")
        columns: dict[str, list[torch.Tensor]] = {}
        if fields is not None:
            if tuple(fields.batch_size) != (count,):
                raise ValueError(f"fields: got batch size {list(fields.batch_size)}, expected [{count}]")
            for name, column in fields.items():
                columns[name] = [row.detach().clone() for row in column_rows(column, name)]
        with self._lock:
            rows, stored_tags = self._rows.setdefault(partition_id, {}), self._tags.setdefault(partition_id, {})
            for index, sample_id in enumerate(sample_ids):
                rows.setdefault(sample_id, {}).update({name: column[index] for name, column in columns.items()})
                stored_tags.setdefault(sample_id, {}).update(tags[index] if tags is not None else {})

    def put_rows(self, rows: Mapping[str, Mapping[str, torch.Tensor]], partition_id: str) -> None:
        """Write rows by sample id, each a tensor by column name, without tags and without a copy: they are given away.

        For whoever has many small rows, of which a batch for each would cost more than the rows.
        """
        with self._lock:
            stored, tags = self._rows.setdefault(partition_id, {}), self._tags.setdefault(partition_id, {})
            for sample_id, row in rows.items():
                stored.setdefault(sample_id, {}).update(row)
                tags.setdefault(sample_id, {})

    @new_answers
    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """Return the rows that are there, in request order, with the columns that all of them have.

        ``MissingRows`` if rows were requested and none is there.
        """
        with self._lock:
            stored = self._rows.get(partition_id, {})
            found = [dict(stored[sample_id]) for sample_id in sample_ids if sample_id in stored]
        if sample_ids and not found:
            raise MissingRows(partition_id, sample_ids)
        shared = [name for name in select_fields if found and all(name in row for row in found)]
        columns = {name: pack_rows([row[name] for row in found], dense=self.dense) for name in shared}
        return TensorDict(columns, batch_size=[len(found)])

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Remove rows and their tags; None removes the partition."""
        with self._lock:
            if sample_ids is None:
                self._rows.pop(partition_id, None)
                self._tags.pop(partition_id, None)
                return
            for sample_id in sample_ids:
                self._rows.get(partition_id, {}).pop(sample_id, None)
                self._tags.get(partition_id, {}).pop(sample_id, None)

    def sample_ids(self, partition_id: str) -> list[str]:
        """Return the ids of a partition's rows, in the order in which they were first put."""
        with self._lock:
            return list(self._rows.get(partition_id, {}))

    def tags(self, partition_id: str) -> Mapping[str, Mapping[str, Any]]:
        """Return a copy of the tags of a partition's rows, by sample id."""
        with self._lock:
            return {sample_id: dict(tags) for sample_id, tags in self._tags.get(partition_id, {}).items()}


def pack_rows(rows: list[torch.Tensor], *, dense: bool = False) -> Any:
    """Return rows as one batched column that shares no memory with them, each with its own dtype and shape.

    Scalars are dense, and with ``dense`` all rows of one shape: a nested tensor costs more than what it holds.
    """
    shapes = [row.shape for row in rows]
    if len({row.dtype for row in rows}) > 1 or len({(len(shape), shape[1:]) for shape in set(shapes)}) > 1:
        return NonTensorStack(*(row.clone() for row in rows))
    if not shapes[0] or (dense and len(set(shapes)) == 1):
        return torch.stack(rows)
    offsets = torch.tensor([0, *accumulate(shape[0] for shape in shapes)])
    return nested_from(concatenated(rows), offsets)
