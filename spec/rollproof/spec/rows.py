"""The N rows that a group publishes, columns and tags (section 8)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from rollproof.spec import media, routes, sampler
from rollproof.spec.constants import GROUP_KEY, ROUTE_PLAN_TAG, ROUTED_EXPERTS, ROW_PADDING
from rollproof.spec.outcomes import Dims, RolloutOutcome
from rollproof.spec.plan import encode_plan, placeholder_plan
from rollproof.spec.plane import PublishedRow
from rollproof.spec.records import FinalizedRollout, GroupRequest, ReassemblerConfig, RouteAssemblyPlan
from rollproof.spec.rollout import usable_reward
from rollproof.spec.tensor import Tensor


def build_rows(
    config: ReassemblerConfig, request: GroupRequest, outcomes: Sequence[RolloutOutcome], dims: Dims | None
) -> tuple[PublishedRow, ...]:
    """Return the N rows, in the order of the rollouts."""
    rollouts = [outcome.rollout for outcome in outcomes]
    prompt = sibling_prompt(config, rollouts)
    minimum = weight_range(request, rollouts)[0]
    media_fields = media.group_fields(rollouts)
    rows = []
    for index, rollout in enumerate(rollouts):
        columns = token_columns(config, rollout)
        # abs: a multiplier of -0.0 is published as +0.0. The two compare equal and differ in their bits (D2).
        weight = abs(usable_reward(request.loss_multiplier)) if rollout.valid else 0.0
        length = len(rollout.token_ids)
        columns |= {
            "input_lengths": Tensor.of("int64", [max(1, length)], ()),
            "sample_mask": Tensor.of("float32", [weight], ()),
            "prompt_ids_for_adv": Tensor.of("int64", prompt),
            "total_reward": Tensor.of("float32", [rollout.reward], ()),
            "mask_sample": Tensor.of("bool", [request.mask_sample[index]], ()),
            "truncated": Tensor.of("bool", [is_truncated(config, outcomes[index])], ()),
        }
        if config.publish_group_key:
            columns[GROUP_KEY] = Tensor.of("int64", group_key(request.group_id))
        if config.direct_routes and dims is not None:
            columns[ROUTED_EXPERTS] = routes.row_routes(rollout, max(1, length), dims)
        columns |= sampler.row_columns(config, outcomes[index].topk, max(1, length))
        columns |= media.row_columns(media_fields, index)
        tags: dict[str, Any] = {
            "weight_version": minimum,
            "prompt_idx": request.prompt_idx,
            "group_id": request.group_id,
        }
        tags |= media.row_shape_tags(media_fields, index)
        if config.defer_routed_experts_to_policy:
            tags[ROUTE_PLAN_TAG] = encode_plan(route_plan(config, outcomes[index]))
        rows.append(PublishedRow(columns, tags))
    return tuple(rows)


def is_truncated(config: ReassemblerConfig, outcome: RolloutOutcome) -> bool:
    """Return whether a row is cut off: it is as long as a row may be (decision D12), or its engine says so (D38)."""
    full = len(outcome.rollout.token_ids) >= config.max_seq_len
    return outcome.rollout.valid and (full or outcome.stopped_for_length)


def group_key(group_id: str) -> tuple[int, ...]:
    """Return a group's identity as numbers: SHA-256 of its id in UTF-8, as eight 32-bit words, the highest byte first.

    A trainer that compares prompts to find the rows of a group can compare these instead (decision D39).
    """
    digest = hashlib.sha256(group_id.encode("utf-8", "surrogatepass")).digest()
    return tuple(int.from_bytes(digest[at : at + 4], "big") for at in range(0, len(digest), 4))


def sibling_prompt(config: ReassemblerConfig, rollouts: Sequence[FinalizedRollout]) -> tuple[int, ...]:
    """Return the prompt that the per-prompt baseline groups by: the first valid row's, or the pad token."""
    for rollout in rollouts:
        if rollout.valid:
            return rollout.token_ids[: rollout.prompt_len] or (config.pad_token_id,)
    return (config.pad_token_id,)


def weight_range(request: GroupRequest, rollouts: Sequence[FinalizedRollout]) -> tuple[int, int]:
    """Return the oldest and newest weight version over valid rows; the fallback where there is none."""
    minima = [rollout.min_wv for rollout in rollouts if rollout.min_wv is not None]
    maxima = [rollout.max_wv for rollout in rollouts if rollout.max_wv is not None]
    fallback = request.fallback_weight_version
    return min(minima, default=fallback), max(maxima, default=fallback)


def token_columns(config: ReassemblerConfig, rollout: FinalizedRollout) -> dict[str, Tensor]:
    """Return the per-token columns; a placeholder is one pad token that trains nothing."""
    if not rollout.valid:
        rollout = evolve(rollout, token_ids=(config.pad_token_id,), token_mask=(0.0,), logprobs=(0.0,))
    return {
        "input_ids": Tensor.of("int64", rollout.token_ids),
        "token_mask": Tensor.of("float32", rollout.token_mask),
        "generation_logprobs": Tensor.of("float32", rollout.logprobs),
    }


def row_padding(column: str, pad_token_id: int) -> int | float | None:
    """Return what may follow a row's own values in a published column; None for a column that is never padded.

    Columns with one value per token are jagged, or padded on the right to the longest row, and with nothing else. Only
    ``input_lengths`` says how long a row is: a generated token may equal the pad token.
    """
    return pad_token_id if column == "input_ids" else ROW_PADDING.get(column)


def route_plan(config: ReassemblerConfig, outcome: RolloutOutcome) -> RouteAssemblyPlan:
    """Return the plan that a row carries in deferred mode; a placeholder's has no spans, but its rollout's keys."""
    return outcome.rollout.route_plan or placeholder_plan(config, outcome.own_keys)
