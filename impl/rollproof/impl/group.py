"""From N finalized rollouts to exactly N published rows (section 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray
from tensordict import TensorDict

from rollproof.impl import media, routes
from rollproof.impl.outcomes import Dims, FinalizedRollout, RolloutOutcome, RowColumns
from rollproof.impl.plan import encode_plan, placeholder_plan
from rollproof.impl.rollout import owned_keys, usable_reward
from rollproof.spec.constants import ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.records import GroupRequest, ReassemblerConfig, RouteAssemblyPlan


def argument_error(request: GroupRequest) -> str | None:
    """What is wrong with the caller's arguments (D13), or None."""
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
    expected = sample_ids(request)
    canonical = request.rollout_ids if request.canonical_sample_ids is None else request.canonical_sample_ids
    if list(canonical) != expected:
        return f"canonical sample ids: got {list(canonical)}, published are {expected}"
    return None


def sample_ids(request: GroupRequest) -> list[str]:
    """The ids of the published rows."""
    return [f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids))]


def cleanup_keys(request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> list[str]:
    """Every staging key that the group's rollouts own, rejected ones included (D14)."""
    pairs = zip(request.rollout_ids, outcomes, strict=True)
    return [key for rollout_id, outcome in pairs for key in owned_keys(rollout_id, outcome.receipt)]


def weight_range(request: GroupRequest, rollouts: Sequence[FinalizedRollout]) -> tuple[int, int]:
    """The oldest and newest weight version over valid rows; the fallback where there is none."""
    fallback = request.fallback_weight_version
    oldest = min((rollout.min_wv for rollout in rollouts if rollout.min_wv is not None), default=fallback)
    newest = max((rollout.max_wv for rollout in rollouts if rollout.max_wv is not None), default=fallback)
    return oldest, newest


def route_plans(config: ReassemblerConfig, outcomes: Sequence[RolloutOutcome]) -> list[RouteAssemblyPlan]:
    """Per row the plan that it carries in deferred mode; a placeholder's has no spans, but its rollout's keys."""
    return [
        outcome.rollout.route_plan
        or placeholder_plan(config.staging_partition, owned_keys(outcome.rollout.rollout_id, outcome.receipt))
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
) -> Publication:
    """The rows of a group in the order of its rollouts, with one tag dict each.

    Token columns are jagged int64 or float32 ``[N, j]``, routes int16 ``[N, j, L, K]``, the others dense ``[N]``,
    ``prompt_ids_for_adv`` ``[N, P]``. ``plans`` are the rows' route plans in deferred mode.
    """
    rollouts = [outcome.rollout for outcome in outcomes]
    rows = [rollout.columns if rollout.valid else _placeholder(config) for rollout in rollouts]
    both = list(zip(rollouts, rows, strict=True))
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
        "truncated": torch.tensor([rollout.valid and len(row) >= config.max_seq_len for rollout, row in both]),
    }
    if config.direct_routes and dims is not None:
        fields[ROUTED_EXPERTS] = routes.group_routes(rollouts, lengths, dims)
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
    """Arrays as one jagged nested tensor on the CPU."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = torch.from_numpy(np.concatenate(rows))
    return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(offsets))


def _float32(values: Iterable[float]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float32)


def _placeholder(config: ReassemblerConfig) -> RowColumns:
    """One pad token that trains nothing."""
    return RowColumns(np.array([config.pad_token_id], np.int64), np.zeros(1, np.float32), np.zeros(1, np.float32))


def _prompts(config: ReassemblerConfig, rollouts: Sequence[FinalizedRollout]) -> torch.Tensor:
    """``[N, P]``: what the per-prompt baseline groups by, the first valid row's prompt or the pad token."""
    prompt = np.array([config.pad_token_id], np.int64)
    for rollout in rollouts:
        if rollout.valid and rollout.prompt_len:
            prompt = rollout.columns.token_ids[: rollout.prompt_len]
        if rollout.valid:
            break
    return torch.from_numpy(np.tile(prompt, (len(rollouts), 1)))
