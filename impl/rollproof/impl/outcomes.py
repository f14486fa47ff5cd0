"""The results of a finalizer, by the names of its reference page (sections 5 and 8), and what it keeps in between.

Results are frozen standard dataclasses with NeMo RL's field names in its order: its callers take them apart with
``dataclasses.fields``, copy them with ``dataclasses.replace``, and refuse anything else at an actor's boundary.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from rollproof.impl.lineage import ChainRow
from rollproof.impl.plan import RouteAssemblyPlan
from rollproof.impl.records import ReceiptColumns
from rollproof.impl.sampler import SampledTokens
from rollproof.spec.rejections import Rejected

Dims: TypeAlias = tuple[int, int]
"""(layers, top-k) of a model's routes."""


@frozen(eq=False)
class RowColumns:
    """The token columns of one row, ``[T]`` each."""

    token_ids: NDArray[np.int64]
    token_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_ids)

    @classmethod
    def empty(cls) -> RowColumns:
        """Return the columns of a rejected rollout."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32))


@dataclasses.dataclass(frozen=True, eq=False)
class FinalizedRollout:
    """One rollout's canonical row, or its rejection with empty columns (section 5).

    Two are equal if all their fields are, tensors bit for bit in dtype, shape and values.
    """

    rollout_id: str
    valid: bool
    rejection_reason: str | None
    token_ids: list[int]
    token_mask: list[float]
    """1.0 for tokens that the policy generated, 0.0 for the others."""
    logprobs: list[float]
    prompt_len: int
    reward: float
    staging_keys: list[str]
    min_wv: int | None = None
    max_wv: int | None = None
    routed_experts: torch.Tensor | None = dataclasses.field(default=None, repr=False)
    """``[T, L, K]`` int16, in direct router replay."""
    route_plan: RouteAssemblyPlan | None = dataclasses.field(default=None, repr=False)
    media: dict[str, Any] | None = dataclasses.field(default=None, repr=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FinalizedRollout):
            return NotImplemented
        names = (one.name for one in dataclasses.fields(self))
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _same(mine: Any, theirs: Any) -> bool:
    """Return whether two values of a field are equal; media are compared by the tensors that they pack."""
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return mine.dtype is theirs.dtype and torch.equal(mine, theirs)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(
            _same(mine[name].as_tensor(), theirs[name].as_tensor()) for name in mine
        )
    return bool(mine == theirs)


@dataclasses.dataclass(frozen=True)
class FinalizedGroup:
    """The result of ``finalize_group`` (section 8)."""

    meta: Any
    """The published batch's metadata (``KVBatchMeta``), or None where the group was dropped."""
    group_min_wv: int
    group_max_wv: int
    staging_keys: list[str]
    canonical_output_tokens: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    dropped: bool = False
    drop_reason: str | None = None
    valid_row_count: int = 0
    total_row_count: int = 0


@dataclasses.dataclass
class KVBatchMeta:
    """Batch metadata with the fields of NeMo RL's class of this name, for where NeMo RL is not installed."""

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, Any] = dataclasses.field(default_factory=dict)
    tags: list[dict[str, Any]] | None = None

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.sample_ids)


def batch_meta(**fields: Any) -> Any:
    """Return batch metadata of NeMo RL's own class where that is installed, of ours otherwise."""
    return _meta_class()(**fields)


@cache
def _meta_class() -> Any:
    try:
        from nemo_rl.data_plane import KVBatchMeta as TheirMeta
    except ImportError:
        return KVBatchMeta
    return TheirMeta


@frozen(eq=False)
class FinalizedRow:
    """A finalized rollout as a group handles it: what ``FinalizedRollout`` holds, with its tokens as columns."""

    rollout_id: str
    valid: bool
    rejection_reason: str | None
    reward: float
    staging_keys: list[str] = field(factory=list)
    columns: RowColumns = field(factory=RowColumns.empty)
    prompt_len: int = 0
    min_wv: int | None = None
    max_wv: int | None = None
    routed_experts: torch.Tensor | None = field(default=None, repr=False)
    route_plan: RouteAssemblyPlan | None = field(default=None, repr=False)
    media: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def code(self) -> str:
        """The code that rejected the rollout, empty for a valid row."""
        return (self.rejection_reason or "").partition(":")[0]

    def result(self) -> FinalizedRollout:
        """Return the row with its columns as lists."""
        return FinalizedRollout(
            rollout_id=self.rollout_id,
            valid=self.valid,
            rejection_reason=self.rejection_reason,
            token_ids=self.columns.token_ids.tolist(),
            token_mask=self.columns.token_mask.tolist(),
            logprobs=self.columns.logprobs.tolist(),
            prompt_len=self.prompt_len,
            reward=self.reward,
            staging_keys=self.staging_keys,
            min_wv=self.min_wv,
            max_wv=self.max_wv,
            routed_experts=self.routed_experts,
            route_plan=self.route_plan,
            media=self.media,
        )


@frozen(eq=False)
class RolloutOutcome:
    """A finalized rollout and what the group needs to know about it."""

    rollout: FinalizedRow
    receipt: ReceiptColumns | None = None
    """The receipt, where it parsed."""
    own_keys: list[str] = field(factory=list)
    """The staging keys that the rollout owns, its receipt parsed or not (D14, D34)."""
    row: ChainRow | None = None
    """The verified chain, where the rollout was accepted."""
    routed_lens: NDArray[np.int64] | None = None
    """``[K]``: staged route tokens per call of the chain, where the rollout was accepted."""
    dims: Dims | None = None
    """(L, K) after this rollout (D10)."""
    media_has_frames: bool = False
    """Whether the rollout's media are videos."""
    staged_routes: bool = False
    """Whether some staged row of the rollout says that it has routes, accepted or not."""
    unproven_media: int = 0
    """In a media partition, how many calls of the chain have extras that nobody could compare with their commitment."""
    untrained_tokens: int = 0
    """How many tokens the manifest's calls beside the chain generated."""
    stray_placeholders: int = 0
    """In a media partition, how many carry tokens would represent embeddings and are in no item."""
    stopped_for_length: bool = False
    """Whether the engine says that it stopped the chain's last call for its length (D38)."""
    topk: SampledTokens | None = None
    """The row's sampler columns, where they are wanted (section 12)."""

    def rejected(self, reason: Rejected, dims: Dims | None) -> RolloutOutcome:
        """Return this accepted rollout turned into a rejected one; it teaches nothing."""
        accepted = self.rollout
        rollout = FinalizedRow(
            accepted.rollout_id,
            valid=False,
            rejection_reason=reason.reason,
            reward=accepted.reward,
            staging_keys=accepted.staging_keys,
        )
        return RolloutOutcome(rollout, self.receipt, self.own_keys, dims=dims, staged_routes=self.staged_routes)
