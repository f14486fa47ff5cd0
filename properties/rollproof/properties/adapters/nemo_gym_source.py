"""Staged rows of a data plane as nemo-gym's own snapshots: its ``StagingSource`` over our wire layout (section 9)."""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen

from rollproof.properties.adapters.nemo_gym import load_staging
from rollproof.properties.tensors import batch_rows
from rollproof.spec.constants import (
    BASE_COLUMNS,
    CAPTURE_MODES,
    DIGEST_COLUMNS,
    SCALAR_COLUMNS,
    TEXT_COLUMNS,
    TOKEN_COLUMNS,
)

PARTITION: Final = "staging"


@frozen
class SnapshotSource:
    """nemo-gym's ``StagingSource`` over a data plane: one base snapshot of its own per staging key, in order."""

    plane: Any
    partition: str = PARTITION

    def fetch(self, staging_keys: list[str]) -> list[Any]:
        """The snapshots of ``staging_keys``; each validates itself, its digest included."""
        if not staging_keys:
            return []
        answer = self.plane.get_samples(
            sample_ids=list(staging_keys), partition_id=self.partition, select_fields=list(BASE_COLUMNS)
        )
        return snapshots_of(answer)


def snapshots_of(answer: Any) -> list[Any]:
    """The rows of a batched read as nemo-gym's snapshots."""
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
