"""Trinity-RFT: experiences made of a server's answers, the batch made of experiences, and advantages by task."""

from __future__ import annotations

import base64
import io
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
from absent import absent, unrun
from serving import Refusal, serve

absent("verl", "vllm")
unrun("trinity.trainer")

import verl  # noqa: E402

verl.DataProto.from_single_dict = staticmethod(lambda batch, *others, **options: batch)

from trinity.algorithm.advantage_fn.multi_step_grpo_advantage import StepWiseGRPOAdvantageFn  # noqa: E402
from trinity.common.experience import EID, Experience  # noqa: E402
from trinity.common.models.experience_extraction import convert_api_output_to_experience  # noqa: E402
from trinity.trainer.verl.utils import to_data_proto  # noqa: E402


def answer_of(call: dict[str, Any], routes: list[Any] | None = None) -> Any:
    """Return what the server answers for a call; vLLM's routes are an array of int32 in a file of numpy."""
    log_probs = [SimpleNamespace(logprob=value) for value in call["log_probs"] or ()]
    choice = SimpleNamespace(
        token_ids=call["generated_ids"],
        logprobs=SimpleNamespace(content=log_probs),
        message=SimpleNamespace(content=""),
    )
    if routes is not None:
        file = io.BytesIO()
        np.save(file, np.array(routes, dtype=np.int32))
        choice.routed_experts = base64.b64encode(file.getvalue()).decode()
    return SimpleNamespace(prompt_token_ids=call["prompt_ids"], choices=[choice])


def batch_of(calls: list[dict[str, Any]], routes: list[Any], reward: float, pad_id: int) -> dict[str, Any]:
    """Return the trainer's batch of some calls."""
    experiences: list[Experience] = []
    for call, captured in zip(calls, routes, strict=True):
        check_reachable(call)
        experiences += convert_api_output_to_experience(answer_of(call, captured))
    for experience in experiences:
        experience.reward = reward
    batch: dict[str, Any] = to_data_proto(experiences, pad_id, None, logging.getLogger())
    return batch


def check_reachable(call: dict[str, Any]) -> None:
    """Refuse what no server answers, and what an experience refuses itself."""
    if not call["prompt_ids"] or not call["generated_ids"]:
        raise Refusal("an experience has a prompt, and more tokens than its prompt")
    if call["log_probs"] is not None and len(call["log_probs"]) != len(call["generated_ids"]):
        raise Refusal("unreachable: the server answers with one log-prob per token")
    if call["log_probs"] is None:
        raise Refusal("unreachable: the server is asked for log-probs")
    if max(call["prompt_ids"] + call["generated_ids"]) >= 2**31:
        raise Refusal("unreachable: no vocabulary has ids beyond int32")


def columns_of(batch: dict[str, Any], at: int) -> dict[str, Any]:
    """Return ids, mask and attention of one row of a batch."""
    trained = batch["response_mask"][at].int().tolist()
    prompt = len(batch["prompts"][at])
    return {
        "ids": batch["input_ids"][at].tolist(),
        "mask": [0] * prompt + trained,
        "attention": batch["attention_mask"][at].tolist(),
    }


def merge_calls(
    calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Make an experience of each call, and a batch of all."""
    if not calls:
        return {"rows": [], "dropped": []}
    batch = batch_of(calls, [None] * len(calls), reward, pad_id)
    rows = []
    for at in range(len(calls)):
        row = columns_of(batch, at)
        prompt = len(batch["prompts"][at])
        rows.append({**row, "log_probs": [0.0] * prompt + batch["rollout_log_probs"][at].tolist()})
    return {"rows": rows, "dropped": []}


def align_routes(
    calls: list[dict[str, Any]], captures: list[dict[str, Any] | None], num_experts: int, incremental: bool
) -> list[dict[str, Any]]:
    """Make a batch of calls with the routes that each captured, of which the server answers all but the last."""
    if not calls:
        return []
    for call, capture in zip(calls, captures, strict=True):
        complete = len(call["prompt_ids"] + call["generated_ids"]) - 1
        if capture is None or capture["start"] or len(capture["vectors"]) != complete:
            raise Refusal("unreachable: the server answers with the routes of all tokens but the last")
    routes = [capture and capture["vectors"] for capture in captures]
    batch = batch_of([{**call, "log_probs": [0.0] * len(call["generated_ids"])} for call in calls], routes, 0.0, 0)
    return [{**columns_of(batch, at), "routes": batch["routed_experts"][at].tolist()} for at in range(len(calls))]


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Compute the advantages of two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Compute the advantages of one batch: a group is a task, a rollout a run, and its rows are steps."""
    experiences = [
        Experience(
            eid=EID(batch=0, task=item["group"], run=item["rollout"], step=item["row"], suffix=str(at)),
            tokens=[1, 2],
            prompt_length=1,
            action_mask=[item["trained"]],
            logprobs=[0.0],
            reward=item["reward"],
        )
        for at, item in enumerate(items)
    ]
    found, _ = StepWiseGRPOAdvantageFn().process(experiences)
    values = [0.0] * len(items)
    for experience in found:
        values[int(experience.eid.suffix)] = float(experience.advantages[0])
    return values


if __name__ == "__main__":
    serve(
        "trinity-rft",
        {
            "merge": {"merge_calls": merge_calls},
            "route-align": {"align_routes": align_routes},
            "advantage": {"advantages": advantages},
        },
    )
