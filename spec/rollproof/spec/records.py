"""The vocabulary of values that chapters hand to each other (sections 3 to 8), with their defaults.

Values without behaviour, in the order of the chapters. They do not check themselves, because the checks have an order
(section 4) and a verifier must be able to look at a wrong value. The defaults of ``CallRecord`` and ``Receipt`` are
what an absent field means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from rollproof.spec.config import CAPABILITY as CAPABILITY
from rollproof.spec.config import ReassemblerConfig as ReassemblerConfig
from rollproof.spec.constants import (
    DIGEST_VERSION,
    DROP_REASON,
    EXTRAS_DIGEST_VERSION,
    MODE_TOKEN_IN,
    SCHEMA_VERSION,
)
from rollproof.spec.tensor import Tensor


@frozen
class StagedCall:
    """The base columns of one staged model call (section 3), without extras, routes and media."""

    rollout_id: str
    model_call_id: str
    parent_call_id: str | None
    mode: str
    prev_len: int
    delta_len: int
    cum_len: int
    weight_version: int
    token_ids_delta: tuple[int, ...]
    token_mask_delta: tuple[float, ...]
    generation_log_probs_delta: tuple[float, ...]
    extras_digest: str
    chain_hash: str
    cumulative_hash: str
    digest: str
    schema_version: int = SCHEMA_VERSION
    digest_version: int = DIGEST_VERSION
    extras_digest_version: int = EXTRAS_DIGEST_VERSION


@frozen
class CallRecord:
    """One row of a receipt's manifest (section 3): a call's metadata, without its tokens."""

    model_call_id: str
    parent_call_id: str | None
    prev_len: int
    delta_len: int
    cum_len: int
    weight_version: int
    digest: str
    extras_digest: str
    staging_key: str
    chain_hash: str
    cumulative_hash: str
    response_id: str
    mode: str = MODE_TOKEN_IN
    admitted_at: float | None = None
    output_fingerprint: str | None = None
    continuation_fingerprint: str | None = None
    fingerprint_version: int = 0
    schema_version: int = SCHEMA_VERSION
    digest_version: int = DIGEST_VERSION
    extras_digest_version: int = EXTRAS_DIGEST_VERSION


@frozen
class Receipt:
    """The token-free record of a whole rollout (section 3)."""

    rollout_id: str
    manifest: tuple[CallRecord, ...] = ()
    terminal_model_call_id: str | None = None
    terminal_selection: str | None = None
    terminal_attribution_reason: str | None = None
    reward: float | None = None
    capture_poisoned: bool = False
    failure_reason: str | None = None
    schema_version: int = SCHEMA_VERSION
    digest_version: int = DIGEST_VERSION
    extras_digest_version: int = EXTRAS_DIGEST_VERSION


@frozen
class TerminalSelection:
    """The terminal call found from parent links alone, or the reason that there is none (section 3)."""

    terminal_model_call_id: str | None
    reason: str


@frozen
class WeightVersionSpan:
    """Row positions ``[start, end)`` that one call contributed under one weight version."""

    model_call_id: str
    start: int
    end: int
    weight_version: int


@frozen
class LinkSpan:
    """How many carry and generated tokens one call of the chain contributed."""

    model_call_id: str
    carry_len: int
    generation_len: int


@frozen
class ExtrasCommitment:
    """What one call's extras must digest to. It does not prove that they were fetched."""

    model_call_id: str
    extras_digest_version: int
    extras_digest: str


@frozen
class LinearizedRow:
    """A verified terminal chain as one row (section 4). The token columns have equal lengths."""

    rollout_id: str
    token_ids: tuple[int, ...]
    token_mask: tuple[float, ...]
    logprobs: tuple[float, ...]
    prompt_len: int
    model_call_ids: tuple[str, ...]
    weight_versions: tuple[int, ...]
    weight_version_spans: tuple[WeightVersionSpan, ...]
    link_spans: tuple[LinkSpan, ...]
    extras_commitments: tuple[ExtrasCommitment, ...]


@frozen
class RouteSpan:
    """One call's part of a route plan (section 6)."""

    staging_key: str
    carry_len: int
    generation_len: int
    staged_route_len: int
    extras_digest_version: int
    extras_digest: str
    boundary_token_index: int | None = field(default=None, metadata=CAPABILITY)
    """Where the token is whose route the call's sidecar holds (section 10); None where the call has none."""
    repair_previous_token: bool = field(default=False, metadata=CAPABILITY)
    """Whether the sidecar takes the place of that token's route."""


@frozen
class RouteAssemblyPlan:
    """Which staged fragments make up a row's routes, root first, and which keys the row's rollout owns (section 6)."""

    staging_partition: str
    spans: tuple[RouteSpan, ...]
    cleanup_staging_keys: tuple[str, ...]
    expected_token_length: int
    schema_version: int = 2


@frozen
class GroupRequest:
    """The arguments of ``finalize_group`` (section 8). ``receipts`` holds raw, untrusted values."""

    group_id: str
    rollout_ids: tuple[str, ...]
    receipts: tuple[Any, ...]
    rewards: tuple[Any, ...]
    mask_sample: tuple[bool, ...]
    fallback_weight_version: int = 0
    prompt_idx: int = 0
    loss_multiplier: float = 1.0
    canonical_sample_ids: tuple[str, ...] | None = None
    current_weight_version: int | None = None
    """The newest version that can have generated anything, for the advisory ``version_above_current``."""


@frozen
class FinalizedRollout:
    """What ``finalize_rollout`` returns (section 5): a canonical row, or a rejection with empty columns."""

    rollout_id: str
    valid: bool
    rejection_reason: str | None
    reward: float
    staging_keys: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    token_mask: tuple[float, ...] = ()
    logprobs: tuple[float, ...] = ()
    prompt_len: int = 0
    min_wv: int | None = None
    max_wv: int | None = None
    routed_experts: Tensor | None = None
    route_plan: RouteAssemblyPlan | None = None
    media: Mapping[str, Tensor] | None = None


@frozen
class FinalizedGroup:
    """What ``finalize_group`` returns (section 8). ``group.batch_meta`` gathers what describes the published batch."""

    sample_ids: tuple[str, ...]
    fields: frozenset[str]
    sequence_lengths: tuple[int, ...]
    tags: tuple[Mapping[str, Any], ...]
    group_min_wv: int
    group_max_wv: int
    staging_keys: tuple[str, ...]
    canonical_output_tokens: int
    metrics: Mapping[str, float] = field(factory=dict)
    dropped: bool = False
    valid_row_count: int = 0
    total_row_count: int = 0

    @property
    def drop_reason(self) -> str | None:
        """Why nothing was published, or None."""
        return DROP_REASON if self.dropped else None
