"""agent-lightning: the triplets of a rollout to verl's batch, at level trajectory, and its rollout-level advantage."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import torch
from agentlightning.verl.agl_rollout_manager import CompletedRollout, Triplet
from agentlightning.verl.rollout_adapter import RolloutAdapter
from agentlightning.verl.rollout_level_advantage import compute_rollout_level_advantage
from serving import Refusal, serve
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator

Json = dict[str, Any]
NO_ROWS = "zero training rows"


def npy(captured: Json | None) -> str | None:
    """Return captured routes as the gateway records them: a .npy file in base64."""
    if captured is None:
        return None
    buffer = io.BytesIO()
    np.save(buffer, np.array(captured["vectors"], dtype=np.int64), allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def rollout_of(calls: list[Json], reward: float, captures: list[Json | None] | None = None, **names: str) -> Any:
    """Return the calls of one rollout as a completed rollout with one triplet each."""
    triplets = []
    for index, call in enumerate(calls):
        log_probs = None if call["log_probs"] is None else list(call["log_probs"])
        response = {"token_ids": list(call["generated_ids"]), "log_probs": log_probs}
        if captures is not None:
            response["routed_experts"] = npy(captures[index])
        triplets.append(Triplet(prompt={"token_ids": list(call["prompt_ids"])}, response=response))
    return CompletedRollout(
        rollout_id=names.get("rollout", "rollout"),
        data_id=names.get("group", "prompt"),
        step=0,
        sample_idx_in_step=0,
        enqueue_time=0.0,
        final_reward=reward,
        triplets=triplets,
    )


def batch_of(rollouts: list[Any], prompt: int, response: int, total: int | None, pad_id: int) -> DataProto | None:
    """Return verl's batch of some rollouts, None where nothing is left to train."""
    adapter = RolloutAdapter(
        max_prompt_length=prompt,
        max_response_length=response,
        max_total_length=total,
        device=torch.device("cpu"),
        pad_token_id=pad_id,
        trace_aggregator_level="trajectory",
    )
    try:
        return adapter.get_train_data_batch(rollouts)[0]
    except RuntimeError as error:
        if NO_ROWS in str(error):
            return None
        if "R3" in str(error):
            raise Refusal(f"routes: {error}") from None
        raise


def merge_calls(calls: list[Json], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]) -> Json:
    """Return one row per group of merged triplets."""
    if not calls:
        raise Refusal("no_calls: a rollout without triplets is skipped")
    longest = max(len(call["prompt_ids"]) + len(call["generated_ids"]) for call in calls)
    batch = batch_of([rollout_of(calls, reward)], max(longest, 1), longest + 1, max_len, pad_id)
    return {"rows": [] if batch is None else rows_of(batch), "dropped": over_limit(calls, max_len)}


def over_limit(calls: list[Json], max_len: int | None) -> list[list[Any]]:
    """Return the calls that the total length cuts."""
    ends = [len(call["prompt_ids"]) + len(call["generated_ids"]) for call in calls]
    return [[index, "over-limit"] for index, end in enumerate(ends) if max_len is not None and end > max_len]


def rows_of(batch: DataProto) -> list[Json]:
    """Return the rows of a batch that the trainer keeps."""
    columns = batch.batch
    prompt = columns["prompts"].shape[1]
    rows = []
    for index in range(len(batch)):
        if columns["is_drop_mask"][index]:
            continue
        log_probs = None
        if "rollout_log_probs" in columns:
            log_probs = [None] * prompt + columns["rollout_log_probs"][index].tolist()
        rows.append(
            {
                "ids": columns["input_ids"][index].tolist(),
                "mask": [0] * prompt + columns["response_mask"][index].tolist(),
                "log_probs": log_probs,
                "attention": columns["attention_mask"][index].tolist(),
            }
        )
    return rows


def align_routes(calls: list[Json], captures: list[Json | None], num_experts: int, incremental: bool) -> list[Json]:
    """Return the rows of a rollout with the routes of each group's last triplet, which are of its whole context."""
    if not calls or incremental or any(captured is None or captured["start"] for captured in captures):
        raise Refusal("whole_contexts: a triplet has the routes of its whole context, from its first token on")
    if any(not captured["vectors"] for captured in captures):  # type: ignore[index]
        raise Refusal("no_routes: a triplet without a single route")
    longest = max(len(call["prompt_ids"]) + len(call["generated_ids"]) for call in calls)
    batch = batch_of([rollout_of(calls, 0.0, captures)], max(longest, 1), longest + 1, None, 0)
    if batch is None:
        return []
    routes = batch.batch["routed_experts"].tolist()
    return [
        {
            "ids": row["ids"],
            "mask": row["mask"],
            "routes": vectors,
            "fill": None,
            "attention": row["attention"],
        }
        for row, vectors in zip(rows_of(batch), routes, strict=True)
    ]


def advantages(first: list[Json], second: list[Json]) -> Json:
    """Return the values of both batches."""
    return {"first": values(first), "second": values(second)}


def values(batch: list[Json]) -> list[float]:
    """Return each row's advantage: rollouts become verl's batch, whose rewards the package then compares.

    Two turns that do not extend each other make two rows of a rollout. A row that trains nothing is none of the batch.
    """
    kept = [at for at, row in enumerate(batch) if row["trained"]]
    if not kept:
        return [0.0] * len(batch)
    places: dict[str, list[int]] = {}
    for at in kept:
        places.setdefault(batch[at]["rollout"], []).append(at)
    rollouts = []
    for name, rows in places.items():
        calls = [{"prompt_ids": [2 + index], "generated_ids": [2], "log_probs": None} for index in range(len(rows))]
        rollouts.append(rollout_of(calls, batch[rows[0]]["reward"], rollout=name, group=batch[rows[0]]["group"]))
    data = batch_of(rollouts, 2, 2, None, 0)
    assert data is not None
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    try:
        data, _ = compute_rollout_level_advantage(
            data, adv_estimator=AdvantageEstimator.GRPO, gamma=1.0, lam=1.0, num_repeat=1
        )
    except RuntimeError as error:
        if not str(error).startswith("rollout-level advantage"):
            raise
        raise Refusal(f"rollout_level_advantage: {error}") from None
    found = [0.0] * len(batch)
    order = [at for rows in places.values() for at in rows]
    for at, value in zip(order, data.batch["advantages"][:, 0].tolist(), strict=True):
        found[at] = float(value)
    return found


if __name__ == "__main__":
    serve(
        "agent-lightning",
        {
            "merge": {"merge_calls": merge_calls},
            "route-align": {"align_routes": align_routes},
            "advantage": {"advantages": advantages},
        },
    )
