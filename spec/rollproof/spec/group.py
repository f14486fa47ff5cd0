"""From N finalized rollouts to exactly N published rows (section 8).

A group keeps its shape: a rejected rollout becomes a placeholder row that trains nothing, never a missing row. The
order of effects is what makes a crash survivable: all reads, then one put of all rows, then, in direct mode, one
clear of the staged rows that these rollouts own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from rollproof.spec import media
from rollproof.spec.constants import TASK_NAME
from rollproof.spec.metrics import group_metrics
from rollproof.spec.outcomes import Dims, Failure, GroupOutcome, RolloutOutcome
from rollproof.spec.plane import DataPlane, Outage
from rollproof.spec.records import FinalizedGroup, GroupRequest, ReassemblerConfig
from rollproof.spec.rollout import as_number, finalize_rollout, is_usable_reward, usable_reward
from rollproof.spec.rows import build_rows, route_plan, weight_range
from rollproof.spec.values import is_length


class GroupFailed(Exception):
    """The group cannot be finished; the caller gets the error that ``failure`` describes."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure)


def finalize_group(
    config: ReassemblerConfig, request: GroupRequest, plane: DataPlane, dims: Dims | None = None
) -> GroupOutcome:
    """Publish one group, or drop it. ``dims`` is what earlier groups taught about (L, K)."""
    outcomes: list[RolloutOutcome] = []
    group: FinalizedGroup | None = None
    failure: Failure | None = None
    try:
        if argument_error(request) is not None:
            raise GroupFailed(Failure.CALLER)
        finalize_all(config, request, plane, dims, outcomes)
        learned = known_dims(config, outcomes, dims)
        if config.direct_routes and learned is None:
            group = drop(config, request, plane, outcomes)
        else:
            group = publish(config, request, plane, outcomes, learned)
    except GroupFailed as failed:
        failure = failed.failure
    rollouts = tuple(outcome.rollout for outcome in outcomes)
    return GroupOutcome(tuple(plane.effects), group, failure, rollouts, known_dims(config, outcomes, dims))


def finalize_all(
    config: ReassemblerConfig,
    request: GroupRequest,
    plane: DataPlane,
    dims: Dims | None,
    outcomes: list[RolloutOutcome],
) -> None:
    """Finalize the rollouts in their order, and append the outcome of each to ``outcomes``."""
    for rollout_id, receipt, reward in zip(request.rollout_ids, request.receipts, request.rewards, strict=True):
        try:
            outcome = finalize_rollout(config, rollout_id, receipt, reward, plane, known_dims(config, outcomes, dims))
        except Outage:
            raise GroupFailed(Failure.READ) from None
        outcomes.append(media.fit_into_group(outcome, outcomes))


def known_dims(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], dims: Dims | None) -> Dims | None:
    """Return (L, K): the configured one, else ``dims``, else that of the first accepted routes (decision D10)."""
    for outcome in outcomes:
        if outcome.rollout.routed_experts is not None:
            _, layers, experts = outcome.rollout.routed_experts.shape
            return config.routed_dims or dims or (layers, experts)
    return config.routed_dims or dims


def drop(
    config: ReassemblerConfig, request: GroupRequest, plane: DataPlane, outcomes: Sequence[RolloutOutcome]
) -> FinalizedGroup:
    """Clear the staging of a group without a valid row, for which the shape of routes is unknown.

    With a valid row that is an error of the set-up, and the group fails: the engine captures no routes, or
    ``routed_dims`` is missing. Rejected rollouts may have staged routes: they teach nothing (decision D40).
    """
    if any(outcome.rollout.valid for outcome in outcomes):
        raise GroupFailed(Failure.ROUTES_UNKNOWN)
    clear(config, plane, cleanup_keys(outcomes))
    result = describe(config, request, outcomes)
    metrics = {**result.metrics, "finalize/group_dropped": 1.0}
    return evolve(result, metrics=metrics, dropped=True, valid_row_count=0, total_row_count=0)


def publish(
    config: ReassemblerConfig,
    request: GroupRequest,
    plane: DataPlane,
    outcomes: Sequence[RolloutOutcome],
    dims: Dims | None,
) -> FinalizedGroup:
    """Put all rows at once; then, in direct mode, clear the staged rows that the group owns.

    In deferred mode the policy still needs them, and the result hands their keys on.
    """
    rows = build_rows(config, request, outcomes, dims)
    owned = cleanup_keys(outcomes)
    deferred = config.defer_routed_experts_to_policy
    result = evolve(
        describe(config, request, outcomes),
        sample_ids=sample_ids(request),
        fields=frozenset(rows[0].columns),
        sequence_lengths=tuple(max(1, len(outcome.rollout.token_ids)) for outcome in outcomes),
        tags=tuple(row.tags for row in rows),
        staging_keys=owned if deferred else (),
    )
    try:
        plane.put(config.partition_id, result.sample_ids, rows)
    except Outage:
        raise GroupFailed(Failure.PUT) from None
    # Nothing but the clear comes after the put: what failed here could not be run again (decision D27).
    if not deferred:
        clear(config, plane, owned)
    return result


def clear(config: ReassemblerConfig, plane: DataPlane, keys: Sequence[str]) -> None:
    """Clear staged rows, if there are any to clear."""
    try:
        if keys:
            plane.clear(config.staging_partition, keys)
    except Outage:
        raise GroupFailed(Failure.CLEAR) from None


# ── before any read ─────────────────────────────────────────────────────────────────────────────────────────────────


def sample_ids(request: GroupRequest) -> tuple[str, ...]:
    """Return the ids of the published rows."""
    return tuple(f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids)))


def argument_error(request: GroupRequest) -> str | None:
    """Return what is wrong with the caller's arguments (decision D13), or None."""
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
    if not is_length(request.fallback_weight_version):
        return "fallback_weight_version is not a weight version (decision D40)"
    if request.current_weight_version is not None and not is_length(request.current_weight_version):
        return "current_weight_version is not a weight version (decision D40)"
    canonical = request.rollout_ids if request.canonical_sample_ids is None else request.canonical_sample_ids
    if tuple(canonical) != sample_ids(request):
        return "canonical sample ids are not <group_id>_g<i>"
    return None


def is_usable_weight(value: Any) -> bool:
    """Return whether a loss multiplier can be published: a number that is finite as float32 and not negative."""
    number = as_number(value)
    return is_usable_reward(number) and usable_reward(number) >= 0.0


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cleanup_keys(outcomes: Sequence[RolloutOutcome]) -> tuple[str, ...]:
    """Return every staging key that the group's rollouts own, rejected rollouts included (decisions D14 and D34)."""
    return tuple(key for outcome in outcomes for key in outcome.own_keys)


def batch_meta(config: ReassemblerConfig, group: FinalizedGroup) -> dict[str, Any]:
    """Return the description of the published batch that the result carries for its readers."""
    return {
        "partition_id": config.partition_id,
        "task_name": TASK_NAME,
        "sample_ids": group.sample_ids,
        "fields": group.fields,
        "sequence_lengths": group.sequence_lengths,
        "tags": group.tags,
    }


# ── result ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(config: ReassemblerConfig, request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> FinalizedGroup:
    """Return the result without what publication adds."""
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
