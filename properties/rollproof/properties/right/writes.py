"""Right variants that publish and clean up otherwise: other layouts, tags of their own, keys in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.outcomes import FinalizedGroup, FinalizedRollout
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staging import call_plane
from rollproof.properties.right.variant import Right
from rollproof.spec.constants import ROUTE_PLAN_TAG, ROUTED_EXPERTS, TOKEN_ROW_COLUMNS


class Writer:
    """A client over another one; subclasses write otherwise. Everything but the writes is the inner client's."""

    def __init__(self, inner: Any, pad_token_id: int) -> None:
        self.inner, self.pad_token_id = inner, pad_token_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put_samples(self, sample_ids: Sequence[str], partition_id: str, fields: Any, tags: Any) -> Any:
        """Publish, with other columns and tags."""
        columns = {name: self.column(name, column) for name, column in fields.items()}
        fields = TensorDict(columns, batch_size=fields.batch_size)
        tags = [self.tag(tag) for tag in tags]
        return call_plane(
            self.inner,
            "put_samples",
            sample_ids=list(sample_ids),
            partition_id=partition_id,
            fields=fields,
            tags=tags,
        )

    def clear_samples(self, sample_ids: Sequence[str], partition_id: str) -> Any:
        """Clear, perhaps in another order."""
        return call_plane(self.inner, "clear_samples", sample_ids=self.keys(sample_ids), partition_id=partition_id)

    def column(self, name: str, column: Any) -> Any:
        """Return a published column."""
        return column

    def tag(self, tag: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row's tags."""
        return dict(tag)

    def keys(self, keys: Sequence[str]) -> list[str]:
        """Return keys to clean up."""
        return list(keys)


def writing(writer: type[Writer]) -> type[RolloutReassembler]:
    """A reassembler that writes through ``writer``, and returns what it wrote."""

    class Writing(RolloutReassembler):
        def __init__(self, dp_client: Any, **arguments: Any) -> None:
            self.writer = writer(dp_client, arguments["pad_token_id"])
            super().__init__(self.writer, **arguments)

        def finalize_rollout(self, rollout_id: str, receipt: Any, *, reward: Any) -> FinalizedRollout:
            """Finalize, with the plan's keys as they are cleaned up."""
            found = super().finalize_rollout(rollout_id, receipt, reward=reward)
            plan = found.route_plan
            if plan is None:
                return found
            keys = tuple(self.writer.keys(plan.cleanup_staging_keys))
            return replace(found, route_plan=replace(plan, cleanup_staging_keys=keys))

        def finalize_group(self, *arguments: Any, **named: Any) -> FinalizedGroup:
            """Finalize; the result has the tags and keys that were written."""
            group = super().finalize_group(*arguments, **named)
            if group.meta is not None:
                group.meta.tags = [self.writer.tag(tag) for tag in group.meta.tags]
            return replace(group, staging_keys=self.writer.keys(group.staging_keys))

    return Writing


class Reversed(Writer):
    """Keys are cleaned up last first: in a clear, in a plan and in a result."""

    def keys(self, keys: Sequence[str]) -> list[str]:
        """Return the keys in reverse."""
        return list(reversed(keys))

    def tag(self, tag: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tags with the plan's keys in reverse."""
        plan = tag.get(ROUTE_PLAN_TAG)
        if plan is None:
            return dict(tag)
        return {**tag, ROUTE_PLAN_TAG: {**plan, "cleanup_staging_keys": self.keys(plan["cleanup_staging_keys"])}}


class Tagged(Writer):
    """Rows have tags of the implementation's own."""

    def tag(self, tag: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tags and two more."""
        return {**tag, "trace_id": "t1", "finished_at": 1.5}


class Dense(Writer):
    """A jagged column whose rows have one shape is published as a dense one."""

    def column(self, name: str, column: Any) -> Any:
        """Return the column, stacked if that is possible."""
        rows = column_rows(column)
        return torch.stack(rows) if len({row.shape for row in rows}) == 1 else column


class Padded(Writer):
    """Token columns are padded on the right: pad token, 0.0, sentinel."""

    def column(self, name: str, column: Any) -> Any:
        """Return the column, padded if it has one value per token."""
        if name not in TOKEN_ROW_COLUMNS:
            return column
        padding = {"input_ids": self.pad_token_id, ROUTED_EXPERTS: -1}.get(name, 0)
        rows = column_rows(column)
        padded = rows[0].new_full((len(rows), max(map(len, rows)) + 2, *rows[0].shape[1:]), padding)
        for row, into in zip(rows, padded, strict=True):
            into[: len(row)] = row
        return padded


RIGHT: Final = (
    Right("cleanup-in-another-order", "Keys are cleaned up last first.", writing(Reversed)),
    Right("own-tags", "Rows have tags beside the contract's.", writing(Tagged)),
    Right("dense-columns", "Rows of one length are published as a dense column.", writing(Dense)),
    Right("padded-columns", "Token columns are padded on the right.", writing(Padded)),
)
