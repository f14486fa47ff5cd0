"""What a finalized group reports about itself (section 8): ``finalize/`` metrics and ``advisory/`` counts.

Metrics look at raw receipts, which may hold anything, and never raise: a manifest that is not a list counts as
empty, a manifest entry that is not an object is skipped. Advisories describe rows that were accepted and look odd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rollproof.spec.constants import MODE_TOKEN_IN, ROUTE_SENTINEL, TERMINAL_SELECTIONS
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan
from rollproof.spec.routes import encoded_plan_size, has_routes
from rollproof.spec.tensor import to_float32


def group_metrics(
    config: ReassemblerConfig,
    request: GroupRequest,
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
) -> dict[str, float]:
    """All metrics of one group; ``plans`` holds every row's route plan, placeholders included, in deferred mode."""
    return (
        rollout_metrics(outcomes)
        | receipt_metrics(request.receipts)
        | rejection_metrics(outcomes)
        | (route_metrics(config, outcomes, plans) if config.router_replay_enabled else {})
        | advisories(config, outcomes)
    )


def rollout_metrics(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """Counts over the finalized rollouts."""
    rollouts = [outcome.rollout for outcome in outcomes]
    valid = [rollout for rollout in rollouts if rollout.valid]
    with_media = sum(1 for rollout in valid if rollout.media)
    return {
        "finalize/invalid_row_rate": 1.0 - len(valid) / len(rollouts),
        "finalize/calls_per_rollout": sum(len(rollout.staging_keys) for rollout in rollouts) / len(rollouts),
        "finalize/media_row_rate": with_media / len(valid) if valid else 0.0,
    }


def manifest_rows(receipt: Any) -> list[Mapping[str, Any]]:
    """The manifest entries of a raw receipt that are objects."""
    manifest = receipt.get("manifest") if type(receipt) is dict else None
    return [row for row in manifest if type(row) is dict] if type(manifest) is list else []


def receipt_metrics(receipts: Sequence[Any]) -> dict[str, float]:
    """Counts over the raw receipts."""
    known = [receipt for receipt in receipts if type(receipt) is dict]
    rows = [row for receipt in known for row in manifest_rows(receipt)]
    token_in = sum(1 for row in rows if row.get("mode", MODE_TOKEN_IN) == MODE_TOKEN_IN)
    metrics: dict[str, float] = {
        "finalize/token_in_calls": float(token_in),
        "finalize/text_root_calls": float(len(rows) - token_in),
        "finalize/capture_poisoned_rollouts": float(
            sum(1 for receipt in known if receipt.get("capture_poisoned") is True)
        ),
        "finalize/terminal_witness_disagreement_count": float(sum(disagrees(receipt) for receipt in known)),
    }
    if rows:
        metrics["finalize/token_in_rate"] = token_in / len(rows)
    for method in TERMINAL_SELECTIONS:
        count = sum(1 for receipt in known if receipt.get("terminal_selection") == method)
        metrics[f"finalize/terminal_selection_{method}_count"] = float(count)
        metrics[f"finalize/terminal_selection_{method}_fraction"] = count / len(receipts)
    return metrics


def disagrees(receipt: Mapping[str, Any]) -> bool:
    """Whether the attribution trail of a raw receipt records that witnesses disagreed."""
    trail = receipt.get("terminal_attribution_reason")
    return type(trail) is str and "witness_disagreement" in trail


def rejection_metrics(outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """How often each code rejected a rollout: the reason up to its first colon."""
    reasons = (outcome.rollout.rejection_reason for outcome in outcomes)
    counts = Counter(reason.partition(":")[0] for reason in reasons if reason is not None)
    return {f"finalize/capture_failure_reason_{code}_count": float(count) for code, count in counts.items()}


def route_metrics(
    config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], plans: Sequence[RouteAssemblyPlan]
) -> dict[str, float]:
    """Route coverage over valid rows; in deferred mode also the size of all plans."""
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


def token_routes(outcome: RolloutOutcome) -> list[tuple[int | float | bool, ...]]:
    """Per token of the row, its expert ids over all layers; empty where the row has no routes."""
    routed = outcome.rollout.routed_experts
    if routed is None:
        return []
    width = routed.shape[1] * routed.shape[2]
    ids = routed.values()
    return [ids[start : start + width] for start in range(0, len(ids), width)]


def rollout_sentinels(outcome: RolloutOutcome) -> int:
    """How many tokens of a valid row are sentinel in all layers."""
    if outcome.rollout.routed_experts is None:
        return len(outcome.rollout.token_ids)
    return sum(set(ids) == {ROUTE_SENTINEL} for ids in token_routes(outcome))


def advisories(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """What looks odd about the valid rows. A count of 0 is reported too; nothing here rejects."""
    valid = [outcome for outcome in outcomes if outcome.rollout.valid]
    counts = {
        "positive_logprob_tokens": sum(sum(value > 0.0 for value in outcome.rollout.logprobs) for outcome in valid),
        "zero_logprob_generations": sum(map(zero_logprob_generations, valid)),
        "weight_version_falls": sum(map(weight_version_falls, valid)),
        "reward_disagreement": sum(map(reward_disagrees, valid)),
        "overlong_rows": sum(len(outcome.rollout.token_ids) > config.max_seq_len for outcome in valid),
        "several_extended_roots": sum(extended_roots(outcome) > 1 for outcome in valid),
    }
    if config.router_replay_enabled:
        counts["routeless_calls"] = sum(map(routeless_calls, valid))
    if config.direct_routes:
        counts["repeated_route_run"] = max(map(longest_route_run, valid), default=0)
    return {f"advisory/{name}": float(count) for name, count in counts.items()}


def zero_logprob_generations(outcome: RolloutOutcome) -> int:
    """Calls of the chain whose generated log-probabilities are all 0.0."""
    assert outcome.row is not None
    count, start = 0, 0
    for span in outcome.row.link_spans:
        end = start + span.carry_len + span.generation_len
        count += not any(outcome.row.logprobs[start + span.carry_len : end])
        start = end
    return count


def weight_version_falls(outcome: RolloutOutcome) -> int:
    """Calls of the chain that ran under an older weight version than their parent."""
    assert outcome.row is not None
    return sum(later < earlier for earlier, later in pairwise(outcome.row.weight_versions))


def reward_disagrees(outcome: RolloutOutcome) -> bool:
    """Whether the receipt names another reward than the one that is published; both as float32."""
    assert outcome.receipt is not None
    stated = outcome.receipt.reward
    return stated is not None and to_float32(stated) != outcome.rollout.reward


def extended_roots(outcome: RolloutOutcome) -> int:
    """Root calls of the manifest that some call continues."""
    assert outcome.receipt is not None
    parents = {record.parent_call_id for record in outcome.receipt.manifest}
    roots = [record for record in outcome.receipt.manifest if record.parent_call_id is None]
    return sum(record.model_call_id in parents for record in roots)


def routeless_calls(outcome: RolloutOutcome) -> int:
    """Calls of the chain without staged routes, in a chain where some call has them."""
    return outcome.route_lengths.count(0) if any(outcome.route_lengths) else 0


def longest_route_run(outcome: RolloutOutcome) -> int:
    """The longest run of tokens that repeat one route which is not sentinel; 0 where no token has a route."""
    longest, run, previous = 0, 0, None
    for ids in token_routes(outcome):
        if set(ids) == {ROUTE_SENTINEL}:
            run, previous = 0, None
            continue
        run = run + 1 if ids == previous else 1
        longest, previous = max(longest, run), ids
    return longest
