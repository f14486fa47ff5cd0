"""Writing and reading staged calls through a data plane (section 9).

``StagingSink`` is what a capture host stages into: nemo-gym's ``StagingSink`` protocol. ``StagingSource`` is what a
finalizer reads from: it tells a row that is not there, which rejects one rollout, from a data plane that failed,
which must stop the group before anything is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from attrs import frozen
from tensordict import TensorDict, TensorDictBase

from rollproof.impl import media, routes
from rollproof.impl.checks import DIGESTS, LENGTHS, VERSIONS
from rollproof.impl.staged import StagedColumns, from_calls
from rollproof.spec.constants import CAPTURE_MODES, ROUTED_EXPERTS
from rollproof.spec.rejections import Code, Rejected

LOGGER: Final = logging.getLogger(__name__)


def call_plane(client: Any, method: str, **arguments: Any) -> Any:
    """Call a data plane's method: on a local object, or on a Ray actor handle, waiting for the result.

    Errors are the plane's own. A Ray task error is also an instance of the error that it stands for.
    """
    bound = getattr(client, method)
    remote = getattr(bound, "remote", None)
    if remote is None:
        return bound(**arguments)
    import ray

    return ray.get(remote(**arguments))


@frozen(eq=False)
class StagingSource:
    """Reads staged rows of one partition."""

    dp_client: Any
    partition: str

    def read(self, keys: Sequence[str], columns: Sequence[str]) -> TensorDictBase:
        """One batched read: the rows of ``keys`` in that order, with those of ``columns`` that all rows have.

        Raises ``Rejected(MISSING_STAGING_ROW)`` where the plane says that a row is not there: by fewer rows, by
        ``KeyError`` or by ``ValueError``. Every other error of the plane propagates as it is.
        """
        try:
            answer: TensorDictBase = call_plane(
                self.dp_client,
                "get_samples",
                sample_ids=list(keys),
                partition_id=self.partition,
                select_fields=list(columns),
            )
        except (KeyError, ValueError) as error:
            raise Rejected(Code.MISSING_STAGING_ROW, f"{type(error).__name__} from the data plane") from error
        count = answer.batch_size[0]
        if count < len(keys):
            raise Rejected(Code.MISSING_STAGING_ROW, f"{count} of {len(keys)} rows")
        if count > len(keys):
            raise RuntimeError(f"the data plane answered {count} rows for {len(keys)} keys of {self.partition!r}")
        return answer


@frozen(eq=False)
class StagingSink:
    """Stages one call per data-plane row. Thread-safe where the data plane is."""

    dp_client: Any
    partition: str
    capture_media: bool = False
    """Whether the partition carries media columns: one or the other for all of its rows."""
    media_pixel_dtype: torch.dtype | None = None
    """What all pixels of the partition are, with ``capture_media``: a column has one dtype over all live rows."""

    def __attrs_post_init__(self) -> None:
        if self.capture_media and self.media_pixel_dtype is None:
            raise ValueError("a staging partition that carries media needs media_pixel_dtype")

    def stage(self, record: Any, *, attachments: Mapping[str, Any] | None = None) -> Any:
        """Make one call durable with a single write.

        ``record`` has the attributes of nemo-gym's ``StagedCallRecord``; ``attachments`` are the call's processed
        media. Returns nemo-gym's ``StageResult``. A call that breaks a rule of sections 1 or 3 is not written, and a
        failed write is discarded as far as the data plane lets it: both are reported in the result, never raised.
        Raises ``ImportError`` where nemo-gym is not installed, since its capture core takes no other result.
        """
        result = _stage_result()
        key = f"{record.rollout_id}/{record.model_call_id}"
        try:
            fields = staged_row(record, attachments, self.media_pixel_dtype if self.capture_media else None)
        except Exception as error:
            return result(ok=False, error=f"{key}: cannot be staged: {error}")
        try:
            call_plane(
                self.dp_client, "put_samples", sample_ids=[key], partition_id=self.partition, fields=fields, tags=[{}]
            )
        except Exception as error:
            self._discard(key)
            return result(ok=False, error=f"{key}: {type(error).__name__} from the data plane: {error}")
        return result(ok=True, staging_key=key)

    def _discard(self, key: str) -> None:
        """Remove what a failed write may have left."""
        try:
            call_plane(self.dp_client, "clear_samples", sample_ids=[key], partition_id=self.partition)
        except Exception:
            LOGGER.warning("a failed write of %s could not be discarded", key, exc_info=True)


def _stage_result() -> Any:
    try:
        from nemo_gym.token_id_capture.staging import StageResult
    except ImportError as error:
        raise ImportError("StagingSink answers with nemo-gym's StageResult: install nemo-gym") from error
    return StageResult


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_row(
    record: Any, attachments: Mapping[str, Any] | None = None, media_pixel_dtype: torch.dtype | None = None
) -> TensorDict:
    """The wire columns of one staged call, batch size ``[1]``; with media columns where their dtype is given.

    Raises ``ValueError`` if the call breaks a rule of sections 1 or 3, or its routes or media cannot be staged.
    """
    columns, fault = from_calls([record])
    if fault is not None:
        raise ValueError(fault)
    extras = getattr(record, "extras", None)
    metadata = metadata_json(extras)
    encoding, staged_routes = routes.staged_columns(extras, record.delta_len)
    fields = _base_columns(columns, metadata)
    fields["routed_experts_encoding"] = torch.tensor([encoding])
    fields["routed_len"] = torch.tensor([0 if staged_routes is None else staged_routes.shape[1]])
    if staged_routes is not None:
        fields[ROUTED_EXPERTS] = staged_routes
    if media_pixel_dtype is not None:
        fields |= media.staged_columns(attachments, metadata, media_pixel_dtype)
    elif attachments:
        raise ValueError("the partition carries no media, but the call has attachments")
    return TensorDict(fields, batch_size=[1])


def metadata_json(extras: Mapping[str, Any] | None) -> bytes:
    """The staged form of a call's extras: compact JSON without the routes, keys sorted, UTF-8 unescaped."""
    rest = None if extras is None else {name: value for name, value in extras.items() if name != ROUTED_EXPERTS}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _base_columns(columns: StagedColumns, metadata: bytes) -> dict[str, torch.Tensor]:
    """Everything of one call that is not routes or media."""
    call = {name: column[0] for name, column in columns.fields.items()}
    parent = call["parent_call_id"]
    row = {
        "token_ids_delta": torch.from_numpy(columns.token_ids)[None],
        "token_mask_delta": torch.from_numpy(columns.token_mask)[None],
        "generation_logprobs_delta": torch.from_numpy(columns.logprobs)[None],
        "rollout_id_utf8": _bytes(call["rollout_id"].encode()),
        "model_call_id_utf8": _bytes(call["model_call_id"].encode()),
        "parent_call_id_utf8": _bytes(b"\x00" if parent is None else parent.encode()),
        "extras_metadata_json": _bytes(metadata),
        "parent_call_id_present": torch.tensor([parent is not None]),
        "chain_hash_present": torch.tensor([True]),
        "cumulative_hash_present": torch.tensor([True]),
        "capture_mode": torch.tensor([CAPTURE_MODES.index(call["mode"])]),
    }
    row |= {name: torch.tensor([int(call[name])]) for name in (*LENGTHS, *VERSIONS)}
    row |= {f"{name}_bytes": _bytes(call[name].tobytes()) for name in DIGESTS}
    return row


def _bytes(value: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(value), dtype=torch.uint8)[None]
