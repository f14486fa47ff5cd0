"""SkyRL: step-wise turns merged by prefix and laid out as a batch, routes beside them, and its advantages."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # type: ignore[misc] # its records need Python 3.12's, or this one

import numpy as np  # noqa: E402
import torch  # noqa: E402
from serving import Refusal, serve  # noqa: E402
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch  # noqa: E402
from skyrl.backends.skyrl_train.utils.routed_experts import compact_routed_expert_indices  # noqa: E402
from skyrl.train.dataset.preprocess import (  # noqa: E402
    convert_prompts_responses_to_batch_tensors,
    make_router_padding_mask,
)
from skyrl.train.generators.base import TrajectoryID  # noqa: E402
from skyrl.train.generators.utils import merge_stepwise_output  # noqa: E402
from skyrl.train.trainer import RayPPOTrainer  # noqa: E402
from skyrl.train.utils.trainer_utils import validate_generator_output  # noqa: E402

Json = dict[str, Any]
WIDTH = 2


def steps_of(calls: list[Json], reward: float, routes: list[Any] | None = None) -> Json:
    """Return the calls of one rollout as the output of a step-wise generator, which the package has validated."""
    with_log_probs = [call["log_probs"] is not None for call in calls]
    if any(with_log_probs) and not all(with_log_probs):
        raise Refusal("log_probs: a generator gives log-probs for all steps or for none")
    rewards = [[0.0] * len(call["generated_ids"]) for call in calls]
    if rewards[-1]:
        rewards[-1][-1] = reward
    output = {
        "prompt_token_ids": [list(call["prompt_ids"]) for call in calls],
        "response_ids": [list(call["generated_ids"]) for call in calls],
        "rewards": rewards,
        "loss_masks": [[1] * len(call["generated_ids"]) for call in calls],
        "stop_reasons": [call["finish_reason"] for call in calls],
        "rollout_metrics": None,
        "rollout_logprobs": [list(call["log_probs"]) for call in calls] if all(with_log_probs) else None,
        "trajectory_ids": [TrajectoryID("prompt", 0) for _ in calls],
        "rollout_expert_indices": routes,
        "is_last_step": [index == len(calls) - 1 for index in range(len(calls))],
    }
    try:
        validate_generator_output(1, output, step_wise=True)
    except (AssertionError, RuntimeError) as error:
        raise Refusal(f"validate_generator_output: {error}") from None
    return output


def merge_calls(calls: list[Json], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]) -> Json:
    """Return one row per group of merged steps, left-padded as the trainer has them."""
    if not calls:
        raise Refusal("no_calls: a trajectory has at least one step")
    merged = merge_stepwise_output(steps_of(calls, reward))
    sequences, attention, _, _, masks, log_probs, _, _ = convert_prompts_responses_to_batch_tensors(
        pad_id,
        merged["prompt_token_ids"],
        merged["response_ids"],
        merged["rewards"],
        merged["loss_masks"],
        merged["rollout_logprobs"],
        max_seq_len=max_len,
    )
    before = sequences.shape[1] - masks.shape[1]
    rows = [
        {
            "ids": sequences[index].tolist(),
            "mask": [0] * before + [int(one) for one in masks[index].tolist()],
            "log_probs": None if log_probs is None else [None] * before + log_probs[index].tolist(),
            "attention": attention[index].tolist(),
        }
        for index in range(len(sequences))
    ]
    return {"rows": rows, "dropped": []}


def align_routes(calls: list[Json], captures: list[Json | None], num_experts: int, incremental: bool) -> list[Json]:
    """Return one row per step with its own routes: the package does not merge steps that have routes."""
    if not calls or incremental or any(captured is None or captured["start"] for captured in captures):
        raise Refusal("whole_contexts: each step has the routes of its whole context, from its first token on")
    routes = []
    for captured in captures:
        vectors = np.array(captured["vectors"], dtype=np.int64)  # type: ignore[index]
        if vectors.ndim != 3:
            raise Refusal("no_routes: a step without a single route")
        routes.append(compact_routed_expert_indices(vectors))
    output = steps_of(calls, 0.0, routes)
    converted = convert_prompts_responses_to_batch_tensors(
        0,
        output["prompt_token_ids"],
        output["response_ids"],
        output["rewards"],
        output["loss_masks"],
        output["rollout_logprobs"],
        rollout_expert_indices=routes,
    )
    attention, packed = converted[1], converted[6]
    padding = make_router_padding_mask(attention, [len(one) for one in routes])
    rows = []
    for index in range(len(calls)):
        start, end = int(packed.cu_seqlens[index]), int(packed.cu_seqlens[index + 1])
        ids = output["prompt_token_ids"][index] + output["response_ids"][index]
        rows.append(
            {
                "ids": ids,
                "mask": [0] * len(output["prompt_token_ids"][index]) + output["loss_masks"][index],
                "routes": packed.values[start:end].tolist(),
                "fill": [int(one) for one in padding[index][attention[index].bool()].tolist()],
                "attention": None,
            }
        )
    return rows


def advantages(first: list[Json], second: list[Json]) -> Json:
    """Return the values of both batches."""
    return {"first": values(first), "second": values(second)}


def values(batch: list[Json]) -> list[float]:
    """Return the advantage of each row by the trainer's own method, with the steps of a rollout side by side."""
    if not batch:
        return []
    rollouts = list(dict.fromkeys(row["rollout"] for row in batch))
    order = sorted(range(len(batch)), key=lambda at: (rollouts.index(batch[at]["rollout"]), batch[at]["row"]))
    rows = [batch[at] for at in order]
    following = [*rows[1:], None]
    is_last = [after is None or after["rollout"] != row["rollout"] for row, after in zip(rows, following, strict=True)]
    mask = torch.ones(len(rows), WIDTH, dtype=torch.long)
    rewards = torch.zeros(len(rows), WIDTH)
    rewards[:, -1] = torch.tensor([row["reward"] for row in rows], dtype=torch.float32)
    data = TrainingInputBatch(
        {
            "sequences": mask.clone(),
            "response_mask": mask,
            "loss_mask": mask * torch.tensor([[int(row["trained"])] for row in rows]),
            "rewards": rewards,
            "values": None,
        }
    )
    data.metadata = {
        "uids": [row["group"] for row in rows],
        "is_last_step": is_last,
        "avg_response_length": float(WIDTH),
    }
    algorithm = SimpleNamespace(advantage_estimator="grpo", gamma=1.0, lambd=1.0, grpo_norm_by_std=True)
    config = SimpleNamespace(
        generator=SimpleNamespace(step_wise_trajectories=True), trainer=SimpleNamespace(algorithm=algorithm)
    )
    trainer = SimpleNamespace(cfg=config, all_metrics={})
    found = RayPPOTrainer.compute_advantages_and_returns(trainer, data)["advantages"][:, 0].tolist()
    by_place = dict(zip(order, found, strict=True))
    return [float(by_place[at]) for at in range(len(batch))]


if __name__ == "__main__":
    serve(
        "skyrl",
        {
            "merge": {"merge_calls": merge_calls},
            "route-align": {"align_routes": align_routes},
            "advantage": {"advantages": advantages},
        },
    )
