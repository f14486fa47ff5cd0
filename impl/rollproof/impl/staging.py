"""Writing and reading staged calls through a data plane (section 9).

A capture host stages into ``StagingSink``, which has nemo-gym's ``StagingSink`` protocol. A finalizer reads from
``StagingSource``, which tells a row that is not there, which rejects one rollout, from a data plane that failed, which
must stop the group before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from attrs import frozen
from tensordict import TensorDictBase

from rollproof.impl.arguments import as_name, as_plane
from rollproof.impl.checks import fault, first_of
from rollproof.impl.columns import Answer, column_rows
from rollproof.impl.dataplane.misses import Claim, claim_of, missing_names
from rollproof.impl.staged_row import staged_row
from rollproof.spec.rejections import Code, Rejected

LOGGER: Final = logging.getLogger(__name__)
STAGED_TAGS: Final = (
    *("rollout_id", "model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("digest", "schema_version"),
)
"""Fields that the tags of a staged row repeat from its record, for tools that list a partition without reading it."""


def call_plane(client: Any, method: str, **arguments: Any) -> Any:
    """Call a data plane's method: on a local object, or on a Ray actor handle, waiting for the result.

    Errors are the plane's own. A Ray task error is also an instance of the error that it wraps.
    """
    bound = getattr(client, method)
    remote = getattr(bound, "remote", None)
    if remote is None:
        return bound(**arguments)
    import ray

    return ray.get(remote(**arguments))


def put_staged(client: Any, partition: str, keys: Sequence[str], records: Sequence[Any], fields: Any) -> None:
    """Put staged rows, with the tags of their records. The data plane's errors propagate."""
    tags = [{name: getattr(record, name) for name in STAGED_TAGS} for record in records]
    call_plane(client, "put_samples", sample_ids=list(keys), partition_id=partition, fields=fields, tags=tags)


MOST_READS: Final = 3
"""How often one batch of rows is read at most, to tell a missing row or column from an outage (D15)."""


class FewerRows(Rejected):
    """A read was answered with fewer rows than it asked for; ``answer`` has ``count``."""

    def __init__(self, answer: Answer, keys: Sequence[str]) -> None:
        self.answer, self.count = answer, int(answer.batch_size[0])
        super().__init__(
            Code.MISSING_STAGING_ROW,
            f"{first_of(keys)}: {fault('staged row', None, f'one ({self.count} of {len(keys)} rows are there)')}",
        )


def _missing(error: Exception, keys: Sequence[str]) -> Rejected:
    """Return the rejection because of rows that a plane says are missing: by their keys where it says which."""
    named = missing_names(error, keys)
    where = first_of([key for key in keys if key in named] or keys)
    return Rejected(Code.MISSING_STAGING_ROW, f"{where}: {fault('staged row', None, f'one ({error})')}")


def _incomplete(error: Exception, keys: Sequence[str], columns: Sequence[str]) -> Rejected:
    """Return the rejection because of a column that a plane says twice is missing: of a row where it says which."""
    where = first_of([key for key in keys if key in missing_names(error, keys)] or keys)
    column = first_of([name for name in columns if name in missing_names(error, columns)])
    return Rejected(Code.INVALID_STAGING_ROW, f"{where}: {fault(column, None, f'a column ({error})')}")


@frozen(eq=False)
class StagingSource:
    """Reads staged rows of one partition."""

    dp_client: Any
    partition: str

    def __attrs_post_init__(self) -> None:
        as_plane("dp_client", self.dp_client, ("get_samples",))
        as_name("partition", self.partition)

    def read(self, keys: Sequence[str], columns: Sequence[str], optional: Sequence[str] = ()) -> Answer:
        """Return the rows of ``keys`` in that order, with those of the columns that all rows have.

        Raises ``Rejected(MISSING_STAGING_ROW)`` where the plane says that a row is not there: by fewer rows, or by
        ``MissingRows``. Every other exception propagates as it is, whatever its type.

        Some planes of others raise ``KeyError`` for an absent row or column (D26). One that names a column or a row of
        this read is repeated, without ``optional``: if it then answers, an optional column was absent;
        if it says the same once more, the row is missing, or the staged rows lack a column that they must have:
        ``Rejected(INVALID_STAGING_ROW)``. A plane that takes back what it said had an outage: its error propagates.
        """
        said: tuple[Claim, str] | None = None
        last: Exception | None = None
        for attempt in range(MOST_READS):
            asked = list(columns) if attempt else [*columns, *optional]
            try:
                answer = self._get(list(keys), asked)
            except Exception as error:
                claim = claim_of(error, keys, asked)
                if claim is None:
                    raise
                if claim is Claim.MISSING:
                    raise _missing(error, keys) from error
                if said == (claim, str(error)):
                    raise (_missing(error, keys) if claim is Claim.ROW else _incomplete(error, keys, asked)) from error
                said, last = (claim, str(error)), error
                continue
            answer = self._checked(answer, keys)
            if last is None or (attempt == 1 and optional and said is not None and said[0] is Claim.COLUMN):
                return answer
            break
        assert last is not None
        raise last

    def count(self, keys: Sequence[str], column: str) -> int:
        """Return how many of the rows are there, as far as the plane says; every row has ``column``.

        Raises ``Rejected(MISSING_STAGING_ROW)`` where it says only that some are missing, and what ``read`` raises.
        """
        try:
            self.read(keys, [column])
        except FewerRows as fewer:
            return fewer.count
        return len(keys)

    def holds(self, key: str, fields: TensorDictBase) -> bool | None:
        """Return whether the row under this key holds these columns, byte for byte; None where there is no row."""
        try:
            self.read([key], ["digest_bytes"])
        except Rejected:
            return None
        names = [str(name) for name in fields.keys()]  # noqa: SIM118 - a TensorDict iterates over its rows
        try:
            answer = self.read([key], names)
            rows = [(column_rows(answer.get(name, None))[0], fields.get(name)[0]) for name in names]
        except (Rejected, ValueError):
            return False
        return all(_same_bytes(mine, theirs) for mine, theirs in rows)

    def has_read(self, keys: Sequence[str], columns: Sequence[str]) -> bool:
        """Return whether ``read`` needs no data plane for these columns of these rows."""
        return False

    def _get(self, keys: list[str], columns: list[str]) -> Any:
        try:
            return call_plane(
                self.dp_client, "get_samples", sample_ids=keys, partition_id=self.partition, select_fields=columns
            )
        except Rejected as error:
            raise RuntimeError(f"the data plane failed with an error of the contract: {error}") from error

    def _checked(self, answer: Answer, keys: Sequence[str]) -> Answer:
        """Return the answer, if it holds as many rows as requested; ``RuntimeError`` for more, or for no batch."""
        shape = getattr(answer, "batch_size", None)
        if shape is None or len(shape) != 1:
            raise RuntimeError(f"the data plane answered a {type(answer).__name__} for rows of {self.partition!r}")
        if shape[0] < len(keys):
            raise FewerRows(answer, keys)
        if shape[0] > len(keys):
            raise RuntimeError(f"the data plane answered {shape[0]} rows for {len(keys)} keys of {self.partition!r}")
        return answer


@frozen(eq=False)
class StagingSink:
    """Stages one call per data-plane row. Thread-safe where the data plane is."""

    dp_client: Any
    staging_partition: str
    capture_media: bool = False
    """Whether the partition carries media columns: one or the other for all of its rows."""
    media_pixel_dtype: torch.dtype | None = None
    """The dtype of all pixels of the partition, with ``capture_media``: a column has one dtype over all live rows."""

    def __attrs_post_init__(self) -> None:
        if self.capture_media and self.media_pixel_dtype is None:
            raise ValueError("a staging partition that carries media needs media_pixel_dtype")

    def stage(self, record: Any, *, attachments: Mapping[str, Any] | None = None) -> Any:
        """Make one call durable with a single write, or find that it is already.

        ``record`` has the attributes of nemo-gym's ``StagedCallRecord``; its log-probabilities are rounded to float32,
        over which its digest is. ``attachments`` are the call's processed media. Returns nemo-gym's ``StageResult``,
        which names the staging key whether or not the call was staged.

        A call that breaks a rule of sections 1 or 3 is not written, and a failed write is discarded as far as the data
        plane lets it. A call that is staged again is a success if its row holds the same bytes; otherwise it is refused
        and the earlier row stays as it is. All of this is reported in the result, never raised.
        Raises ``ImportError`` where nemo-gym is not installed, since its capture core takes no other result.
        """
        result = _stage_result()
        key = f"{record.rollout_id}/{record.model_call_id}"
        try:
            fields = staged_row(record, attachments, self.media_pixel_dtype if self.capture_media else None)
        except Exception as error:
            return result(ok=False, staging_key=key, error=f"{key}: cannot be staged: {error}")
        try:
            held = StagingSource(self.dp_client, self.staging_partition).holds(key, fields)
            if held is not None:
                other = None if held else f"{key}: another call is staged under this key"
                return result(ok=held, staging_key=key, error=other)
        except Exception as error:
            return result(ok=False, staging_key=key, error=f"{key}: {_from_plane(error)}; nothing was written")
        try:
            put_staged(self.dp_client, self.staging_partition, [key], [record], fields)
        except Exception as error:
            self._discard(key)
            return result(ok=False, staging_key=key, error=f"{key}: {_from_plane(error)}")
        return result(ok=True, staging_key=key)

    def clear(self, keys: Sequence[str]) -> None:
        """Remove staged rows. The data plane's errors propagate."""
        if keys:
            call_plane(self.dp_client, "clear_samples", sample_ids=list(keys), partition_id=self.staging_partition)

    def _discard(self, key: str) -> None:
        """Remove what a failed write may have left. There was no row before it."""
        try:
            self.clear([key])
        except Exception:
            LOGGER.exception("orphaned: the failed write of %s in %r cannot be undone", key, self.staging_partition)


def _same_bytes(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether two rows of a column are one value; a scalar may have a dimension more."""
    scalars = mine.numel() == theirs.numel() == 1
    if mine.dtype is not theirs.dtype or not (scalars or mine.shape == theirs.shape):
        return False
    left, right = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in (mine, theirs))
    return torch.equal(left, right)


def _from_plane(error: Exception) -> str:
    return f"{type(error).__name__} from the data plane: {error}"


def _stage_result() -> Any:
    try:
        from nemo_gym.token_id_capture.staging import StageResult
    except ImportError as error:
        raise ImportError("StagingSink answers with nemo-gym's StageResult: install nemo-gym") from error
    return StageResult
