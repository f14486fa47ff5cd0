"""OpenRLHF: the multi-turn agent executor, the experience made of its response, and advantages by group.

``OPENRLHF_ESTIMATOR`` chooses the estimator of advantages, ``group_norm`` where it is not set.
"""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from absent import absent
from refusals import refuse_mixed_log_probs, rollouts_per_prompt
from serving import Refusal, serve

absent(
    "accelerate", "bitsandbytes", "datasets", "deepspeed", "flash_attn", "peft", "ring_flash_attn", "torchdata", "vllm"
)

import torch  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # noqa: E402
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor  # noqa: E402

ESTIMATOR = os.environ.get("OPENRLHF_ESTIMATOR", "group_norm")
FAR = 10**6


class Tokens:
    """Stands in for the tokenizer: a text is the ids in it."""

    def __call__(self, text: str, **options: Any) -> dict[str, torch.Tensor]:
        """Return the ids of a text, in a tensor."""
        return {"input_ids": torch.tensor([[int(one) for one in text.split()]], dtype=torch.long)}

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the text of ids."""
        return "".join(f"{one} " for one in ids)


class Engine:
    """Stands in for vLLM: answers with the generations of a session, in their order."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.calls, self.asked = calls, 0

    async def generate(self, prompt: list[int], params: Any, **options: Any) -> Any:
        """Return an output as vLLM does."""
        call = self.calls[self.asked]
        if prompt != call["prompt_ids"]:
            raise Refusal("unreachable: the executor asks its engine for another prompt")
        if len(call["generated_ids"]) > params.max_tokens:
            raise Refusal("unreachable: the executor asks its engine for fewer tokens")
        self.asked += 1
        log_probs = call["log_probs"] and [
            {token: SimpleNamespace(logprob=value)}
            for token, value in zip(call["generated_ids"], call["log_probs"], strict=True)
        ]
        output = SimpleNamespace(
            token_ids=list(call["generated_ids"]),
            text=Tokens().decode(call["generated_ids"]),
            finish_reason=call["finish_reason"],
            logprobs=log_probs or [],
        )
        return SimpleNamespace(outputs=[output])


def agent_of(engine: Engine, reward: float) -> type[AgentInstanceBase]:
    """Return an agent whose feedback is what stands between two calls."""

    class Agent(AgentInstanceBase):
        def __init__(self) -> None:
            """Keep nothing."""

        async def step(self, state_dict: dict[str, Any], **options: Any) -> dict[str, Any]:
            """Answer a generation."""
            done = engine.asked == len(engine.calls)
            context = engine.calls[engine.asked - 1]["prompt_ids"] + engine.calls[engine.asked - 1]["generated_ids"]
            feedback = [] if done else engine.calls[engine.asked]["prompt_ids"][len(context) :]
            rewards = torch.tensor(reward if done else 0.0)
            return {"rewards": rewards, "environment_feedback": Tokens().decode(feedback), "done": done}

    return Agent


def merge_calls(
    calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Run an agent whose turns are these calls, and make an experience of it."""
    check_reachable(calls)
    engine = Engine(calls)
    limit = FAR if max_len is None else max_len
    params = SimpleNamespace(max_tokens=None, logprobs=None if calls[0]["log_probs"] is None else 1)
    response = asyncio.run(
        MultiTurnAgentExecutor(agent_of(engine, reward)).execute(
            prompt=Tokens().decode(calls[0]["prompt_ids"]),
            label=None,
            sampling_params=params,
            max_length=limit,
            hf_tokenizer=Tokens(),
            llm_engine=engine,
        )
    )
    experience = object.__new__(SamplesGenerator)._process_response_into_experience(response, max_len=limit)
    log_probs = experience.rollout_log_probs
    row = {
        "ids": experience.sequences[0].tolist(),
        "mask": [*experience.action_mask[0].tolist(), 0],
        "log_probs": None if log_probs is None else [*log_probs[0].tolist(), 0.0],
        "attention": experience.attention_mask[0].tolist(),
    }
    cut = [at for at, call in enumerate(calls) if len(call["prompt_ids"] + call["generated_ids"]) > limit]
    if missing := [at for at in range(engine.asked, len(calls)) if at not in cut]:
        raise Refusal(f"unreachable: the executor has no token left for call {missing[0]}")
    return {"rows": [row], "dropped": [[at, "over-limit"] for at in cut]}


def check_reachable(calls: list[dict[str, Any]]) -> None:
    """Refuse what the executor cannot be led to: it makes one row, to which every turn adds feedback."""
    if not calls:
        raise Refusal("unreachable: a rollout has a call")
    if not calls[0]["prompt_ids"]:
        raise Refusal("unreachable: the engine takes no empty prompt")
    for before, call in pairwise(calls):
        context = before["prompt_ids"] + before["generated_ids"]
        if call["prompt_ids"][: len(context)] != context:
            raise Refusal("unreachable: each turn extends the one before")
    refuse_mixed_log_probs(calls)


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Compute the advantages of two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Compute the advantages of one batch; every prompt has ``n_samples_per_prompt`` rollouts of one row each."""
    groups = [item["group"] for item in items]
    size = rollouts_per_prompt(items, "n_samples_per_prompt")
    order = sorted(range(len(items)), key=lambda index: groups.index(groups[index]))
    estimator = SimpleNamespace(estimator=ESTIMATOR, gamma=1.0, lambd=1.0, no_std_norm=False)
    arguments = SimpleNamespace(
        algo=SimpleNamespace(advantage=estimator),
        rollout=SimpleNamespace(n_samples_per_prompt=size),
        reward=SimpleNamespace(
            clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None, overlong_penalty_factor=None
        ),
    )
    maker = object.__new__(RemoteExperienceMaker)
    maker.strategy, maker.args = SimpleNamespace(args=arguments), arguments
    maker.advantage_estimator, maker.kl_ctl = ESTIMATOR, SimpleNamespace(value=0.0)
    experiences = []
    for at, index in enumerate(order):
        item = items[index]
        trained = float(item["trained"])
        width = len(item["prompt_ids"]) + 1
        mask = torch.tensor([[0.0] * (width - 1) + [trained]])
        experiences.append(
            Experience(
                index=[at],
                sequences=torch.ones(1, width + 1, dtype=torch.long),
                attention_mask=torch.ones(1, width + 1, dtype=torch.long),
                action_mask=mask,
                rewards=torch.tensor([item["reward"]]),
                kl=torch.zeros_like(mask),
                info={},
            )
        )
    found = maker.compute_advantages_and_returns(experiences)
    values = [0.0] * len(items)
    for index, experience in zip(order, found, strict=True):
        values[index] = float(experience.advantages[0, -1])
    return values


if __name__ == "__main__":
    serve("openrlhf", {"merge": {"merge_calls": merge_calls}, "advantage": {"advantages": advantages}})
