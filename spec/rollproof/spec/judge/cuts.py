"""Requests about generation cuts, and their answers (section 11). Off by default: the capability ``cuts``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from rollproof.spec.constants import MEDIA_SHA256
from rollproof.spec.cut_records import CutOrder, DurablePrefix, RunningCall
from rollproof.spec.judge.area import Request
from rollproof.spec.judge.staging import Staging
from rollproof.spec.judge.views import Entry
from rollproof.spec.plane import Clear, DataPlane, Effect, Outage, PublishedRow, Put
from rollproof.spec.tensor import Tensor


@frozen
class ParseCutKey(Request):
    """What a chunk's staging key says, any value: a ``CutKey``, or refused."""

    key: Any


@frozen
class CutStep:
    """What an engine generated, and then a cut.

    Before it, the worker may have died: another one restores the latest acknowledgement, or begins anew where there is
    none.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    text: bytes
    """The new tokens decoded, as UTF-8."""
    weight_version: int
    order: CutOrder
    failing_put: bool = False
    """The rows are put, and the answer to it is an error."""
    worker_dies: bool = False


@frozen
class Tail:
    """What is generated after the last cut, and the id of the call that then stages the final row."""

    model_call_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    weight_version: int
    failing_clear: bool = False


@frozen
class PlayCuts(Request):
    """Cut a call some times and complete it, or abandon it where there is no tail: a ``CutHistory``.

    ``bundle`` is None for a call without media, ``pixel_dtype`` for a partition without. Refused where the final row
    cannot be staged.
    """

    call: RunningCall
    steps: tuple[CutStep, ...]
    tail: Tail | None = None
    spans: Any = field(factory=list)
    bundle: Mapping[str, Tensor] | None = None
    pixel_dtype: str | None = None
    scheme: str = MEDIA_SHA256


@frozen
class CutHistory:
    """The answer to each cut, None for a failure; the writes of each step and then of the end; failed clears."""

    acknowledgements: tuple[DurablePrefix | None, ...]
    writes: tuple[tuple[Effect, ...], ...]
    failed_clears: int = 0


@frozen
class RestoreCut(Request):
    """Take up a call that was cut, with these weights and the media of the request processed anew: a ``RestoredCut``.

    Or refused, with a code of section 11.
    """

    call: RunningCall
    acknowledged: DurablePrefix
    staging: Staging
    weight_version: int
    spans: Any = field(factory=list)
    tensors: tuple[Entry, ...] | None = None


@frozen
class RestoredCut:
    """What the call goes on with; whether with media, and whether their tensors are the very ones handed in."""

    token_ids: tuple[int, ...]
    token_mask: tuple[float, ...]
    log_probs: tuple[float, ...]
    tokens_left: int
    weight_version: int
    with_media: bool = False
    fresh: bool = True


@frozen
class RestoredRoutes(Request):
    """A restored call's routes ``[T, L, K]``, where the prefix is ``[start, end)``: a ``Tensor``.

    Each prefill observed the tokens of one such range.
    """

    routes: Tensor
    start: int
    end: int
    prefills: tuple[tuple[int, int], ...]


@define
class CutPlane(DataPlane):
    """A data plane that holds what is put; the next put or clear may fail, after it happened."""

    failing_put: bool = False
    failing_clear: bool = False

    def put(self, partition: str, sample_ids: Any, rows: Any) -> None:
        """Stage rows."""
        super().put(partition, sample_ids, rows)
        staged: dict[str, PublishedRow] = dict(zip(sample_ids, rows, strict=True))
        self.rows = {**self.rows, **{key: row.columns for key, row in staged.items()}}
        if self.failing_put:
            raise Outage("the data plane failed while writing")

    def clear(self, partition: str, keys: Any) -> None:
        """Remove rows."""
        super().clear(partition, keys)
        if self.failing_clear:
            raise Outage("the data plane failed while removing")

    def take_writes(self) -> tuple[Effect, ...]:
        """Return the writes since the last time."""
        writes = tuple(effect for effect in self.effects if isinstance(effect, Put | Clear))
        self.effects = []
        return writes
