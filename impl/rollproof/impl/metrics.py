"""The report of a finalized group about itself (section 8): ``finalize/`` metrics and ``advisory/`` counts.

Metrics read raw receipts, which may hold anything, and never raise. Advisories describe accepted rows that look odd.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from rollproof.impl.lineage import ChainRow
from rollproof.impl.outcomes import FinalizedRow, RolloutOutcome
from rollproof.impl.plan import RouteAssemblyPlan, encode_plan, encoded_plan_size, has_routes
from rollproof.impl.records import ReceiptColumns
from rollproof.impl.rollout import unreadable_entries
from rollproof.impl.route_boundary import unrepaired_positions
from rollproof.spec.constants import MODE_TOKEN_IN, ROUTE_SENTINEL, STEP_TIMES, TERMINAL_SELECTIONS
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code

MAX_STATS_DEPTH: Final = 8
"""How deep a caller's statistics may nest."""


@define
class Stopwatch:
    """How long each step of a group took, in milliseconds. The steps are those of ``STEP_TIMES``, in that order."""

    times: dict[str, float] = field(factory=dict)
    _last: float = field(factory=time.perf_counter)

    def lap(self) -> None:
        """Record that the next step has ended."""
        now = time.perf_counter()
        self.times[STEP_TIMES[len(self.times)]] = 1000.0 * (now - self._last)
        self._last = now


IGNORED: Final = "advisory/ignored_arguments"


def handed_through(group_labels: Any, result_stats: Any) -> dict[str, float]:
    """Return a caller's own statistics of a group as metrics ``group_stats/<scope>/<name>/…``; nothing raises.

    ``result_stats`` are finite numbers in mappings by name, ``group_labels`` the scopes: one str, or several in a
    sequence or as a mapping's values; without labels the scope is ``all``. What is neither is left out, and counted as
    ``advisory/ignored_arguments``.
    """
    if group_labels is None and result_stats is None:
        return {}
    listed = group_labels.values() if isinstance(group_labels, Mapping) else group_labels
    scopes = [listed] if isinstance(listed, str) else list(listed) if isinstance(listed, Collection) else []
    known = [scope for scope in scopes if isinstance(scope, str) and scope]
    ignored = len(scopes) - len(known) + (group_labels is not None and not isinstance(listed, Collection))
    metrics: dict[str, float] = {}
    waiting: list[tuple[str, Any]] = [] if result_stats is None else [("", result_stats)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping) and name.count("/") < MAX_STATS_DEPTH:
            waiting += [(f"{name}/{key}", item) for key, item in value.items()]
        elif name and isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            metrics |= {f"group_stats/{scope}{name}": float(value) for scope in known or ["all"]}
        else:
            ignored += 1
    return metrics | ({IGNORED: float(ignored)} if ignored else {})


def group_metrics(
    config: ReassemblerConfig,
    receipts: Sequence[Any],
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
    current: int | None = None,
) -> dict[str, float]:
    """Return all metrics of one group. ``plans`` are all rows' route plans in deferred mode, else empty.

    ``current`` is the current weight version, where the caller knows it.
    """
    unread = sum(
        unreadable_entries(outcome.rollout.rollout_id, receipt)
        for receipt, outcome in zip(receipts, outcomes, strict=True)
        if outcome.receipt is None
    )
    metrics = _rollout_metrics([outcome.rollout for outcome in outcomes]) | _receipt_metrics(receipts)
    if config.router_replay_enabled:
        metrics |= _route_metrics(config, [outcome.rollout for outcome in outcomes], plans)
    if unread:
        metrics["finalize/unreadable_manifest_rows"] = float(unread)
    return metrics | _advisories(config, outcomes, current)


def _rollout_metrics(rollouts: Sequence[FinalizedRow]) -> dict[str, float]:
    count, valid = len(rollouts), sum(rollout.valid for rollout in rollouts)
    with_media = sum(rollout.valid and bool(rollout.media) for rollout in rollouts)
    reasons = [rollout.rejection_reason.split(":", 2) for rollout in rollouts if rollout.rejection_reason is not None]
    codes = Counter(reason[0] for reason in reasons)
    rebuilds = Counter(reason[1] for reason in reasons if reason[0] == Code.REBUILD_FAILED.code)
    return {
        "finalize/invalid_row_rate": 1.0 - valid / count,
        "finalize/calls_per_rollout": sum(len(rollout.staging_keys) for rollout in rollouts) / count,
        "finalize/media_row_rate": with_media / valid if valid else 0.0,
        **{f"finalize/capture_failure_reason_{code}_count": float(times) for code, times in codes.items()},
        **{f"finalize/rejection_{code}_count": float(times) for code, times in codes.items()},
        **{f"finalize/rebuild_failed_{code}_count": float(times) for code, times in rebuilds.items()},
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
    """Yield the manifest entries of a raw receipt that are objects."""
    manifest = receipt.get("manifest")
    yield from (row for row in manifest if type(row) is dict) if type(manifest) is list else ()


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _route_metrics(
    config: ReassemblerConfig, rollouts: Sequence[FinalizedRow], plans: Sequence[RouteAssemblyPlan]
) -> dict[str, float]:
    """Return route coverage over valid rows; in deferred mode also the size of all plans."""
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
        unrouted = tokens - sum(int(np.count_nonzero(_routed(_route_ids(rollout)))) for rollout in valid)
        metrics["finalize/routed_experts_sentinel_token_fraction"] = unrouted / tokens
    return metrics


def _route_ids(rollout: FinalizedRow) -> NDArray[np.int16]:
    """Return a row's routes in the host's memory, ``[T, L * K]``; no tokens where the row has none."""
    if rollout.routed_experts is None:
        return np.zeros((0, 1), dtype=np.int16)
    return rollout.routed_experts.flatten(1).numpy(force=True)


def _routed(ids: NDArray[np.int16]) -> NDArray[np.bool_]:
    """Return ``[T]``: whether a token has a route in some layer."""
    routed: NDArray[np.bool_] = ids[:, 0] != ROUTE_SENTINEL
    unsure = np.flatnonzero(~routed)
    routed[unsure] = (ids[unsure] != ROUTE_SENTINEL).any(1)
    return routed


def _longest_route_run(ids: NDArray[np.int16]) -> int:
    """Return the longest run of two or more tokens with one route which is not sentinel; 0 where there is none."""
    if not len(ids):
        return 0
    alike = np.zeros(len(ids), dtype=np.bool_)
    alike[1:] = ids[1:, 0] == ids[:-1, 0]
    unsure = np.flatnonzero(alike)
    alike[unsure] = (ids[unsure] == ids[unsure - 1]).all(1)
    begins = np.flatnonzero(~alike)
    lengths = np.diff(begins, append=len(ids))
    runs = np.flatnonzero(lengths > 1)
    return int((lengths[runs] * _routed(ids[begins[runs]])).max(initial=0))


# ── advisories ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _advisories(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome], current: int | None) -> dict[str, float]:
    """Count what looks odd about the valid rows; a count of 0 is reported too."""
    counts: Counter[str] = Counter(
        dict.fromkeys(
            (
                "positive_logprob_tokens",
                "zero_logprob_generations",
                "weight_version_falls",
                "reward_disagreement",
                "overlong_rows",
                "several_extended_roots",
                "mixed_prompts",
                "zero_logprob_tokens",
                "implausible_logprobs",
                "untrained_generated_tokens",
                "unpredicted_first_token",
                *(["stop_token_not_trained"] if config.stop_token_ids else []),
                *(["version_above_current"] if current is not None else []),
                *(["placeholder_token_outside_items"] if config.capture_media else []),
                *(["unchecked_media_calls"] if config.capture_media else []),
                *(["topk_unordered", "topk_disagreement"] if config.top_logprobs else []),
                *(["unrepaired_boundary_tokens"] if config.route_boundary and config.router_replay_enabled else []),
                *(["routeless_calls"] if config.router_replay_enabled else []),
            ),
            0,
        )
    )
    with np.errstate(over="ignore"):
        least = np.float32(config.least_plausible_logprob)
    longest_run = 0
    prompts: list[NDArray[np.int64]] = []
    for outcome in outcomes:
        if outcome.row is None or outcome.receipt is None:
            continue
        row = outcome.row
        prompts.append(row.token_ids[: row.prompt_len])
        counts["mixed_prompts"] += not np.array_equal(prompts[0], prompts[-1])
        spoken = np.add.reduceat(row.logprobs != 0.0, row.offsets[:-1], dtype=np.int64)
        counts["positive_logprob_tokens"] += int((row.logprobs > 0.0).sum())
        counts["zero_logprob_generations"] += int((spoken == 0).sum())
        counts["weight_version_falls"] += int((row.weight_versions[1:] < row.weight_versions[:-1]).sum())
        counts["reward_disagreement"] += _reward_disagrees(outcome.receipt, outcome.rollout)
        counts["overlong_rows"] += len(row.token_ids) > config.max_seq_len
        counts["several_extended_roots"] += _extended_roots(outcome.receipt) > 1
        counts["zero_logprob_tokens"] += int(((row.logprobs == 0.0) & (row.token_mask == 1.0)).sum())
        counts["implausible_logprobs"] += int((row.logprobs < least).sum())
        counts["untrained_generated_tokens"] += outcome.untrained_tokens
        counts["unpredicted_first_token"] += bool(row.token_mask[0] == 1.0)
        if config.stop_token_ids:
            counts["stop_token_not_trained"] += _untrained_stops(row, config.stop_token_ids)
        if current is not None:
            counts["version_above_current"] += sum(
                version > current for version in outcome.receipt.lists["weight_version"]
            )
        if config.capture_media:
            counts["unchecked_media_calls"] += outcome.unproven_media
            counts["placeholder_token_outside_items"] += outcome.stray_placeholders
        if config.router_replay_enabled and outcome.routed_lens is not None and outcome.routed_lens.any():
            counts["routeless_calls"] += int((outcome.routed_lens == 0).sum())
        if outcome.topk is not None:
            counts["topk_unordered"] += outcome.topk.unordered
            counts["topk_disagreement"] += outcome.topk.disagreeing
        if config.route_boundary and outcome.rollout.route_plan is not None:
            counts["unrepaired_boundary_tokens"] += len(unrepaired_positions(outcome.rollout.route_plan))
        longest_run = max(longest_run, _longest_route_run(_route_ids(outcome.rollout)))
    if config.direct_routes:
        counts["repeated_route_run"] = longest_run
    return {f"advisory/{name}": float(count) for name, count in counts.items()}


def _untrained_stops(row: ChainRow, stop_token_ids: Sequence[int]) -> int:
    """Count the calls that begin with a stop token in their carry, after a generation that did not end in one."""
    bounds = row.offsets[1:-1]
    stops = np.isin(row.token_ids, np.array(stop_token_ids, dtype=np.int64))
    both = (row.carry_lens[1:] > 0) & (row.generation_lens[:-1] > 0)
    return int((both & stops[bounds] & ~stops[bounds - 1]).sum())


def _reward_disagrees(receipt: ReceiptColumns, rollout: FinalizedRow) -> bool:
    """Return whether the receipt names another reward than the one that is published; both as float32."""
    if receipt.reward is None:
        return False
    with np.errstate(over="ignore"):
        return float(np.float32(receipt.reward)) != rollout.reward


def _extended_roots(receipt: ReceiptColumns) -> int:
    """Count the root calls of the manifest that some call continues."""
    parents = receipt.lists["parent_call_id"]
    continued = set(parents)
    return sum(parent is None and call in continued for call, parent in zip(receipt.call_ids, parents, strict=True))
