"""verifiers: the turns of a rollout committed to its message graph, and the graph's branches, one sample each."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from renderers.client import MalformedGenerateResponseError, _parse_completion_logprobs
from serving import Refusal, serve
from verifiers.v1.graph import prepare_turn
from verifiers.v1.trace import Trace
from verifiers.v1.types import AssistantMessage, Response, TurnTokens, UserMessage

Json = dict[str, Any]


class Renderer:
    """A template whose messages are token ids in decimal: a prompt is the messages of an earlier turn, and one more.

    That earlier turn is the one with the longest context, or else the longest prompt, that the prompt begins with.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], list[Any], list[tuple[int, int]]]] = []
        """Ids of prompts and contexts, with their messages and the span of each."""

    def messages(self, prompt: list[int]) -> tuple[list[Any], list[tuple[int, int]]]:
        """Return the messages of a prompt and their spans; remember them."""
        begun = [known for known in self.seen if prompt[: len(known[0])] == known[0]]
        ids, messages, spans = max(begun, key=lambda known: len(known[0]), default=([], [], []))
        if len(prompt) > len(ids):
            messages = [*messages, UserMessage(content=words(prompt[len(ids) :]))]
            spans = [*spans, (len(ids), len(prompt))]
        self.seen.append((prompt, messages, spans))
        return messages, spans

    def answered(self, prompt: list[int], generated: list[int], message: Any) -> None:
        """Remember a turn's context."""
        _, messages, spans = next(known for known in reversed(self.seen) if known[0] == prompt)
        whole = [*spans, (len(prompt), len(prompt) + len(generated))]
        self.seen.append((prompt + generated, [*messages, message], whole))


def words(ids: list[int]) -> str:
    """Return token ids as a message's content."""
    return " ".join(map(str, ids))


def trace_of(calls: list[Json], captures: list[Json | None] | None = None) -> Any:
    """Return the graph of a rollout, its turns committed one after the other."""
    trace = Trace.model_construct(nodes=[], calls=[], tools=[], mm_token_type_id_map={})
    renderer = Renderer()
    for index, call in enumerate(calls):
        prompt, generated = call["prompt_ids"], call["generated_ids"]
        messages, spans = renderer.messages(prompt)
        message = AssistantMessage(content=words(generated))
        tokens = TurnTokens(
            prompt_ids=list(prompt),
            completion_ids=list(generated),
            completion_logprobs=[0.0] * len(generated) if captures is not None else parsed_log_probs(call),
            message_spans=list(spans),
        )
        if captures is not None and captures[index] is not None:
            tokens.routed_experts = payload_of(captures[index])
        response = Response(
            id=str(index), created=0, model="m", message=message, finish_reason=call["finish_reason"], tokens=tokens
        )
        prepare_turn(trace, messages).commit(response)
        renderer.answered(prompt, generated, message)
    return trace


def parsed_log_probs(call: Json) -> list[float]:
    """Return a call's log-probs as the package's train client reads them from an engine's answer."""
    content = None
    if call["log_probs"] is not None:
        tokens = [*call["generated_ids"], *[-1] * len(call["log_probs"])]
        pairs = zip(tokens, call["log_probs"], strict=False)
        content = [{"token": f"token_id:{token}", "logprob": value} for token, value in pairs]
    try:
        return _parse_completion_logprobs({"logprobs": {"content": content}}, list(call["generated_ids"]))
    except MalformedGenerateResponseError as error:
        raise Refusal(f"log_probs: {error}") from None


def payload_of(captured: Json | None) -> Json | None:
    """Return captured routes as the engine's payload: raw bytes in base64, from a start on."""
    if captured is None or not captured["vectors"]:
        return None
    vectors = np.array(captured["vectors"], dtype=np.int64)
    narrow = np.uint8 if vectors.min() >= 0 and vectors.max() < 256 else np.uint16
    if vectors.min() < 0 or vectors.max() > np.iinfo(narrow).max:
        narrow = np.int32
    array = vectors.astype(narrow)
    data = b64encode(array.tobytes()).decode()
    return {"data": data, "shape": list(array.shape), "dtype": array.dtype.name, "start": captured["start"]}


def merge_calls(calls: list[Json], reward: float, max_len: int | None, pad_id: int, eos_ids: list[int]) -> Json:
    """Return one row per trainable branch."""
    rows = []
    for branch in trace_of(calls).branches:
        if branch.trainable:
            mask = [int(one) for one in branch.sampled_mask]
            rows.append({"ids": branch.token_ids, "mask": mask, "log_probs": branch.logprobs, "attention": None})
    return {"rows": rows, "dropped": []}


def align_routes(calls: list[Json], captures: list[Json | None], num_experts: int, incremental: bool) -> list[Json]:
    """Return one row per branch with the routes of its nodes; a branch with a gap has none, and is refused."""
    rows = []
    for branch in trace_of(calls, captures).branches:
        routes = branch.routed_experts
        if routes is None:
            raise Refusal("no_routes: a node of the branch has no routes, so the branch has none")
        mask = [int(one) for one in branch.sampled_mask]
        row = {"ids": branch.token_ids, "mask": mask, "routes": routes.tolist(), "fill": None, "attention": None}
        rows.append(row)
    return rows


if __name__ == "__main__":
    serve("verifiers", {"merge": {"merge_calls": merge_calls}, "route-align": {"align_routes": align_routes}})
