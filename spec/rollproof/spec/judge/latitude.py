"""What an implementation may do in its own way: the order of cleanup, and its own names (sections 6 and 8).

A verdict must not depend on any of it. Here two answers lose what the contract leaves open, before they are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.spec.constants import MEDIA_FIELDS, ROUTE_PLAN_TAG, ROW_SHAPES_SUFFIX
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Clear, Effect, PublishedRow, Put
from rollproof.spec.records import FinalizedGroup, FinalizedRollout

METRIC_PREFIXES: Final = ("finalize/", "advisory/")
"""Metrics under other names are the implementation's own."""

TAG_NAMES: Final = frozenset(
    {
        "weight_version",
        "prompt_idx",
        "group_id",
        ROUTE_PLAN_TAG,
        *(f"{name}{ROW_SHAPES_SUFFIX}" for name in MEDIA_FIELDS),
    }
)
"""The tags that the contract names; others are the implementation's own."""

LATER_ADVISORIES: Final = tuple(
    f"advisory/{name}"
    for name in (
        *("mixed_prompts", "zero_logprob_tokens", "implausible_logprobs", "untrained_generated_tokens"),
        *("unpredicted_first_token", "stop_token_not_trained", "version_above_current"),
        "placeholder_token_outside_items",
    )
)
"""Advisories that runs recorded before version 0.2.0 do not count."""
REJECTION_METRICS: Final = ("finalize/rejection_", "finalize/rebuild_failed_")
"""How the metrics begin that count rejections by code: of section 5, and of section 4 beneath ``rebuild_failed``."""

CLEANUP_KEYS: Final = "cleanup_staging_keys"


def comparable(outcome: GroupOutcome) -> GroupOutcome:
    """Return an outcome whose cleanup is in order of keys, with the metrics and tags that the contract names."""
    effects = tuple(map(comparable_effect, outcome.effects))
    group = None if outcome.group is None else comparable_group(outcome.group)
    return evolve(outcome, effects=effects, group=group)


def comparable_effect(effect: Effect) -> Effect:
    """Return an effect with the keys of a clear in order, and the rows of a put with their own tags left out."""
    match effect:
        case Clear(partition, keys):
            return Clear(partition, tuple(sorted(keys, key=str)))
        case Put(partition, sample_ids, rows):
            return Put(partition, sample_ids, tuple(map(comparable_row, rows)))
        case _:
            return effect


def comparable_row(row: PublishedRow) -> PublishedRow:
    """Return a row with the tags that the contract names."""
    return PublishedRow(row.columns, comparable_tags(row.tags))


def comparable_group(group: FinalizedGroup) -> FinalizedGroup:
    """Return a result with the metrics and tags that the contract names, and its keys in order."""
    return evolve(
        group,
        tags=tuple(map(comparable_tags, group.tags)),
        staging_keys=tuple(sorted(group.staging_keys, key=str)),
        metrics={name: as_float(value) for name, value in group.metrics.items() if name.startswith(METRIC_PREFIXES)},
    )


def as_float(value: Any) -> Any:
    """Return a whole number as a float, anything else as it is."""
    return float(value) if type(value) is int else value


def comparable_tags(tags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tags that the contract names; a published plan with its cleanup keys in order."""
    kept = {name: value for name, value in tags.items() if name in TAG_NAMES}
    plan = kept.get(ROUTE_PLAN_TAG)
    if (
        type(plan) is dict
        and type(plan.get(CLEANUP_KEYS)) is list
        and all(type(key) is str for key in plan[CLEANUP_KEYS])
    ):
        kept[ROUTE_PLAN_TAG] = {**plan, CLEANUP_KEYS: sorted(plan[CLEANUP_KEYS])}
    return kept


def comparable_rollout(rollout: FinalizedRollout) -> FinalizedRollout:
    """Return a rollout whose plan lists its cleanup keys in order."""
    plan = rollout.route_plan
    if plan is None:
        return rollout
    return evolve(rollout, route_plan=evolve(plan, cleanup_staging_keys=tuple(sorted(plan.cleanup_staging_keys))))
