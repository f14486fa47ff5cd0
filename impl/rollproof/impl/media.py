"""Media of a rollout and of a group (section 7): the seams, until the chapter is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rollproof.impl.lineage import ChainRow
from rollproof.impl.outcomes import Dims, FinalizedRollout, RolloutOutcome
from rollproof.impl.staged import StagedColumns
from rollproof.spec.records import ReassemblerConfig


def rollout_media(
    config: ReassemblerConfig, row: ChainRow, staged: StagedColumns, source: Any
) -> dict[str, Any] | None:
    """The media of a verified chain, by field, or None. ``source`` reads staged columns (``StagingSource``)."""
    raise NotImplementedError


def fit_into_group(outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome], dims: Dims | None) -> RolloutOutcome:
    """``outcome``, or its rejection where its media do not fit the group's first media row (D19)."""
    raise NotImplementedError


def group_fields(rollouts: Sequence[FinalizedRollout]) -> dict[str, torch.Tensor]:
    """The media columns of a group, one logical row per rollout; empty where no rollout has media."""
    raise NotImplementedError


def row_shape_tags(fields: Mapping[str, torch.Tensor], index: int) -> dict[str, Any]:
    """The ``<field>__row_shapes`` tags of one row."""
    raise NotImplementedError


def staged_columns(attachments: Mapping[str, Any] | None, metadata: bytes) -> dict[str, torch.Tensor]:
    """The media columns of one staged call of a partition that carries media."""
    raise NotImplementedError
