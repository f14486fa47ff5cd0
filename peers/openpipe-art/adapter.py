"""OpenPipe ART: trajectories tokenized from what vLLM sampled, with their routes, and advantages by group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from absent import absent, unrun
from serving import Refusal, serve

absent("torch", "transformers")
unrun("art")

from art.preprocessing.moe_routing import (  # noqa: E402
    MoeRouteSegments,
    attach_moe_routing_metadata_to_choice,
    moe_route_dtype,
)
from art.preprocessing.tokenize import TokenizedResult, tokenize_trajectory_groups  # noqa: E402
from art.preprocessing.vllm_tokens import attach_vllm_token_metadata_to_choice  # noqa: E402
from art.trajectories import Trajectory, TrajectoryGroup  # noqa: E402
from openai.types.chat import ChatCompletionMessage  # noqa: E402
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs  # noqa: E402
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob  # noqa: E402

Call = dict[str, Any]


def choice_of(call: Call, vectors: list[Any] | None = None, num_experts: int | None = None) -> Choice:
    """Return a choice as vLLM answers it, with the ids and routes that ART's client keeps on it."""
    log_probs = None
    if call["log_probs"] is not None:
        tokens = [ChatCompletionTokenLogprob(token="", logprob=one, top_logprobs=[]) for one in call["log_probs"]]
        log_probs = ChoiceLogprobs(content=tokens)
    choice = Choice(
        finish_reason=call["finish_reason"],
        index=0,
        message=ChatCompletionMessage(role="assistant", content=""),
        logprobs=log_probs,
    )
    payload = {"prompt_token_ids": call["prompt_ids"], "choices": [{"token_ids": call["generated_ids"]}]}
    attach_vllm_token_metadata_to_choice(choice=choice, response_payload=payload)
    if vectors is not None and num_experts is not None:
        routes = np.array(vectors, dtype=moe_route_dtype(num_experts))
        attach_moe_routing_metadata_to_choice(
            choice=choice, response_payload=payload, routed_experts=routes, num_experts=num_experts
        )
    return choice


def trajectory_of(choices: list[Choice], reward: float) -> Trajectory:
    """Return a trajectory in which a user says something before every choice."""
    items = [item for choice in choices for item in ({"role": "user", "content": ""}, choice)]
    return Trajectory(messages_and_choices=items, reward=reward)


def tokenized(groups: list[list[Trajectory]], *, without_log_probs: bool = False) -> list[TokenizedResult]:
    """Tokenize groups in their order, without leaving out those whose rewards are equal."""
    return list(
        tokenize_trajectory_groups(
            SimpleNamespace(name_or_path="model"),
            [TrajectoryGroup(group) for group in groups],
            allow_training_without_logprobs=without_log_probs,
            scale_rewards=True,
            shuffle_group_trajectories=False,
            drop_zero_advantage_trajectories=False,
        )
    )


def row_of(result: TokenizedResult) -> dict[str, Any]:
    """Return a result as a row: where there is no log-prob, it has NaN."""
    log_probs = [None if value != value else value for value in result.logprobs]
    return {"ids": result.token_ids, "mask": result.assistant_mask, "log_probs": log_probs}


def merge_calls(
    calls: list[Call], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Tokenize a trajectory of these calls, and return its rows."""
    check_log_probs(calls)
    missing = any(call["log_probs"] is None for call in calls)
    results = tokenized([[trajectory_of([choice_of(call) for call in calls], reward)]], without_log_probs=missing)
    return {"rows": [row_of(result) for result in results], "dropped": []}


def check_log_probs(calls: list[Call]) -> None:
    """Refuse what ART refuses in words of its own: another number of log-probs than tokens."""
    if any(call["log_probs"] is not None and len(call["log_probs"]) != len(call["generated_ids"]) for call in calls):
        raise Refusal("choice logprob length does not match vLLM completion token ids")


def align_routes(
    calls: list[Call], captures: list[dict[str, Any] | None], num_experts: int, incremental: bool
) -> list[dict[str, Any]]:
    """Tokenize a trajectory whose choices have routes, and return its rows with them."""
    for call, capture in zip(calls, captures, strict=True):
        complete = len(call["prompt_ids"] + call["generated_ids"]) - 1
        if capture is None or capture["start"] or len(capture["vectors"]) != complete:
            raise Refusal("unreachable: vLLM answers with the routes of all tokens but the last")
    choices = [
        choice_of(
            {**call, "log_probs": [0.0] * len(call["generated_ids"])}, capture and capture["vectors"], num_experts
        )
        for call, capture in zip(calls, captures, strict=True)
    ]
    return [routed_row_of(result) for result in tokenized([[trajectory_of(choices, 0.0)]])]


def routed_row_of(result: TokenizedResult) -> dict[str, Any]:
    """Return a result as a row with routes."""
    routes = result.moe_routed_experts
    parts = routes.segments if isinstance(routes, MoeRouteSegments) else (routes,)
    vectors = [vector for part in parts for vector in np.asarray(part).tolist()]
    return {"ids": result.token_ids, "mask": result.assistant_mask, "routes": vectors}


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Compute the advantages of two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Compute the advantages of one batch; a row that trains nothing is a choice without log-probs."""
    groups: dict[str, dict[str, list[int]]] = {}
    for at, item in enumerate(items):
        groups.setdefault(item["group"], {}).setdefault(item["rollout"], []).append(at)
    batch = []
    for rollouts in groups.values():
        trajectories = []
        for rows in rollouts.values():
            calls = [
                {
                    "prompt_ids": [at],
                    "generated_ids": [at],
                    "log_probs": [0.0] if items[at]["trained"] else None,
                    "finish_reason": "stop",
                }
                for at in rows
            ]
            trajectories.append(trajectory_of([choice_of(call) for call in calls], items[rows[0]]["reward"]))
        batch.append(trajectories)
    found = {result.token_ids[0]: float(result.advantage) for result in tokenized(batch)}
    return [found.get(at, 0.0) for at in range(len(items))]


if __name__ == "__main__":
    serve(
        "openpipe-art",
        {
            "merge": {"merge_calls": merge_calls},
            "route-align": {"align_routes": align_routes},
            "advantage": {"advantages": advantages},
        },
    )
