"""Staged rows of a data plane as nemo-gym's own snapshots: its ``StagingSource`` over our wire format (section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import define, field, frozen

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.properties.adapters.tensors import batch_rows, from_torch, stage_rows
from rollproof.properties.nemo_gym.adapter import load_staging
from rollproof.spec.constants import (
    BASE_COLUMNS,
    CAPTURE_MODES,
    DIGEST_COLUMNS,
    SCALAR_COLUMNS,
    TEXT_COLUMNS,
    TOKEN_COLUMNS,
)
from rollproof.spec.staged import Row
from rollproof.spec.tensor import Tensor

PARTITION: Final = "staging"


@frozen
class SnapshotSource:
    """nemo-gym's ``StagingSource`` over a data plane: one base snapshot of its own per staging key, in order."""

    plane: Any
    partition: str = PARTITION

    def fetch(self, staging_keys: list[str]) -> list[Any]:
        """Return the snapshots of ``staging_keys``; each validates itself, its digest included."""
        if not staging_keys:
            return []
        answer = self.plane.get_samples(
            sample_ids=list(staging_keys), partition_id=self.partition, select_fields=list(BASE_COLUMNS)
        )
        return snapshots_of(answer)


def snapshots_of(answer: Any) -> list[Any]:
    """Return the rows of a batched read as nemo-gym's snapshots."""
    model = load_staging().StagedCallBaseSnapshot
    rows = {name: batch_rows(answer.get(name)) for name in BASE_COLUMNS}
    texts = {name: [row.numpy().tobytes() for row in rows[name]] for name in (*TEXT_COLUMNS, *DIGEST_COLUMNS)}
    scalars = {name: [int(row) for row in rows[name]] for name in (*SCALAR_COLUMNS, "parent_call_id_present")}
    tokens = {name: [row.tolist() for row in rows[name]] for name in TOKEN_COLUMNS}
    return [
        model(
            rollout_id=texts["rollout_id_utf8"][index].decode(),
            model_call_id=texts["model_call_id_utf8"][index].decode(),
            parent_call_id=texts["parent_call_id_utf8"][index].decode()
            if scalars["parent_call_id_present"][index]
            else None,
            mode=CAPTURE_MODES[scalars["capture_mode"][index]],
            token_ids_delta=tokens["token_ids_delta"][index],
            token_mask_delta=tokens["token_mask_delta"][index],
            generation_log_probs_delta=tokens["generation_logprobs_delta"][index],
            **{name: scalars[name][index] for name in PLAIN_SCALARS},
            **{name.removesuffix("_bytes"): texts[name][index].hex() for name in DIGEST_COLUMNS},
        )
        for index in range(len(texts["rollout_id_utf8"]))
    ]


PLAIN_SCALARS: Final = (
    "schema_version",
    "digest_version",
    "extras_digest_version",
    "prev_len",
    "delta_len",
    "cum_len",
    "weight_version",
)


@define
class StagedRows:
    """A data plane that keeps every row that is put into it as the spec sees it."""

    inner: Any = field(factory=MemoryDataPlane)
    rows: dict[str, dict[str, Tensor]] = field(factory=dict)

    @classmethod
    def holding(cls, rows: Mapping[str, Row]) -> StagedRows:
        """Return a plane inside the process that holds these rows."""
        plane = cls()
        stage_rows(plane, PARTITION, rows)
        return plane

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any, tags: Any = None) -> Any:
        """Keep each row, then put it."""
        for index, key in enumerate(sample_ids):
            columns = {name: from_torch(fields.get(name)[index : index + 1]) for name in fields.keys()}  # noqa: SIM118
            self.rows.setdefault(key, {}).update(columns)
        return self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Answer as the inner plane does."""
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> Any:
        """Do as the inner plane does."""
        return self.inner.clear_samples(sample_ids, partition_id)
