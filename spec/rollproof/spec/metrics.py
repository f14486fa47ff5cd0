"""The report of a finalized group about itself (section 8): ``finalize/`` metrics and ``advisory/`` counts.

Metrics read raw receipts, which may hold anything, and never raise: a manifest that is not a list counts as
empty, a manifest entry that is not an object is skipped. Advisories describe rows that were accepted and look odd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollproof.spec.advisories import LONGEST, find_advisories, ids_per_token, names
from rollproof.spec.constants import MODE_TOKEN_IN, ROUTE_SENTINEL, TERMINAL_SELECTIONS
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.plan import encoded_plan_size, has_routes
from rollproof.spec.receipt import manifest_entries, manifest_rows, own_keys_listed
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan
from rollproof.spec.rejections import Code


def group_metrics(
    config: ReassemblerConfig,
    request: GroupRequest,
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
) -> dict[str, float]:
    """Return all metrics of a group; ``plans`` holds all rows' route plans, placeholders included, in deferred mode."""
    return (
        rollout_metrics(outcomes)
        | receipt_metrics(request.receipts)
        | unreadable_rows(request, outcomes)
        | rejection_metrics(outcomes)
        | (route_metrics(config, outcomes, plans) if config.router_replay_enabled else {})
        | advisories(config, outcomes, request.current_weight_version)
    )


def rollout_metrics(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """Count over the finalized rollouts."""
    rollouts = [outcome.rollout for outcome in outcomes]
    valid = [rollout for rollout in rollouts if rollout.valid]
    with_media = sum(1 for rollout in valid if rollout.media)
    return {
        "finalize/invalid_row_rate": 1.0 - len(valid) / len(rollouts),
        "finalize/calls_per_rollout": sum(len(rollout.staging_keys) for rollout in rollouts) / len(rollouts),
        "finalize/media_row_rate": with_media / len(valid) if valid else 0.0,
    }


def receipt_metrics(receipts: Sequence[Any]) -> dict[str, float]:
    """Count over the raw receipts."""
    known = [receipt for receipt in receipts if type(receipt) is dict]
    rows = [row for receipt in known for row in manifest_rows(receipt)]
    trails = [receipt.get("terminal_attribution_reason") for receipt in known]
    disagreeing = sum(type(trail) is str and "witness_disagreement" in trail for trail in trails)
    token_in = sum(1 for row in rows if row.get("mode", MODE_TOKEN_IN) == MODE_TOKEN_IN)
    metrics: dict[str, float] = {
        "finalize/token_in_calls": float(token_in),
        "finalize/text_root_calls": float(len(rows) - token_in),
        "finalize/capture_poisoned_rollouts": float(
            sum(1 for receipt in known if receipt.get("capture_poisoned") is True)
        ),
        "finalize/terminal_witness_disagreement_count": float(disagreeing),
    }
    if rows:
        metrics["finalize/token_in_rate"] = token_in / len(rows)
    for method in TERMINAL_SELECTIONS:
        count = sum(1 for receipt in known if receipt.get("terminal_selection") == method)
        metrics[f"finalize/terminal_selection_{method}_count"] = float(count)
        metrics[f"finalize/terminal_selection_{method}_fraction"] = count / len(receipts)
    return metrics


def unreadable_rows(request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """Count what receipts that do not parse list without a key of their rollout (decision D34): it stays staged.

    Where there is nothing of the kind there is no metric.
    """
    count = 0
    for rollout_id, receipt, outcome in zip(request.rollout_ids, request.receipts, outcomes, strict=True):
        if outcome.receipt is None:
            count += len(manifest_entries(receipt)) - len(own_keys_listed(rollout_id, receipt))
    return {"finalize/unreadable_manifest_rows": float(count)} if count else {}


def rejection_metrics(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """Count how often each code rejected a rollout, and each code of section 4 beneath ``rebuild_failed``.

    A code that rejected nothing has no metric. ``capture_failure_reason`` is the older name of the same count.
    """
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.rollout.rejection_reason is None:
            continue
        code, subject, *_ = (*outcome.rollout.rejection_reason.split(":"), "")
        counts[f"finalize/capture_failure_reason_{code}_count"] += 1
        counts[f"finalize/rejection_{code}_count"] += 1
        if code == Code.REBUILD_FAILED.code:
            counts[f"finalize/rebuild_failed_{subject}_count"] += 1
    return {name: float(count) for name, count in counts.items()}


def route_metrics(
    config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], plans: Sequence[RouteAssemblyPlan]
) -> dict[str, float]:
    """Return route coverage over valid rows; in deferred mode also the size of all plans."""
    valid = [outcome.rollout for outcome in outcomes if outcome.rollout.valid]
    metrics = {}
    if valid:
        covered = sum(rollout.route_plan is not None and has_routes(rollout.route_plan) for rollout in valid)
        metrics["finalize/routed_experts_row_coverage"] = covered / len(valid)
    if config.direct_routes:
        tokens = sum(len(rollout.token_ids) for rollout in valid)
        sentinel = sum(rollout_sentinels(outcome) for outcome in outcomes if outcome.rollout.valid)
        if tokens:
            metrics["finalize/routed_experts_sentinel_token_fraction"] = sentinel / tokens
    else:
        metrics["finalize/route_plan_span_count"] = float(sum(len(plan.spans) for plan in plans))
        metrics["finalize/route_plan_encoded_bytes"] = float(sum(encoded_plan_size(plan) for plan in plans))
    return metrics


def rollout_sentinels(outcome: RolloutOutcome) -> int:
    """Return how many tokens of a valid row are sentinel in all layers."""
    if outcome.rollout.routed_experts is None:
        return len(outcome.rollout.token_ids)
    return sum(set(ids) == {ROUTE_SENTINEL} for ids in ids_per_token(outcome))


def advisories(
    config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], current: int | None = None
) -> dict[str, float]:
    """Return how often something looks odd about the valid rows. A count of 0 is reported too; nothing here rejects."""
    found = find_advisories(config, outcomes, current)
    counts = {name: [one.count for one in found if one.name == name] for name in names(config, current)}
    return {
        f"advisory/{name}": float(max(each, default=0) if name in LONGEST else sum(each))
        for name, each in counts.items()
    }
