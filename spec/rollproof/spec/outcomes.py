"""What finalizing a rollout or a group amounts to: the result, the effects it took, and how it failed."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from rollproof.spec.plane import Effect, PublishedRow, Put
from rollproof.spec.records import FinalizedGroup, FinalizedRollout, LinearizedRow, Receipt
from rollproof.spec.rejections import Rejected

Dims: TypeAlias = tuple[int, int]
"""(layers, top-k) of a model's routes."""


@frozen
class RolloutOutcome:
    """A finalized rollout, the reads it took, and what later steps need to know about it."""

    rollout: FinalizedRollout
    effects: tuple[Effect, ...] = ()
    receipt: Receipt | None = None
    """The receipt, where it parsed."""
    row: LinearizedRow | None = None
    """The verified chain, where the rollout was accepted."""
    route_lengths: tuple[int, ...] = ()
    """Staged route tokens per call of the chain, with router replay."""
    dims: Dims | None = None
    """(L, K) after this rollout (decision D10)."""
    media_has_frames: bool = False
    """Whether the rollout's media are videos; the trainer's layout does not say it of videos of one frame."""

    def rejected(self, reason: Rejected, dims: Dims | None) -> RolloutOutcome:
        """This accepted rollout turned into a rejected one; it teaches nothing."""
        rollout = FinalizedRollout(
            rollout_id=self.rollout.rollout_id,
            valid=False,
            rejection_reason=reason.reason,
            reward=self.rollout.reward,
            staging_keys=self.rollout.staging_keys,
        )
        return RolloutOutcome(rollout, self.effects, self.receipt, dims=dims)


class Failure(StrEnum):
    """Why a finalization raised instead of returning a group."""

    CALLER = "caller"
    """The arguments contradict each other (decision D13): a ValueError, before any read."""
    READ = "read"
    """The data plane failed while reading: its own error, before any write."""
    ROUTES_UNKNOWN = "routes_unknown"
    """Router replay is on, a row is valid, and nothing says how many layers and experts a route has."""
    PUT = "put"
    """The publication failed; staging is whole."""
    CLEAR = "clear"
    """The rows are published, staging could not be cleared; the error names partition and keys."""


@frozen
class GroupOutcome:
    """What one call of ``finalize_group`` did: its effects, and either a group or a failure."""

    effects: tuple[Effect, ...]
    group: FinalizedGroup | None = None
    failure: Failure | None = None
    rollouts: tuple[FinalizedRollout, ...] = field(default=(), eq=False)
    dims: Dims | None = field(default=None, eq=False)

    @property
    def rows(self) -> tuple[PublishedRow, ...] | None:
        """The rows that were put, or None where there was no put."""
        return next((effect.rows for effect in self.effects if isinstance(effect, Put)), None)
