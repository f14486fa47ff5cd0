"""TRL: the GRPO trainer's generation with its tool loop, and the advantages that it computes of the rewards.

The trainer is made without its constructor, which would load a model. What it asks of others is answered here: an
engine that says what the request's calls generated, a template whose tool messages are the ids between two calls, and a
parser that finds a tool call wherever another call follows.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from refusals import refuse_mixed_log_probs, rollouts_per_prompt
from serving import Refusal, serve
from trl.trainer import grpo_trainer
from trl.trainer.grpo_trainer import GRPOTrainer

TOOL = "next"
FAR = 10**6


class Engine:
    """Stands in for vLLM and for ``generate``: answers with the generations of a session, in their order."""

    def __init__(self, calls: list[dict[str, Any]], limit: int = FAR) -> None:
        self.calls, self.limit = calls, limit
        self.sibling: list[int] | None = None
        self.asked = 0

    def generate(self, prompts: list[list[int]], **options: Any) -> Any:
        """Return what vLLM's client returns: prompts, generations, log-probs of the sampled tokens, and no logits."""
        answers = [self.answer(prompt) for prompt in prompts]
        ids = [list(generated) for generated, _ in answers]
        return prompts, ids, [[[one] for one in log_probs] for _, log_probs in answers], None

    def answer(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        """Return tokens and log-probs for one prompt."""
        if prompt == self.sibling:
            longest = len(context_of(self.calls[-1])) + 2
            return [1] * longest, [-1.0] * longest
        call = self.calls[self.asked]
        if prompt != call["prompt_ids"]:
            raise Refusal("unreachable: the trainer asks its engine for another prompt")
        if len(call["generated_ids"]) > self.limit:
            raise Refusal("unreachable: the trainer asks its engine for fewer tokens")
        self.asked += 1
        return call["generated_ids"], call["log_probs"] or []


class Tokens:
    """Stands in for tokenizer and template: the contents of messages are ids."""

    response_schema = "calls"
    response_template = None

    def __init__(self, pad: int, eos: int) -> None:
        self.pad_token_id, self.eos_token_id = pad, eos
        self.suffix: list[int] = []

    def apply_chat_template(self, conversation: Any, tokenize: bool = True, **options: Any) -> Any:
        """Return the ids of a conversation, or of several."""
        if isinstance(conversation[0], list):
            return {"input_ids": [[int(token) for token in one[0]["content"].split()] for one in conversation]}
        return [self.eos_token_id, *(self.suffix if conversation[-1]["role"] == "tool" else [])]

    def batch_decode(self, ids: Any, **options: Any) -> list[str]:
        """Return texts, which nothing reads."""
        return ["" for _ in ids]


class Model(SimpleNamespace):
    """Stands in for a model that generates: what follows the prompt, in a tensor."""

    def generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        """Return prompt and generation, as ``transformers`` does."""
        prompts = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, options["attention_mask"], strict=True)]
        answers = [self.engine.answer(prompt)[0] for prompt in prompts]
        longest = max(map(len, answers))
        padded = [[*answer, *[self.pad] * (longest - len(answer))] for answer in answers]
        return torch.cat([input_ids, torch.tensor(padded, dtype=torch.long).view(len(padded), longest)], dim=1)


def trainer(**attributes: Any) -> GRPOTrainer:
    """Return a trainer with what its generation and scoring read, and nothing else."""
    found = object.__new__(GRPOTrainer)
    cpu = torch.device("cpu")
    accelerator = SimpleNamespace(device=cpu, process_index=0, is_main_process=True, gather=lambda one: one)
    arguments = SimpleNamespace(
        device=cpu,
        past_index=-1,
        per_device_train_batch_size=8,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
        ds3_gather_for_generation=True,
        report_to=[],
    )
    state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
    defaults: dict[str, Any] = {
        "accelerator": accelerator,
        "args": arguments,
        "state": state,
        "environment_factories": None,
        "environments": None,
        "rollout_func": None,
        "tools": None,
        "use_vllm": False,
        "vllm_mode": "server",
        "use_transformers_continuous_batching": False,
        "vllm_importance_sampling_correction": False,
        "pad_to_multiple_of": None,
        "max_completion_length": FAR,
        "max_tool_calling_iterations": FAR,
        "mask_truncated_completions": False,
        "num_iterations": 1,
        "num_generations": 1,
        "num_generations_eval": 1,
        "beta": 0.0,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "reward_weights": torch.ones(1),
        "reward_funcs": [None],
        "reward_func_names": ["reward"],
        "chat_template": None,
        "chat_template_kwargs": {},
        "log_multimodal": False,
        "generation_kwargs": {},
        "generation_config": None,
        "is_deepspeed_enabled": False,
        "_is_vlm": False,
        "_last_loaded_step": 0,
        "_metrics": {"train": defaultdict(list)},
        "_logs": defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list)),
        "_pending_extra_logs": {},
        "_pending_metrics": {},
        "_dist": SimpleNamespace(summon_full_params=lambda *a, **k: nullcontext()),
        "_calculate_rewards": lambda inputs, *others: torch.tensor([[one["reward"]] for one in inputs]),
    }
    for name, value in {**defaults, **attributes}.items():
        object.__setattr__(found, name, value)
    return found


def asked_of(prompt: list[int], reward: float) -> dict[str, Any]:
    """Return an example of a data set."""
    return {"prompt": [{"role": "user", "content": " ".join(map(str, prompt))}], "reward": reward}


def generated(calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos: int) -> Any:
    """Return the trainer's batch for one rollout beside a longer one, and the number of calls that were asked."""
    limit = FAR if max_len is None else max_len - len(calls[0]["prompt_ids"])
    if limit < 1:
        raise Refusal("unreachable: max_completion_length is at least 1")
    with_log_probs = calls[0]["log_probs"] is not None
    engine = Engine(calls, limit)
    engine.sibling = sibling = [1] * (len(calls[0]["prompt_ids"]) + 2)
    tokens = Tokens(pad_id, eos)
    config = SimpleNamespace(max_position_embeddings=10 * FAR)
    model = Model(training=True, engine=engine, pad=pad_id, config=config, is_gradient_checkpointing=False)

    def parse(tokenizer: Any, ids: list[int], prefix: list[int], tools: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"role": "assistant", "content": ""}
        if prefix != sibling and engine.asked < len(calls):
            context = prefix + list(ids)
            tokens.suffix = calls[engine.asked]["prompt_ids"][len(context) :]
            found["tool_calls"] = [{"type": "function", "function": {"name": TOOL, "arguments": {}}}]
        return found

    def next() -> str:
        return "result"

    grpo_trainer.parse_response = parse
    grpo_trainer.unwrap_model_for_generation = lambda *a, **k: nullcontext(model)
    grpo_trainer.gather_object = lambda found: found
    made = trainer(
        model=model,
        model_wrapped=model,
        processing_class=tokens,
        _tokenizer=tokens,
        eos_token_ids=[eos],
        eos_token_id=eos,
        pad_token_id=pad_id,
        tools=[next] if len(calls) > 1 else None,
        _standalone_tools=[next],
        use_vllm=with_log_probs,
        vllm_generation=engine,
        max_completion_length=limit,
    )
    inputs = [asked_of(calls[0]["prompt_ids"], reward), asked_of(sibling, 0.0)]
    return made._generate_and_score_completions(inputs), engine.asked


def merge_calls(
    calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Generate a rollout whose tool calls lead to these calls, and return its row."""
    check_reachable(calls, eos_ids)
    batch, asked = generated(calls, reward, max_len, pad_id, eos_ids[0] if eos_ids else -1)
    first = {name: column[0].tolist() for name, column in batch.items() if getattr(column, "ndim", 0) > 1}
    prompt = len(first["prompt_ids"])
    trains = first["completion_mask"]
    if "tool_mask" in first:
        trains = [one * other for one, other in zip(trains, first["tool_mask"], strict=True)]
    row = {
        "ids": first["prompt_ids"] + first["completion_ids"],
        "attention": first["prompt_mask"] + first["completion_mask"],
        "mask": [0] * prompt + trains,
        "log_probs": None,
    }
    if "sampling_per_token_logps" in first:
        row["log_probs"] = [0.0] * prompt + first["sampling_per_token_logps"]
    cut = [at for at, call in enumerate(calls) if max_len is not None and len(context_of(call)) > max_len]
    if missing := [at for at in range(asked, len(calls)) if at not in cut]:
        raise Refusal(f"unreachable: the rollout ends before call {missing[0]}")
    return {"rows": [row], "dropped": [[at, "over-limit"] for at in cut]}


def context_of(call: dict[str, Any]) -> list[int]:
    """Return prompt and generation of a call."""
    return list(call["prompt_ids"] + call["generated_ids"])


def check_reachable(calls: list[dict[str, Any]], eos_ids: list[int]) -> None:
    """Refuse what the trainer cannot be led to: it makes one row, to which every call adds a tool's answer."""
    if not calls:
        raise Refusal("unreachable: a rollout has a call")
    for before, call in pairwise(calls):
        if call["prompt_ids"][: len(context_of(before))] != context_of(before):
            raise Refusal("unreachable: each call of a rollout extends the one before")
    refuse_mixed_log_probs(calls)
    for call in calls:
        if not call["prompt_ids"]:
            raise Refusal("unreachable: a template gives every prompt a token")
        if call["log_probs"] is None and set(call["generated_ids"][:-1]) & set(eos_ids):
            raise Refusal("unreachable: generate() ends at a stop token")


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Score two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Score a batch of single calls; a row that trains nothing is a truncated one that the trainer masks."""
    groups = [item["group"] for item in items]
    size = rollouts_per_prompt(items, "num_generations")
    order = sorted(range(len(items)), key=lambda index: groups.index(groups[index]))
    calls = [
        {"prompt_ids": items[at]["prompt_ids"] or [1], "generated_ids": [5, 2 if items[at]["trained"] else 6]}
        for at in order
    ]
    tokens = Tokens(0, 2)
    engine = Engine([{**call, "log_probs": [-1.0, -1.0]} for call in calls])
    grpo_trainer.parse_response = lambda *a, **k: {"role": "assistant", "content": ""}
    grpo_trainer.gather_object = lambda found: found
    made = trainer(
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        processing_class=tokens,
        _tokenizer=tokens,
        eos_token_ids=[2],
        eos_token_id=2,
        pad_token_id=0,
        use_vllm=True,
        vllm_generation=engine,
        mask_truncated_completions=True,
        num_generations=size,
    )
    inputs = [asked_of(call["prompt_ids"], items[at]["reward"]) for at, call in zip(order, calls, strict=True)]
    found = made._generate_and_score_completions(inputs)["advantages"].tolist()
    values = dict(zip(order, found, strict=True))
    return [values[index] for index in range(len(items))]


if __name__ == "__main__":
    serve("trl", {"merge": {"merge_calls": merge_calls}, "advantage": {"advantages": advantages}})
