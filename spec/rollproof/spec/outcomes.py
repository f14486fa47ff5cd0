"""The outcome of finalizing a rollout or a group: result, effects and failure (sections 5 and 8)."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from rollproof.spec.plane import Effect, PublishedRow, Put
from rollproof.spec.records import FinalizedGroup, FinalizedRollout, LinearizedRow, Receipt
from rollproof.spec.rejections import Rejected
from rollproof.spec.sampler import SampledTokens

Dims: TypeAlias = tuple[int, int]
"""(layers, top-k) of a model's routes."""


@frozen
class RolloutOutcome:
    """A finalized rollout, and what later steps need to know about it."""

    rollout: FinalizedRollout
    receipt: Receipt | None = None
    """The receipt, where it parsed."""
    row: LinearizedRow | None = None
    """The verified chain, where the rollout was accepted."""
    route_lengths: tuple[int, ...] = ()
    """Staged route tokens per call of the chain, with router replay."""
    media_has_frames: bool = False
    """Whether the rollout's media are videos; the trainer's layout does not say it of videos of one frame."""
    unchecked_media: tuple[str, ...] = ()
    """In a media partition, the calls of the chain whose extras could not be compared with their commitment."""
    own_keys: tuple[str, ...] = ()
    """The staging keys that the rollout owns, its receipt parsed or not (decisions D14 and D34)."""
    untrained: tuple[tuple[str, int], ...] = ()
    """The manifest's calls beside the chain, each with the tokens that it generated."""
    stray_placeholders: tuple[tuple[str, int], ...] = ()
    """The chain's calls, each with its carry tokens that would represent embeddings and are in no item."""
    stopped_for_length: bool = False
    """Whether the engine says that it stopped the last call of the chain for its length (decision D38)."""
    topk: SampledTokens | None = None
    """The row's sampler columns, where they are wanted (section 12)."""


def distinct_keys(receipt: Receipt | None) -> tuple[str, ...]:
    """Return the manifest's staging keys without repetitions, in order; none where no receipt parsed."""
    return () if receipt is None else tuple(dict.fromkeys(record.staging_key for record in receipt.manifest))


def rejected_rollout(
    rollout_id: str, reward: float, receipt: Receipt | None, own_keys: tuple[str, ...], reason: Rejected
) -> RolloutOutcome:
    """Return a rejected rollout: columns empty, weight versions null, the keys of its manifest kept."""
    rollout = FinalizedRollout(
        rollout_id, valid=False, rejection_reason=reason.reason, reward=reward, staging_keys=distinct_keys(receipt)
    )
    return RolloutOutcome(rollout, receipt, own_keys=own_keys)


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
