"""verl: its tool agent loop with what a worker does to the loop's output, and its group-relative advantage.

The loop itself builds every prompt but the first one, by appending what a tool returned. So a session in which a prompt
is anything but the context before it, and more, is not one that it can have, and is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from serving import Refusal, serve
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import FunctionTool
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.workers.rollout.replica import TokenOutput

Json = dict[str, Any]
LONGEST = 1 << 20
SCHEMA = {
    "type": "function",
    "function": {
        "name": "observe",
        "description": "The next observation.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


class IdTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """A tokenizer that pads as transformers does, and whose chat template is token ids in decimal."""

    def __init__(self, pad_id: int) -> None:
        super().__init__(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")), pad_token="?")
        self.pad_id = pad_id

    @property
    def pad_token_id(self) -> int:
        """The pad id of the request."""
        return self.pad_id

    def apply_chat_template(self, messages: list[Json], **_: Any) -> list[int]:
        """Return the ids that the messages of a session hold; any other message has none."""
        words = [word for message in messages for word in str(message.get("content") or "").split()]
        return [int(word) for word in words if word.isdigit()]


class Server:
    """The inference server: answers with the recorded generations, in order."""

    def __init__(self, calls: list[Json], captures: list[Json | None] | None = None) -> None:
        self.calls = calls
        self.captures = captures
        self.turn = -1

    async def generate(self, prompt_ids: list[int], **_: Any) -> TokenOutput:
        """Return the next recorded generation. The prompt must be the recorded one."""
        self.turn += 1
        call = self.calls[self.turn]
        if list(prompt_ids) != call["prompt_ids"]:
            raise AssertionError(f"the loop asks {list(prompt_ids)}, recorded was {call['prompt_ids']}")
        log_probs = call["log_probs"]
        return TokenOutput(
            token_ids=list(call["generated_ids"]),
            log_probs=None if log_probs is None else list(log_probs),
            routed_experts=None if self.captures is None else vectors_of(self.captures[self.turn]),
            stop_reason="completed",
        )


def vectors_of(captured: Json | None) -> np.ndarray[Any, Any] | None:
    """Return captured routes as a server returns them."""
    return None if captured is None else np.array(captured["vectors"], dtype=np.int64)


@ToolParser.register("recorded")
class RecordedCalls(ToolParser):  # type: ignore[misc]
    """A parser that finds a tool call in every generation but the last one."""

    left = 0

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        """Return one call while there are more recorded turns."""
        type(self).left -= 1
        return "", [FunctionCall(name="observe", arguments="{}")] if type(self).left > 0 else []


def observations(calls: list[Json]) -> list[list[int]]:
    """Return what the environment appended before each call but the first. Raises ``Refusal``."""
    found = []
    for before, call in itertools.pairwise(calls):
        context = before["prompt_ids"] + before["generated_ids"]
        if call["prompt_ids"][: len(context)] != context:
            raise Refusal("not_a_session_of_the_loop: a prompt does not begin with the context before it")
        found.append(call["prompt_ids"][len(context) :])
    return found


def limits(calls: list[Json], max_len: int | None) -> tuple[int, int]:
    """Return the longest prompt and response. Raises ``Refusal`` where a limit would cut the prompt."""
    prompt = len(calls[0]["prompt_ids"])
    longest = max(len(call["prompt_ids"]) + len(call["generated_ids"]) for call in calls)
    response = longest + 1 if max_len is None else max_len - prompt
    if response < 1:
        raise Refusal("prompt_too_long: the dataset leaves out prompts that leave no room for a response")
    return max(prompt, 1), response


def run_loop(calls: list[Json], max_len: int | None, pad_id: int, captures: list[Json | None] | None = None) -> Any:
    """Return the padded output of one rollout: the loop's, as a worker hands it on to the trainer."""
    if not calls:
        raise Refusal("no_calls: the loop begins with a call")
    prompt_length, response_length = limits(calls, max_len)
    following = iter(observations(calls))
    multi_turn = {
        "max_user_turns": None,
        "max_assistant_turns": None,
        "max_parallel_calls": 1,
        "max_tool_response_length": LONGEST,
        "tool_response_truncate_side": "right",
        "format": "recorded",
    }
    rollout = {
        "prompt_length": prompt_length,
        "response_length": response_length,
        "full_determinism": False,
        "multi_turn": multi_turn,
    }
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    tool = FunctionTool(
        name="observe",
        fn=lambda: " ".join(map(str, next(following))),
        tool_schema=OpenAIFunctionToolSchema.model_validate(SCHEMA),
    )
    RecordedCalls.left = len(calls)
    tokenizer = IdTokenizer(pad_id)
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.config, worker.rollout_config = config, config.actor_rollout_ref.rollout
    worker.tokenizer, worker.processor, worker.mm_processor_kwargs = tokenizer, None, {}
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False

    async def rollout_once() -> Any:
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=Server(calls, captures),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            tools=ToolListWrap([tool]),
        )
        raw_prompt = [{"role": "user", "content": " ".join(map(str, calls[0]["prompt_ids"]))}]
        output = await loop.run({}, raw_prompt=raw_prompt)
        return await worker._agent_loop_postprocess(output, False, raw_prompt=raw_prompt)

    try:
        internal = asyncio.new_event_loop().run_until_complete(rollout_once())
    except ValueError as error:
        if "logprobs" in str(error):
            raise Refusal(f"log_probs: {error}") from None
        raise
    return worker._postprocess([internal]).batch


def over_limit(calls: list[Json], max_len: int | None) -> list[list[Any]]:
    """Return the calls that the response length cuts, or that it keeps from being made."""
    if max_len is None:
        return []
    ends = [len(call["prompt_ids"]) + len(call["generated_ids"]) for call in calls]
    return [[index, "over-limit"] for index, end in enumerate(ends) if end > max_len]


def merge_calls(calls: list[Json], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]) -> Json:
    """Return the row of a rollout."""
    batch = run_loop(calls, max_len, pad_id)
    prompt = batch["prompts"].shape[1]
    log_probs = None
    if "rollout_log_probs" in batch.keys():  # noqa: SIM118 - a TensorDict
        log_probs = [None] * prompt + batch["rollout_log_probs"][0].tolist()
    row = {
        "ids": batch["input_ids"][0].tolist(),
        "mask": [0] * prompt + batch["response_mask"][0].tolist(),
        "log_probs": log_probs,
        "attention": batch["attention_mask"][0].tolist(),
    }
    return {"rows": [row], "dropped": over_limit(calls, max_len)}


def align_routes(calls: list[Json], captures: list[Json | None], num_experts: int, incremental: bool) -> list[Json]:
    """Return the row of a rollout with its routes; the server returns those of the whole context with each call."""
    if incremental or any(captured is None or captured["start"] for captured in captures):
        raise Refusal(
            "whole_contexts: the loop keeps the routes of the last call alone, which are of its whole context"
        )
    batch = run_loop(calls, None, 0, captures)
    prompt = batch["prompts"].shape[1]
    return [
        {
            "ids": batch["input_ids"][0].tolist(),
            "mask": [0] * prompt + batch["response_mask"][0].tolist(),
            "routes": batch["routed_experts"][0].tolist(),
            "fill": None,
            "attention": batch["attention_mask"][0].tolist(),
        }
    ]


def advantages(first: list[Json], second: list[Json]) -> Json:
    """Return the values of both batches."""
    return {"first": values(first), "second": values(second)}


def values(batch: list[Json]) -> list[float]:
    """Return the group-relative advantage of each row: the number that its tokens get.

    A row that trains nothing has a mask of zeros.
    """
    if not batch:
        return []
    width = 2
    mask = torch.tensor([[float(row["trained"])] * width for row in batch])
    rewards = torch.zeros(len(batch), width)
    rewards[:, -1] = torch.tensor([row["reward"] for row in batch], dtype=torch.float32)
    groups = np.array([row["group"] for row in batch], dtype=object)
    found, _ = compute_grpo_outcome_advantage(rewards, mask, groups)
    return [float(value) for value in found[:, 0]]


if __name__ == "__main__":
    serve(
        "verl",
        {
            "merge": {"merge_calls": merge_calls},
            "route-align": {"align_routes": align_routes},
            "advantage": {"advantages": advantages},
        },
    )
