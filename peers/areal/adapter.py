"""AReaL: the interaction cache with its exports, and the advantages of its PPO actor.

``AREAL_EXPORT`` chooses the export: ``concat`` (here the default, because only it joins calls) or ``individual``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any

from absent import absent
from serving import Refusal, serve

absent("datasets", "megatron", "swanlab", "tensorboard", "tensorboardX", "trackio", "wandb")

import torch  # noqa: E402
from areal.api import ModelResponse  # noqa: E402
from areal.api.cli_args import NormConfig, PPOActorConfig  # noqa: E402
from areal.experimental.openai.cache import InteractionCache  # noqa: E402
from areal.experimental.openai.types import InteractionWithTokenLogpReward  # noqa: E402
from areal.trainer.ppo.actor import PPOActor  # noqa: E402

EXPORT = os.environ.get("AREAL_EXPORT", "concat")


def merge_calls(
    calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Put the calls into a cache as the client does, and export it."""
    if EXPORT == "concat" and any(continues(call, before) for at, call in enumerate(calls) for before in calls[:at]):
        raise Refusal("unreachable: the client puts a stop token and the template's tokens between two calls")
    if any(len(call["log_probs"] or ()) != len(call["generated_ids"]) for call in calls):
        raise Refusal("unreachable: the servers answer with one list of tokens and their log-probs")
    tokenizer = SimpleNamespace(eos_token_id=eos_ids[0] if eos_ids else None, pad_token_id=pad_id)
    cache = InteractionCache()
    for number, call in enumerate(calls):
        cache[str(number)] = interaction = InteractionWithTokenLogpReward(
            messages=messages_of(call, list(cache.values()), tokenizer.eos_token_id),
            chat_template_type="concat" if EXPORT == "concat" else "hf",
            _interaction_id=str(number),
        )
        interaction.model_response = ModelResponse(
            input_tokens=call["prompt_ids"],
            output_tokens=call["generated_ids"],
            output_logprobs=call["log_probs"],
            output_versions=[0] * len(call["generated_ids"]),
            stop_reason=call["finish_reason"],
            tokenizer=tokenizer,
        )
        interaction.output_message_list = [{"role": "assistant", "content": call["generated_ids"]}]
    if calls:
        cache.set_last_reward(reward)
    exported = cache.export_interactions(EXPORT, reward_discount=1.0)
    return {"rows": [row_of(one.to_tensor_dict()) for one in exported.values()], "dropped": []}


def continues(call: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether a call adds no token to the context of an earlier one."""
    return bool(call["prompt_ids"] == before["prompt_ids"] + before["generated_ids"])


def messages_of(call: dict[str, Any], earlier: list[Any], eos: int | None) -> list[dict[str, Any]]:
    """Return messages from which the cache sees which call this one goes on from: ids are the contents.

    The client prompts with the parent's tokens without its stop tokens, then one stop token, then what is new; and with
    the parent's tokens as they are where those end in that stop token.
    """
    prompt = call["prompt_ids"]
    known = []
    for one in earlier:
        response = one.model_response
        contexts = [response.input_tokens + response.output_tokens]
        if response.stop_reason == "stop" and ends_in_stop(response):
            contexts.append(response.input_tokens + response.output_tokens_without_stop + [eos])
        known += [(len(context), one) for context in contexts if prompt[: len(context)] == context]
    if not known:
        return [{"role": "user", "content": prompt}]
    length, parent = max(known, key=lambda pair: pair[0])
    return [*parent.messages, *parent.output_message_list, {"role": "user", "content": prompt[length:]}]


def ends_in_stop(response: Any) -> bool:
    """Return whether a generation ends in a stop token, and consists of more than stop tokens."""
    stops = {response.tokenizer.eos_token_id, response.tokenizer.pad_token_id}
    return response.end_with_stop and not stops.issuperset(response.output_tokens)


def row_of(exported: dict[str, Any]) -> dict[str, Any]:
    """Return one exported interaction as a row."""
    names = {"input_ids": "ids", "loss_mask": "mask", "logprobs": "log_probs", "attention_mask": "attention"}
    columns = {ours: exported[theirs].squeeze(0).tolist() for theirs, ours in names.items()}
    return {**columns, "attention": [int(one) for one in columns["attention"]]}


def advantages(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Compute the advantages of two batches, one after the other."""
    return {"first": scored(first), "second": scored(second)}


def scored(items: list[dict[str, Any]]) -> list[float]:
    """Compute advantages with rewards normalised by group, as the examples of the framework do."""
    if not items:
        raise Refusal("unreachable: a batch has rows")
    groups = [item["group"] for item in items]
    order = sorted(range(len(items)), key=lambda index: groups.index(groups[index]))
    norm = NormConfig(mean_level="group", std_level="group", group_size=max(Counter(groups).values(), default=1))
    config = PPOActorConfig(reward_norm=norm, adv_norm=None, kl_ctl=0.0, use_decoupled_loss=False, reward_clip=math.inf)
    config.recompute_logprob = False
    longest = max(len(item["prompt_ids"]) for item in items) + 2
    data = {
        "input_ids": torch.zeros(len(items), longest, dtype=torch.long),
        "attention_mask": torch.zeros(len(items), longest, dtype=torch.bool),
        "loss_mask": torch.zeros(len(items), longest, dtype=torch.long),
        "logprobs": torch.zeros(len(items), longest),
        "rewards": torch.tensor([items[index]["reward"] for index in order]),
    }
    for at, index in enumerate(order):
        prompt = items[index]["prompt_ids"]
        data["input_ids"][at, : len(prompt)] = torch.tensor(prompt)
        data["attention_mask"][at, : len(prompt) + 2] = True
        data["loss_mask"][at, len(prompt) : len(prompt) + 2] = int(items[index]["trained"])
    found = PPOActor(config, None)._compute_advantages(data)
    values = [0.0] * len(items)
    for at, index in enumerate(order):
        trained = found["loss_mask"][at].bool()
        values[index] = float(found["advantages"][at][trained][0]) if trained.any() else 0.0
    return values


if __name__ == "__main__":
    serve("areal", {"merge": {"merge_calls": merge_calls}, "advantage": {"advantages": advantages}})
