"""What a finalizer returns, by the names of its reference page (sections 5 and 8), and what it keeps in between."""

from __future__ import annotations

import dataclasses
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from attrs import cmp_using, define, field, frozen
from numpy.typing import NDArray

from rollproof.impl.lineage import ChainRow
from rollproof.impl.records import ReceiptColumns
from rollproof.spec.records import RouteAssemblyPlan
from rollproof.spec.rejections import Rejected

Dims: TypeAlias = tuple[int, int]
"""(layers, top-k) of a model's routes."""


@frozen(eq=False, repr=False)
class RowColumns:
    """The token columns of one row, ``[T]`` each."""

    token_ids: NDArray[np.int64]
    token_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"<{len(self)} tokens>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowColumns):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("token_ids", "token_mask", "logprobs"))
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def empty(cls) -> RowColumns:
        """The columns of a rejected rollout."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32))


def _same_tensor(mine: torch.Tensor | None, theirs: torch.Tensor | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine.dtype is theirs.dtype and torch.equal(mine, theirs)


@define(slots=False)
class FinalizedRollout:
    """One rollout's canonical row, or its rejection (section 5).

    The row is held as ``columns``; ``token_ids``, ``token_mask`` and ``logprobs`` are made from it when asked for.
    """

    rollout_id: str
    valid: bool
    rejection_reason: str | None
    reward: float
    staging_keys: list[str] = field(factory=list)
    columns: RowColumns = field(factory=RowColumns.empty)
    prompt_len: int = 0
    min_wv: int | None = None
    max_wv: int | None = None
    routed_experts: torch.Tensor | None = field(default=None, eq=cmp_using(eq=_same_tensor), repr=False)
    """``[T, L, K]`` int16, in direct router replay."""
    route_plan: RouteAssemblyPlan | None = field(default=None, repr=False)
    media: dict[str, Any] | None = field(default=None, eq=False, repr=False)

    @cached_property
    def token_ids(self) -> list[int]:
        """The row's token ids."""
        values: list[int] = self.columns.token_ids.tolist()
        return values

    @cached_property
    def token_mask(self) -> list[float]:
        """1.0 for tokens that the policy generated, 0.0 for the others."""
        values: list[float] = self.columns.token_mask.tolist()
        return values

    @cached_property
    def logprobs(self) -> list[float]:
        """Log-probabilities of the generated tokens, 0.0 for the others."""
        values: list[float] = self.columns.logprobs.tolist()
        return values


@define
class FinalizedGroup:
    """What ``finalize_group`` returns (section 8)."""

    meta: Any
    """The published batch's metadata (``KVBatchMeta``), or None where the group was dropped."""
    group_min_wv: int
    group_max_wv: int
    staging_keys: list[str]
    canonical_output_tokens: int = 0
    metrics: dict[str, float] = field(factory=dict)
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
    """Batch metadata of NeMo RL's own class where that is installed, of ours otherwise."""
    return _meta_class()(**fields)


@cache
def _meta_class() -> Any:
    try:
        from nemo_rl.data_plane import KVBatchMeta as TheirMeta
    except ImportError:
        return KVBatchMeta
    return TheirMeta


@frozen(eq=False)
class RolloutOutcome:
    """A finalized rollout and what the group needs to know about it."""

    rollout: FinalizedRollout
    receipt: ReceiptColumns | None = None
    """The receipt, where it parsed."""
    row: ChainRow | None = None
    """The verified chain, where the rollout was accepted."""
    routed_lens: NDArray[np.int64] | None = None
    """``[K]``: staged route tokens per call of the chain, where the rollout was accepted."""
    dims: Dims | None = None
    """(L, K) after this rollout (D10)."""
    media_has_frames: bool = False
    """Whether the rollout's media are videos."""

    def rejected(self, reason: Rejected, dims: Dims | None) -> RolloutOutcome:
        """This accepted rollout turned into a rejected one; it teaches nothing."""
        accepted = self.rollout
        rollout = FinalizedRollout(
            accepted.rollout_id,
            valid=False,
            rejection_reason=reason.reason,
            reward=accepted.reward,
            staging_keys=accepted.staging_keys,
        )
        return RolloutOutcome(rollout, self.receipt, dims=dims)
