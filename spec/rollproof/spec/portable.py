"""Records of the portable areas: what every framework holds in memory, with or without receipts.

A *call* is what an engine was asked and what it answered; its *context* is prompt and generation. The calls of one
rollout, in order, are a *session*. A *row* is what a trainer learns from. Nothing here prescribes how many rows a
session becomes, or how they are laid out: the portable chapter of the contract says what a row may train.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias

from attrs import frozen

# ── merge ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Call:
    """One model call. ``log_probs[i]`` belongs to ``generated_ids[i]``; None where the engine recorded none."""

    prompt_ids: tuple[int, ...]
    generated_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None = None
    finish_reason: str = "stop"
    """``stop`` or ``length``."""

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and generation."""
        return self.prompt_ids + self.generated_ids


@frozen
class Row:
    """One training row. ``mask[i]`` is 1 where ``ids[i]`` is trained, else 0.

    ``log_probs`` is None for a row without, and holds None where a position has none. ``attention[i]`` is 0 where
    position i is padding; None for a row in which padding, if there is any, comes after the last trained token.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    log_probs: tuple[float | None, ...] | None = None
    attention: tuple[int, ...] | None = None


@frozen
class Merged:
    """The rows of a session, and the calls whose tokens are not all trained: index of the call, and the policy."""

    rows: tuple[Row, ...]
    dropped: tuple[tuple[int, str], ...] = ()


# ── route-align ─────────────────────────────────────────────────────────────────────────────────────────────────────

Vector: TypeAlias = tuple[tuple[int, ...], ...]
"""The experts of one token: a tuple of ``top_k`` ids per layer."""


@frozen
class Captured:
    """Routes of a call's context from position ``start`` on, one vector each; never one for the last token."""

    start: int
    vectors: tuple[Vector, ...]


@frozen
class RoutedRow:
    """A training row with one vector per position; ``fill[i]`` is 1 where ``routes[i]`` is a fill.

    ``mask`` and ``attention`` as in ``Row``.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    routes: tuple[Vector, ...]
    fill: tuple[int, ...] | None = None
    attention: tuple[int, ...] | None = None


# ── advantage ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class ScoredRow:
    """One row of a batch: ``group`` names the prompt that it answers, ``rollout`` the rollout that it is a part of.

    Rollouts have one name in the whole batch, and all rows of one have its ``reward``; ``row`` numbers them from 0.
    Two groups may have equal ``prompt_ids``. ``trained`` is False where the row's mask is 0 everywhere.
    """

    group: str
    rollout: str
    prompt_ids: tuple[int, ...]
    reward: float
    trained: bool = True
    row: int = 0


# ── media-rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


Grid: TypeAlias = tuple[int, int, int]
"""Frames, height and width, counted in patches."""


@frozen
class MediaItem:
    """One image or video: its ``grid``, and one number per pixel row, which no other pixel row of a request has."""

    grid: Grid
    pixel_rows: tuple[int, ...]


@frozen
class MediaRollout:
    """The tokens of one rollout, and its items in the order of their placeholders.

    ``mask[i]`` is 1 where ``ids[i]`` was sampled. Placeholders are those that were not.
    """

    rollout: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    items: tuple[MediaItem, ...] = ()


@frozen
class MediaRow:
    """A training row of a rollout: its tokens, and the grids and pixel rows of all its items, back to back.

    ``mask[i]`` is 1 where ``ids[i]`` is trained. ``placeholders`` are the positions at which the trainer puts
    embeddings, in a row that says so; None for one in which it does so wherever the placeholder's id is.
    """

    rollout: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    grids: tuple[Grid, ...]
    pixel_rows: tuple[int, ...]
    placeholders: tuple[int, ...] | None = None


# ── policies ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Policy(StrEnum):
    """A choice that an implementation declares; without the declaration, the same answer is a fault."""

    # merge: tokens that are not trained
    DEAD_BRANCH = "dead-branch"
    DRIFT = "drift"
    OVER_LIMIT = "over-limit"
    EXTEND_ONLY = "extend-only"
    # merge: how a row is written
    CONTEXT_LOGPROBS = "context-logprobs"
    SHIFTS_LABELS = "shifts-labels"
    # route-align
    SENTINEL = "sentinel"
    MARKED = "marked"
    LAST_ROW_NATIVE = "last-row-native"
    # advantage
    MASKED_VOTE = "masked-vote"
    ROWS_VOTE = "rows-vote"
    SINGLETON_RAW = "singleton-raw"
    UNCENTERED = "uncentered"
    COARSE = "coarse"


POLICIES: Final[dict[Policy, str]] = {
    Policy.DEAD_BRANCH: "A call that the last call's context does not begin with is dropped.",
    Policy.DRIFT: "A call whose context a later prompt shares and then departs from is dropped.",
    Policy.OVER_LIMIT: "A call is dropped whose context, or one that continues it, is longer than max_len.",
    Policy.EXTEND_ONLY: "From the first call on that does not extend the one before, calls are dropped.",
    Policy.CONTEXT_LOGPROBS: "A position that is not trained may hold the log-prob with which it was sampled.",
    Policy.SHIFTS_LABELS: "Mask and log-probs of position i are those of the token at i + 1.",
    Policy.SENTINEL: "A vector in which no id names an expert is a fill.",
    Policy.MARKED: "A position that the row's fill mask marks is a fill.",
    Policy.LAST_ROW_NATIVE: "The last position of a row holds any vector of expert ids.",
    Policy.MASKED_VOTE: "A row that trains nothing counts in its group.",
    Policy.ROWS_VOTE: "A rollout counts as often as it has rows.",
    Policy.SINGLETON_RAW: "In a group of one rollout a row's value is its reward.",
    Policy.UNCENTERED: "A constant added to all rewards of a group changes values.",
    Policy.COARSE: "Two rewards of a group may give one value.",
}
"""Every policy, with what it permits. What is not declared is not permitted."""

DROPS: Final = (Policy.DEAD_BRANCH, Policy.DRIFT, Policy.OVER_LIMIT, Policy.EXTEND_ONLY)
"""The policies that ``Merged.dropped`` may name."""
