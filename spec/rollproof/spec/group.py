"""From N finalized rollouts to exactly N published rows (section 8).

A group keeps its shape: a rejected rollout becomes a placeholder row that trains nothing, never a missing row. The
order of effects is what makes a crash survivable: all reads, then one put of all rows, then, in direct mode, one
clear of the staged rows that these rollouts own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from rollproof.spec import media, routes
from rollproof.spec.constants import ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.metrics import group_metrics
from rollproof.spec.outcomes import Dims, Failure, GroupOutcome, RolloutOutcome
from rollproof.spec.plane import Clear, Effect, Outage, PublishedRow, Put, Staging
from rollproof.spec.records import (
    FinalizedGroup,
    FinalizedRollout,
    GroupRequest,
    ReassemblerConfig,
    RouteAssemblyPlan,
)
from rollproof.spec.rollout import finalize_rollout, owned_keys
from rollproof.spec.tensor import Tensor, to_float32


def finalize_group(
    config: ReassemblerConfig, request: GroupRequest, staging: Staging, dims: Dims | None = None
) -> GroupOutcome:
    """Publish one group. ``dims`` is what earlier groups taught about (L, K)."""
    effects: list[Effect] = []
    outcomes: list[RolloutOutcome] = []

    def failed(failure: Failure) -> GroupOutcome:
        rollouts = tuple(outcome.rollout for outcome in outcomes)
        return GroupOutcome(tuple(effects), None, failure, rollouts, dims)

    if argument_error(request) is not None:
        return failed(Failure.CALLER)
    for rollout_id, receipt, reward in zip(request.rollout_ids, request.receipts, request.rewards, strict=True):
        try:
            outcome = finalize_rollout(config, rollout_id, receipt, reward, rest(staging, effects), dims)
        except Outage:
            return failed(Failure.READ)
        outcome = media.fit_into_group(outcome, outcomes, dims)
        effects += outcome.effects
        outcomes.append(outcome)
        dims = outcome.dims

    owned = cleanup_keys(request, outcomes)
    rollouts = tuple(outcome.rollout for outcome in outcomes)
    valid = [rollout for rollout in rollouts if rollout.valid]
    clear = Clear(config.staging_partition, owned)
    result = describe(config, request, outcomes)
    if config.direct_routes and dims is None:
        if valid:
            return failed(Failure.ROUTES_UNKNOWN)
        if owned:
            effects.append(clear)
            if staging.faults.clear:
                return failed(Failure.CLEAR)
        dropped = evolve(
            result,
            sample_ids=(),
            fields=frozenset(),
            sequence_lengths=(),
            tags=(),
            metrics={**result.metrics, "finalize/group_dropped": 1.0},
            dropped=True,
            valid_row_count=0,
            total_row_count=0,
        )
        return GroupOutcome(tuple(effects), dropped, None, rollouts, dims)

    rows = build_rows(config, request, outcomes, dims)
    put = Put(config.partition_id, sample_ids(request), rows)
    effects.append(put)
    if staging.faults.put:
        return failed(Failure.PUT)
    if not config.defer_routed_experts_to_policy and owned:
        effects.append(clear)
        if staging.faults.clear:
            return failed(Failure.CLEAR)
    published = evolve(
        result,
        sample_ids=put.sample_ids,
        fields=frozenset(rows[0].columns),
        sequence_lengths=tuple(max(1, len(rollout.token_ids)) for rollout in rollouts),
        tags=tuple(row.tags for row in rows),
        staging_keys=owned if config.defer_routed_experts_to_policy else (),
    )
    return GroupOutcome(tuple(effects), published, None, rollouts, dims)


# ── before any read ─────────────────────────────────────────────────────────────────────────────────────────────────


def sample_ids(request: GroupRequest) -> tuple[str, ...]:
    """The ids of the published rows."""
    return tuple(f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids)))


def argument_error(request: GroupRequest) -> str | None:
    """What is wrong with the caller's arguments (decision D13), or None."""
    count = len(request.rollout_ids)
    lengths = {len(request.receipts), len(request.rewards), len(request.mask_sample)}
    if lengths != {count}:
        return "rollout_ids, receipts, rewards and mask_sample have different lengths"
    if count == 0:
        return "a group has at least one rollout"
    if len(set(request.rollout_ids)) != count:
        return "rollout_ids repeat"
    if not is_usable_weight(request.loss_multiplier):
        return "loss_multiplier is negative or not finite as float32"
    canonical = request.rollout_ids if request.canonical_sample_ids is None else request.canonical_sample_ids
    if tuple(canonical) != sample_ids(request):
        return "canonical sample ids are not <group_id>_g<i>"
    return None


def is_usable_weight(value: Any) -> bool:
    """Whether a loss multiplier can be published: a number that is finite as float32 and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return 0.0 <= to_float32(float(value)) < float("inf")
    except OverflowError:
        return False


def rest(staging: Staging, done: Sequence[Effect]) -> Staging:
    """Staging as the next rollout meets it: reads that have happened no longer count towards the failing one."""
    failing = staging.faults.failing_get
    if failing is None:
        return staging
    return evolve(staging, faults=evolve(staging.faults, failing_get=failing - len(done)))


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cleanup_keys(request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> tuple[str, ...]:
    """Every staging key that the group's rollouts own, rejected rollouts included (decision D14)."""
    return tuple(
        key
        for rollout_id, outcome in zip(request.rollout_ids, outcomes, strict=True)
        for key in owned_keys(rollout_id, outcome.receipt)
    )


def sibling_prompt(config: ReassemblerConfig, rollouts: Sequence[FinalizedRollout]) -> tuple[int, ...]:
    """The prompt that the per-prompt baseline groups by: the first valid row's, or the pad token."""
    for rollout in rollouts:
        if rollout.valid:
            return rollout.token_ids[: rollout.prompt_len] or (config.pad_token_id,)
    return (config.pad_token_id,)


def build_rows(
    config: ReassemblerConfig, request: GroupRequest, outcomes: Sequence[RolloutOutcome], dims: Dims | None
) -> tuple[PublishedRow, ...]:
    """The N rows, in the order of the rollouts."""
    rollouts = [outcome.rollout for outcome in outcomes]
    prompt = sibling_prompt(config, rollouts)
    minimum = weight_range(request, rollouts)[0]
    media_fields = media.group_fields(rollouts)
    rows = []
    for index, rollout in enumerate(rollouts):
        columns = token_columns(config, rollout)
        weight = abs(to_float32(float(request.loss_multiplier))) if rollout.valid else 0.0
        length = len(rollout.token_ids)
        columns |= {
            "input_lengths": Tensor.of("int64", [max(1, length)], ()),
            "sample_mask": Tensor.of("float32", [weight], ()),
            "prompt_ids_for_adv": Tensor.of("int64", prompt),
            "total_reward": Tensor.of("float32", [rollout.reward], ()),
            "mask_sample": Tensor.of("bool", [request.mask_sample[index]], ()),
            "truncated": Tensor.of("bool", [rollout.valid and length >= config.max_seq_len], ()),
        }
        if config.direct_routes and dims is not None:
            columns[ROUTED_EXPERTS] = routes.row_routes(rollout, max(1, length), dims)
        columns |= media.row_columns(media_fields, index)
        tags: dict[str, Any] = {
            "weight_version": minimum,
            "prompt_idx": request.prompt_idx,
            "group_id": request.group_id,
        }
        tags |= media.row_shape_tags(media_fields, index)
        if config.defer_routed_experts_to_policy:
            tags[ROUTE_PLAN_TAG] = routes.encode_plan(route_plan(config, outcomes[index]))
        rows.append(PublishedRow(columns, tags))
    return tuple(rows)


def route_plan(config: ReassemblerConfig, outcome: RolloutOutcome) -> RouteAssemblyPlan:
    """The plan that a row carries in deferred mode; a placeholder's has no spans, but its rollout's keys."""
    rollout = outcome.rollout
    return rollout.route_plan or routes.placeholder_plan(config, owned_keys(rollout.rollout_id, outcome.receipt))


def token_columns(config: ReassemblerConfig, rollout: FinalizedRollout) -> dict[str, Tensor]:
    """The per-token columns; a placeholder is one pad token that trains nothing."""
    if not rollout.valid:
        rollout = evolve(rollout, token_ids=(config.pad_token_id,), token_mask=(0.0,), logprobs=(0.0,))
    return {
        "input_ids": Tensor.of("int64", rollout.token_ids),
        "token_mask": Tensor.of("float32", rollout.token_mask),
        "generation_logprobs": Tensor.of("float32", rollout.logprobs),
    }


# ── result ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def weight_range(request: GroupRequest, rollouts: Sequence[FinalizedRollout]) -> tuple[int, int]:
    """The oldest and newest weight version over valid rows; the fallback where there is none."""
    minima = [rollout.min_wv for rollout in rollouts if rollout.min_wv is not None]
    maxima = [rollout.max_wv for rollout in rollouts if rollout.max_wv is not None]
    fallback = request.fallback_weight_version
    return min(minima, default=fallback), max(maxima, default=fallback)


def describe(config: ReassemblerConfig, request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> FinalizedGroup:
    """The result without what publication adds."""
    rollouts = [outcome.rollout for outcome in outcomes]
    valid = [rollout for rollout in rollouts if rollout.valid]
    minimum, maximum = weight_range(request, rollouts)
    deferred = config.defer_routed_experts_to_policy
    plans = [route_plan(config, outcome) for outcome in outcomes] if deferred else []
    return FinalizedGroup(
        sample_ids=(),
        fields=frozenset(),
        sequence_lengths=(),
        tags=(),
        group_min_wv=minimum,
        group_max_wv=maximum,
        staging_keys=(),
        canonical_output_tokens=sum(rollout.token_mask.count(1.0) for rollout in valid),
        metrics=group_metrics(config, request, outcomes, plans),
        valid_row_count=len(valid),
        total_row_count=len(rollouts),
    )
