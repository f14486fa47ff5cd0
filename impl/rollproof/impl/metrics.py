"""What a finalized group reports about itself (section 8): ``finalize/`` metrics and ``advisory/`` counts.

Metrics read raw receipts, which may hold anything, and never raise. Advisories describe accepted rows that look odd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rollproof.impl.outcomes import FinalizedRollout, RolloutOutcome
from rollproof.impl.plan import encode_plan, encoded_plan_size, has_routes
from rollproof.impl.records import ReceiptColumns
from rollproof.spec.constants import MODE_TOKEN_IN, ROUTE_SENTINEL, TERMINAL_SELECTIONS
from rollproof.spec.records import ReassemblerConfig, RouteAssemblyPlan


def group_metrics(
    config: ReassemblerConfig,
    receipts: Sequence[Any],
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
) -> dict[str, float]:
    """All metrics of one group. ``plans`` are all rows' route plans in deferred mode, else empty."""
    metrics = _rollout_metrics([outcome.rollout for outcome in outcomes]) | _receipt_metrics(receipts)
    if config.router_replay_enabled:
        metrics |= _route_metrics(config, [outcome.rollout for outcome in outcomes], plans)
    return metrics | _advisories(config, outcomes)


def _rollout_metrics(rollouts: Sequence[FinalizedRollout]) -> dict[str, float]:
    count, valid = len(rollouts), sum(rollout.valid for rollout in rollouts)
    with_media = sum(rollout.valid and bool(rollout.media) for rollout in rollouts)
    codes = Counter(
        rollout.rejection_reason.partition(":")[0] for rollout in rollouts if rollout.rejection_reason is not None
    )
    return {
        "finalize/invalid_row_rate": 1.0 - valid / count,
        "finalize/calls_per_rollout": sum(len(rollout.staging_keys) for rollout in rollouts) / count,
        "finalize/media_row_rate": with_media / valid if valid else 0.0,
        **{f"finalize/capture_failure_reason_{code}_count": float(times) for code, times in codes.items()},
    }


def _receipt_metrics(receipts: Sequence[Any]) -> dict[str, float]:
    known = [receipt for receipt in receipts if type(receipt) is dict]
    rows = [row for receipt in known for row in _manifest_rows(receipt)]
    token_in = sum(row.get("mode", MODE_TOKEN_IN) == MODE_TOKEN_IN for row in rows)
    trails = [receipt.get("terminal_attribution_reason") for receipt in known]
    metrics = {
        "finalize/token_in_calls": token_in,
        "finalize/text_root_calls": len(rows) - token_in,
        "finalize/capture_poisoned_rollouts": sum(receipt.get("capture_poisoned") is True for receipt in known),
        "finalize/terminal_witness_disagreement_count": sum(
            type(trail) is str and "witness_disagreement" in trail for trail in trails
        ),
    }
    if rows:
        metrics["finalize/token_in_rate"] = token_in / len(rows)
    for method in TERMINAL_SELECTIONS:
        count = sum(receipt.get("terminal_selection") == method for receipt in known)
        metrics[f"finalize/terminal_selection_{method}_count"] = count
        metrics[f"finalize/terminal_selection_{method}_fraction"] = count / len(receipts)
    return {name: float(value) for name, value in metrics.items()}


def _manifest_rows(receipt: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifest entries of a raw receipt that are objects."""
    manifest = receipt.get("manifest")
    yield from (row for row in manifest if type(row) is dict) if type(manifest) is list else ()


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _route_metrics(
    config: ReassemblerConfig, rollouts: Sequence[FinalizedRollout], plans: Sequence[RouteAssemblyPlan]
) -> dict[str, float]:
    """Route coverage over valid rows; in deferred mode also the size of all plans."""
    valid = [rollout for rollout in rollouts if rollout.valid]
    metrics: dict[str, float] = {}
    if valid:
        covered = sum(rollout.route_plan is not None and has_routes(rollout.route_plan) for rollout in valid)
        metrics["finalize/routed_experts_row_coverage"] = covered / len(valid)
    if not config.direct_routes:
        encoded = [encode_plan(plan) for plan in plans]
        metrics["finalize/route_plan_span_count"] = float(sum(len(plan.spans) for plan in plans))
        metrics["finalize/route_plan_encoded_bytes"] = float(sum(map(encoded_plan_size, encoded)))
    elif valid:
        tokens = sum(len(rollout.columns) for rollout in valid)
        unrouted = tokens - sum(int(_routed(rollout).sum()) for rollout in valid)
        metrics["finalize/routed_experts_sentinel_token_fraction"] = unrouted / tokens
    return metrics


def _routed(rollout: FinalizedRollout) -> torch.Tensor:
    """``[T]``: whether a token has a route in some layer; empty where the row has no routes."""
    if rollout.routed_experts is None:
        return torch.zeros(0, dtype=torch.bool)
    return (rollout.routed_experts != ROUTE_SENTINEL).flatten(1).any(1)


def _longest_route_run(rollout: FinalizedRollout) -> int:
    """The longest run of tokens that repeat one route which is not sentinel."""
    if rollout.routed_experts is None:
        return 0
    routed, ids = _routed(rollout), rollout.routed_experts.flatten(1)
    starts = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    starts[1:] = (ids[1:] != ids[:-1]).any(1)
    begins = torch.nonzero(starts).flatten()
    lengths = torch.diff(begins, append=begins.new_tensor([len(ids)]))
    return int((lengths * routed[begins]).max())


# ── advisories ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _advisories(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome]) -> dict[str, float]:
    """What looks odd about the valid rows; a count of 0 is reported too."""
    counts: Counter[str] = Counter(
        dict.fromkeys(
            (
                "positive_logprob_tokens",
                "zero_logprob_generations",
                "weight_version_falls",
                "reward_disagreement",
                "overlong_rows",
                "several_extended_roots",
                *(["routeless_calls"] if config.router_replay_enabled else []),
            ),
            0,
        )
    )
    longest_run = 0
    for outcome in outcomes:
        if outcome.row is None or outcome.receipt is None:
            continue
        row = outcome.row
        spoken = np.add.reduceat(row.logprobs != 0.0, row.offsets[:-1], dtype=np.int64)
        counts["positive_logprob_tokens"] += int((row.logprobs > 0.0).sum())
        counts["zero_logprob_generations"] += int((spoken == 0).sum())
        counts["weight_version_falls"] += int((row.weight_versions[1:] < row.weight_versions[:-1]).sum())
        counts["reward_disagreement"] += _reward_disagrees(outcome.receipt, outcome.rollout)
        counts["overlong_rows"] += len(row.token_ids) > config.max_seq_len
        counts["several_extended_roots"] += _extended_roots(outcome.receipt) > 1
        if config.router_replay_enabled and outcome.routed_lens is not None and outcome.routed_lens.any():
            counts["routeless_calls"] += int((outcome.routed_lens == 0).sum())
        longest_run = max(longest_run, _longest_route_run(outcome.rollout))
    if config.direct_routes:
        counts["repeated_route_run"] = longest_run
    return {f"advisory/{name}": float(count) for name, count in counts.items()}


def _reward_disagrees(receipt: ReceiptColumns, rollout: FinalizedRollout) -> bool:
    """Whether the receipt names another reward than the one that is published; both as float32."""
    if receipt.reward is None:
        return False
    with np.errstate(over="ignore"):
        return float(np.float32(receipt.reward)) != rollout.reward


def _extended_roots(receipt: ReceiptColumns) -> int:
    """Root calls of the manifest that some call continues."""
    parents = receipt.lists["parent_call_id"]
    continued = set(parents)
    return sum(parent is None and call in continued for call, parent in zip(receipt.call_ids, parents, strict=True))
