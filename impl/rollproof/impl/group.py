"""From N finalized rollouts to exactly N published rows (section 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from tensordict import TensorDict

from rollproof.impl import media, routes
from rollproof.impl.checks import is_length, show
from rollproof.impl.in_place import GroupMemory
from rollproof.impl.metrics import group_metrics
from rollproof.impl.nested import nested_from
from rollproof.impl.outcomes import Dims, FinalizedGroup, FinalizedRow, RolloutOutcome, RowColumns
from rollproof.impl.plan import RouteAssemblyPlan, encode_plan, placeholder_plan
from rollproof.impl.rollout import usable_reward
from rollproof.impl.sampler import group_topk
from rollproof.spec.constants import GROUP_KEY, ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.records import GroupRequest, ReassemblerConfig


def argument_error(request: GroupRequest) -> str | None:
    """Return what is wrong with the caller's arguments (D13), or None."""
    count = len(request.rollout_ids)
    if not count == len(request.receipts) == len(request.rewards) == len(request.mask_sample):
        return "rollout_ids, receipts, rewards and mask_sample differ in length"
    if count == 0:
        return "a group has at least one rollout"
    if len(set(request.rollout_ids)) != count:
        return "rollout_ids repeat"
    weight = usable_reward(request.loss_multiplier)
    if weight is None or weight < 0.0:
        return f"loss_multiplier: {request.loss_multiplier!r} is negative or has no finite float32"
    if not is_length(request.fallback_weight_version):
        return f"fallback_weight_version: got {show(request.fallback_weight_version)}, expected an int in [0, 2**63)"
    current = request.current_weight_version
    if current is not None and not is_length(current):
        return f"current_weight_version: got {show(current)}, expected an int in [0, 2**63) or None"
    expected = sample_ids(request)
    canonical = request.rollout_ids if request.canonical_sample_ids is None else request.canonical_sample_ids
    if list(canonical) != expected:
        return f"canonical sample ids: got {list(canonical)}, published are {expected}"
    return None


def sample_ids(request: GroupRequest) -> list[str]:
    """Return the ids of the published rows."""
    return [f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids))]


def cleanup_keys(outcomes: Sequence[RolloutOutcome]) -> list[str]:
    """Return every staging key that the group's rollouts own, rejected ones included (D14, D34)."""
    return [key for outcome in outcomes for key in outcome.own_keys]


def weight_range(request: GroupRequest, rollouts: Sequence[FinalizedRow]) -> tuple[int, int]:
    """Return the oldest and newest weight version over valid rows; the fallback where there is none."""
    fallback = request.fallback_weight_version
    oldest = min((rollout.min_wv for rollout in rollouts if rollout.min_wv is not None), default=fallback)
    newest = max((rollout.max_wv for rollout in rollouts if rollout.max_wv is not None), default=fallback)
    return oldest, newest


def route_plans(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome]) -> list[RouteAssemblyPlan]:
    """Return each row's plan in deferred mode; a placeholder's has no spans, but its rollout's keys."""
    return [
        outcome.rollout.route_plan or placeholder_plan(config.staging_partition, outcome.own_keys)
        for outcome in outcomes
    ]


@frozen(eq=False)
class Publication:
    """N rows, ready to be put."""

    fields: TensorDict
    tags: list[dict[str, Any]]
    lengths: list[int]


def build(
    config: ReassemblerConfig,
    request: GroupRequest,
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
    dims: Dims | None,
    memory: GroupMemory | None = None,
) -> Publication:
    """Return the rows of a group in the order of its rollouts, with one tag dict each.

    Token columns are jagged int64 or float32 ``[N, j]``, routes int16 ``[N, j, L, K]``, sampler columns ``[N, j, k]``,
    the others dense ``[N]``, ``prompt_ids_for_adv`` ``[N, P]``, ``group_key`` ``[N, 8]``. ``plans`` are the rows' route
    plans in deferred mode, ``memory`` is where routes and pixels may have been written already.
    """
    rollouts = [outcome.rollout for outcome in outcomes]
    rows = [rollout.columns if rollout.valid else _placeholder(config) for rollout in rollouts]
    lengths = [len(row) for row in rows]
    weight = abs(usable_reward(request.loss_multiplier) or 0.0)
    media_fields = media.group_fields(rollouts) if config.capture_media else {}
    fields: dict[str, torch.Tensor] = {
        "input_ids": jagged([row.token_ids for row in rows]),
        "input_lengths": torch.tensor(lengths, dtype=torch.int64),
        "generation_logprobs": jagged([row.logprobs for row in rows]),
        "token_mask": jagged([row.token_mask for row in rows]),
        "sample_mask": _float32(weight if rollout.valid else 0.0 for rollout in rollouts),
        "prompt_ids_for_adv": _prompts(config, rollouts),
        "total_reward": _float32(rollout.reward for rollout in rollouts),
        "mask_sample": torch.tensor([bool(flag) for flag in request.mask_sample]),
        "truncated": torch.tensor([_is_truncated(config, outcome) for outcome in outcomes]),
    }
    if config.publish_group_key:
        fields[GROUP_KEY] = _group_key(request.group_id).repeat(len(rollouts), 1)
    if config.direct_routes and dims is not None:
        fields[ROUTED_EXPERTS] = routes.group_routes(rollouts, lengths, dims, None if memory is None else memory.routes)
    if config.top_logprobs:
        topk = group_topk([outcome.topk for outcome in outcomes], lengths, config.top_logprobs)
        fields |= {name: jagged(column) for name, column in topk.items()}
    tags: list[dict[str, Any]] = []
    minimum = weight_range(request, rollouts)[0]
    for index in range(len(rollouts)):
        tag: dict[str, Any] = {"weight_version": minimum}
        tag |= {"prompt_idx": request.prompt_idx, "group_id": request.group_id}
        if media_fields:
            tag |= media.row_shape_tags(media_fields, index)
        if config.defer_routed_experts_to_policy:
            tag[ROUTE_PLAN_TAG] = encode_plan(plans[index])
        tags.append(tag)
    return Publication(TensorDict(fields | media.wire_columns(media_fields), batch_size=[len(rollouts)]), tags, lengths)


def jagged(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    """Return arrays as one jagged nested tensor on the CPU."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = torch.from_numpy(np.concatenate(rows))
    return nested_from(values, torch.from_numpy(offsets))


def _float32(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float32)


def _is_truncated(config: ReassemblerConfig, outcome: RolloutOutcome) -> bool:
    """Return whether a valid row is full (D12), or says that it was stopped for its length (D38)."""
    full = len(outcome.rollout.columns) >= config.max_seq_len
    return outcome.rollout.valid and (full or outcome.stopped_for_length)


def _placeholder(config: ReassemblerConfig) -> RowColumns:
    """Return one pad token that trains nothing."""
    return RowColumns(np.array([config.pad_token_id], np.int64), np.zeros(1, np.float32), np.zeros(1, np.float32))


def _group_key(group_id: str) -> torch.Tensor:
    """Return int64 ``[8]``: SHA-256 of a group's id, as 32-bit words (D39)."""
    digest = sha256(group_id.encode("utf-8", "surrogatepass")).digest()
    return torch.from_numpy(np.frombuffer(digest, dtype=">u4").astype(np.int64))


def _prompts(config: ReassemblerConfig, rollouts: Sequence[FinalizedRow]) -> torch.Tensor:
    """Return ``[N, P]``, the prompts of the per-prompt baseline: the first valid row's prompt or the pad token."""
    prompt = np.array([config.pad_token_id], np.int64)
    for rollout in rollouts:
        if rollout.valid and rollout.prompt_len:
            prompt = rollout.columns.token_ids[: rollout.prompt_len]
        if rollout.valid:
            break
    return torch.from_numpy(np.tile(prompt, (len(rollouts), 1)))


# ── the result ──────────────────────────────────────────────────────────────────────────────────────────────────────


def describe(
    config: ReassemblerConfig,
    request: GroupRequest,
    outcomes: Sequence[RolloutOutcome],
    plans: Sequence[RouteAssemblyPlan],
    extra: Mapping[str, float],
) -> FinalizedGroup:
    """Return the group's result without what publication adds: batch metadata and keys left to the policy.

    ``extra`` are metrics that the caller handed in.
    """
    minimum, maximum = weight_range(request, [outcome.rollout for outcome in outcomes])
    rows = [outcome.row for outcome in outcomes if outcome.row is not None]
    return FinalizedGroup(
        meta=None,
        group_min_wv=minimum,
        group_max_wv=maximum,
        staging_keys=[],
        canonical_output_tokens=sum(int(row.generation_lens.sum()) for row in rows),
        metrics={**extra, **group_metrics(config, request.receipts, outcomes, plans, request.current_weight_version)},
        valid_row_count=len(rows),
        total_row_count=len(outcomes),
    )


def drop(result: FinalizedGroup) -> FinalizedGroup:
    """Return the result of a group without a valid row and without a shape for the routes of placeholders."""
    return replace(
        result,
        metrics=result.metrics | {"finalize/group_dropped": 1.0},
        dropped=True,
        drop_reason="no valid rollout, and the (layers, top-k) of routes is unknown",
        valid_row_count=0,
        total_row_count=0,
    )
