"""A data plane that records what a finalizer does to it, and fails where a request says so.

It wraps a real data plane and has NeMo RL's three methods. What it records are the spec's effects, so that an
implementation's reads and writes can be compared with the contract's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import torch
from attrs import define, evolve, field, fields, frozen
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import has_new_answers, new_answers
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.properties.adapters.forms import with_forms
from rollproof.properties.adapters.padding import rows_without_padding
from rollproof.properties.adapters.tensors import from_torch, named_columns, single_row, stage_rows
from rollproof.properties.strategies.rollouts.recipes import Form, OddColumn
from rollproof.spec.constants import FLAG_COLUMNS, SCALAR_COLUMNS
from rollproof.spec.judge.staging import NO_FAULTS, Faults, OnMiss, Staging
from rollproof.spec.plane import Clear, Effect, Get, PublishedRow, Put

OUTAGES: Final[tuple[Callable[[str], Exception], ...]] = (
    ConnectionError,
    TimeoutError,
    ValueError,
    KeyError,
    RuntimeError,
    OSError,
    lambda text: json.JSONDecodeError(text, "", 0),
    lambda text: UnicodeDecodeError("utf-8", b"\xff", 0, 1, text),
    LookupError,
)
"""What a failing operation raises, in turn. None of them says that a row is missing, whatever its type."""


@frozen
class Manner:
    """How a plane answers, within what the protocol allows: it follows from what is staged, and changes no answer."""

    reversed_columns: bool = False
    extra_column: bool = False
    scalars_as_vectors: bool = False
    """Scalars as ``[N, 1]``."""
    dense: bool = False
    """Rows of one shape as one dense tensor; else as the inner plane has it."""
    column_error: bool = False
    """A ``KeyError`` that names an absent column, instead of an answer without it (D26)."""

    @classmethod
    def of(cls, staging: Staging) -> Manner:
        """Return the manner of a request's plane."""
        bits = zlib.crc32("\0".join(staging.rows).encode("utf-8", "surrogatepass"))
        return cls(*(bool(bits >> bit & 1) for bit in range(len(fields(cls)))))

    def answer(self, given: TensorDict, keys: Sequence[str], asked: Sequence[str]) -> TensorDict:
        """Return an answer in this manner. Raises ``KeyError``, unless rows are missing too: that comes first."""
        count = given.batch_size[0]
        columns = {str(name): column for name, column in given.items()}
        absent = [name for name in asked if name not in columns]
        if absent and count == len(keys) and self.column_error:
            raise KeyError(f"field {absent[0]!r} was not produced")
        changed: dict[str, torch.Tensor] = {}
        for name, column in columns.items():
            if self.dense and isinstance(column, torch.Tensor) and column.is_nested:
                rows = column_rows(column)
                if len({row.shape for row in rows}) == 1:
                    changed[name] = torch.stack(rows)
            elif self.scalars_as_vectors and name in SCALARS and isinstance(column, torch.Tensor) and column.dim() == 1:
                changed[name] = column[:, None]
        if not (changed or self.reversed_columns or self.extra_column):
            return given
        names = sorted(columns, reverse=True) if self.reversed_columns else list(columns)
        extra = {"unasked": torch.zeros(count)} if self.extra_column else {}
        columns |= changed
        return TensorDict({name: columns[name] for name in names} | extra, batch_size=[count])


SCALARS: Final = {*SCALAR_COLUMNS, *FLAG_COLUMNS}
"""The columns of one value per row, which some planes answer as ``[N, 1]``."""

CONFIRMATIONS: Final = 2
"""How often a read may be repeated after a ``KeyError`` that names a requested row or column (D15, D26)."""


@define
class Claimed:
    """A read that was answered with an error that a row or a column is missing (decision D26)."""

    read: Get
    repeated: int = field(default=0, kw_only=True)

    def is_repeated_by(self, read: Get) -> bool:
        """Return whether a read requests the same rows again, to confirm the error, and no other columns."""
        same = (read.partition, read.keys) == (self.read.partition, self.read.keys)
        return same and self.repeated < CONFIRMATIONS and set(read.columns) <= set(self.read.columns)


AnyClaimed = TypeVar("AnyClaimed", bound=Claimed)


def take_repeated(claims: Sequence[AnyClaimed], read: Get) -> AnyClaimed | None:
    """Return the last claim that a read repeats, and count that; None for a read of its own."""
    claimed = next((one for one in reversed(claims) if one.is_repeated_by(read)), None)
    if claimed is not None:
        claimed.repeated += 1
    return claimed


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
    manner: Manner = Manner()
    forms: dict[str, dict[str, Form]] = field(factory=dict)
    """By staging key, the columns that a read of it hands over in an odd form."""
    claims: list[Claimed] = field(factory=list)
    """The step's reads that may be repeated to confirm what they said; that does not count as another effect."""

    @classmethod
    def over(cls, inner: Any, staging: Staging, partition: str, pad_token_id: int = 0) -> RecordingPlane:
        """Return a recorder over ``inner``, into which every row of ``staging`` is put first, one put per row."""
        manner = Manner.of(staging)
        if isinstance(inner, MemoryDataPlane):
            # It answers densely itself, and takes rows as they are: the same, without a batch for every row.
            inner.dense, manner = manner.dense, evolve(manner, dense=False)
            inner.put_rows({key: single_row(row) for key, row in staging.rows.items()}, partition)
        else:
            stage_rows(inner, partition, staging.rows)
        kind = _RecordingNew if has_new_answers(inner) else cls
        plane = kind(inner, staging.on_miss, pad_token_id, faults=staging.faults, manner=manner)
        for key, row in staging.rows.items():
            plane.held.add(key)
            plane.forms[key] = {name: value.form for name, value in row.items() if isinstance(value, OddColumn)}
        return plane

    def begin(self, faults: Faults) -> None:
        """Forget the effects of the last step; ``faults`` are those of the new one."""
        self.effects, self.faults, self.raised, self.claims = [], faults, None, []

    def _fail(self, operation: str) -> None:
        kind = OUTAGES[len(self.held) % len(OUTAGES)]
        self.raised = kind(f"injected outage of {operation}")
        raise self.raised

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> TensorDict:
        """Read a batch, as the inner plane answers it, or in another of the ways to say "not there"."""
        read = Get(partition_id, tuple(sample_ids), tuple(select_fields))
        claimed = take_repeated(self.claims, read)
        if claimed is None:
            reads = sum(isinstance(effect, Get) for effect in self.effects)
            self.effects.append(read)
            if self.faults.failing_get == reads:
                self._fail("get_samples")
        absent = [key for key in sample_ids if key not in self.held]
        if absent and self.on_miss is OnMiss.KEY_ERROR:
            self.claims += [] if claimed else [Claimed(read)]
            raise KeyError(absent[0])
        if len(absent) == len(sample_ids) and self.on_miss is OnMiss.EMPTY:
            return TensorDict({}, batch_size=[0])
        answer: TensorDict = self.inner.get_samples(
            sample_ids=list(sample_ids), partition_id=partition_id, select_fields=list(select_fields)
        )
        forms = {name: form for key in sample_ids for name, form in self.forms.get(key, {}).items()}
        if forms:
            odd: TensorDict = with_forms(answer, forms)
            return odd
        try:
            return self.manner.answer(answer, sample_ids, select_fields)
        except KeyError:
            self.claims += [] if claimed else [Claimed(read)]
            raise

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: Sequence[dict[str, Any]] | None = None,
    ) -> Any:
        """Publish rows."""
        self.effects.append(Put(partition_id, tuple(sample_ids), published_rows(fields, tags, self.pad_token_id)))
        if self.faults.put:
            self._fail("put_samples")
        return self.inner.put_samples(sample_ids=list(sample_ids), partition_id=partition_id, fields=fields, tags=tags)

    def clear_samples(self, sample_ids: Sequence[str], partition_id: str) -> None:
        """Remove rows."""
        self.effects.append(Clear(partition_id, tuple(sample_ids)))
        if self.faults.clear:
            self._fail("clear_samples")
        self.held.difference_update(sample_ids)
        self.inner.clear_samples(sample_ids=list(sample_ids), partition_id=partition_id)


class _RecordingNew(RecordingPlane):
    """A recorder over a plane that never uses the memory of an answer again."""

    @new_answers
    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> TensorDict:
        """Read a batch."""
        return super().get_samples(sample_ids, partition_id, select_fields)


def published_rows(
    fields: TensorDict | None, tags: Sequence[dict[str, Any]] | None, pad_token_id: int
) -> tuple[PublishedRow, ...]:
    """Return what a put publishes, row by row, without padding."""
    columns = {} if fields is None else {name: list(map(from_torch, rows)) for name, rows in named_columns(fields)}
    count = len(tags or ()) if fields is None else fields.batch_size[0]
    if tags is not None and len(tags) != count:
        raise ValueError(f"{len(tags)} tags for {count} rows")
    return rows_without_padding(columns, [{}] * count if tags is None else tags, pad_token_id)
