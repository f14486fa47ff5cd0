"""Atropos: the managed server, which keeps the sequences of an environment's calls with their masks and log-probs.

``ATROPOS_CALLS`` chooses how an environment calls it: ``chat`` (the default) or ``text`` completions. A text holds one
character per id, so that texts and ids begin with each other in the same cases.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from atroposlib.envs.server_handling.managed_server import ManagedServer
from serving import Refusal, serve

CALLS = os.environ.get("ATROPOS_CALLS", "chat")
FIRST = 0x100000
"""The character of id 0: a plane of private characters, which no text normalisation touches."""
HIDDEN = -100


class Tokens:
    """Stands in for tokenizer and template: one character per id, and a message is its text."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def text(self, ids: list[int]) -> str:
        """Return one character per id."""
        for one in ids:
            if one not in self.ids:
                self.ids.append(one)
        return "".join(chr(FIRST + self.ids.index(one)) for one in ids)

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the text of ids."""
        return self.text(ids)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the ids of a text."""
        return [self.ids[ord(one) - FIRST] for one in text]

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        """Return the text of messages."""
        return "".join(message["content"] for message in messages)


class Server:
    """Stands in for the inference server: answers with the generations of a session, in their order."""

    config = SimpleNamespace(model_name="model")

    def __init__(self, answers: list[list[dict[str, Any]]]) -> None:
        self.answers = list(answers)

    async def tokens_and_logprobs_completion(self, input_ids: list[int], **options: Any) -> Any:
        """Return prompt, generations, their log-probs and finish reasons."""
        calls = self.answers.pop(0)
        if input_ids != calls[0]["prompt_ids"]:
            raise Refusal("unreachable: the managed server asks for another prompt")
        columns = ("generated_ids", "log_probs", "finish_reason")
        return list(input_ids), *([list_of(call[name]) for call in calls] for name in columns)


def list_of(value: Any) -> Any:
    """Return a copy of a list, anything else as it is."""
    return list(value) if isinstance(value, list) else value


def merge_calls(
    calls: list[dict[str, Any]], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]
) -> dict[str, Any]:
    """Make the calls through a managed server, those with one prompt as one call for several choices."""
    if any(call["log_probs"] is None for call in calls):
        raise Refusal("unreachable: the servers answer with log-probs")
    if any(not call["prompt_ids"] for call in calls):
        raise Refusal("unreachable: a template gives every prompt a token")
    asked: list[list[dict[str, Any]]] = []
    for call in calls:
        if asked and asked[-1][0]["prompt_ids"] == call["prompt_ids"]:
            asked[-1].append(call)
        else:
            asked.append([call])
    tokens = Tokens()
    managed = ManagedServer(Server(asked), tokenizer=tokens)
    for choices in asked:
        prompt = tokens.text(choices[0]["prompt_ids"])
        if CALLS == "chat":
            asking = managed.chat_completion(messages=[{"role": "user", "content": prompt}], n=len(choices))
        else:
            asking = managed.completion(prompt=prompt, n=len(choices))
        asyncio.run(asking)
    return {"rows": [row_of(node) for node in managed.get_state()["nodes"]], "dropped": []}


def row_of(node: Any) -> dict[str, Any]:
    """Return a sequence as a row. A position is not trained if its label is -100 or its log-prob is above 0.

    So says the documentation of the managed server, which writes 1.0 where there is no log-prob.
    """
    pairs = list(zip(node.masked_tokens, node.logprobs, strict=True))
    mask = [int(label != HIDDEN and value <= 0) for label, value in pairs]
    log_probs = [value if value <= 0 else None for _, value in pairs]
    return {"ids": node.tokens, "mask": mask, "log_probs": log_probs}


if __name__ == "__main__":
    serve("atropos", {"merge": {"merge_calls": merge_calls}})
