"""Scripted conversations: the policy's prompts and answers, call by call, and the responses of a vLLM server.

They drive nemo-gym's capture core (``captured``). Most are sound; some have an engine that fails, answers without
token ids, or used another prompt than it was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.nemo_gym.adapter import load_staging
from rollproof.properties.strategies.scalars import Bytes, draw_bytes, log_prob, token_id, weight_version
from rollproof.spec.constants import INT63_LIMIT

CAPTURED_ROLLOUT: Final = "captured_g0"
"""The rollout id of every drawn conversation: how the gate knows a captured rollout."""
ROUTE_LAYERS: Final = 2
ROUTE_TOP_K: Final = 2
ROUTE_EXPERTS: Final = 8
MAX_TURNS: Final = 6


class Outcome(StrEnum):
    """How one scripted call ends."""

    ANSWERED = "answered"
    """The engine answers, and the worker stages the call."""
    FAILED = "failed"
    """The engine fails; the worker reports the call as not captured."""
    UNREADABLE = "unreadable"
    """The engine answers without token ids."""
    OTHER_PROMPT = "other_prompt"
    """The engine used a prompt that does not begin with the admitted prefix."""


class Layout(StrEnum):
    """Where a vLLM response carries the generated token ids."""

    MESSAGE = "message"
    LOGPROBS = "logprobs"


@frozen
class Turn:
    """One model call of a scripted conversation."""

    parent: int | None
    """Position of the call that it continues, or None for a root."""
    prompt: tuple[int, ...]
    """Ids that its prompt adds to the parent's tokens: a question, a tool's answer, or nothing."""
    generated: tuple[int, ...]
    log_probs: tuple[float, ...]
    weight_version: int = 0
    outcome: Outcome = Outcome.ANSWERED
    layout: Layout = Layout.LOGPROBS
    inline_prefix: bool = False
    """The admission carries the prefix's ids, instead of the staging keys of the calls that make it up."""
    admitted_at: float | None = None
    routes: bool = False
    """The engine sends the experts that it routed the call's tokens to."""


@frozen
class Conversation:
    """A scripted rollout: its calls in the order in which they finish."""

    rollout_id: str
    turns: tuple[Turn, ...]
    declared: int | None = None
    """Position of the call whose response the harness says it kept; None leaves the choice to the parent links."""


def response_id(position: int) -> str:
    """Return the id under which a call's response is served."""
    return f"chatcmpl-{position}"


def said(position: int) -> dict[str, str]:
    """Return the policy's message in a call, as the harness echoes it later."""
    return {"role": "assistant", "content": f"answer {position}"}


def history(conversation: Conversation, position: int) -> list[dict[str, str]]:
    """Return the messages of a call's request: those of the calls that it continues, then its own question."""
    turn = conversation.turns[position]
    before = [] if turn.parent is None else [*history(conversation, turn.parent), said(turn.parent)]
    return [*before, {"role": "user", "content": f"question {','.join(map(str, turn.prompt))}"}]


def response(position: int, turn: Turn, request: Mapping[str, Any]) -> Any:
    """Return the chat completion of a vLLM server for one call, passed through JSON.

    ``request`` is what the adapter made of the admitted prefix; the prompt that the engine reports starts with it.
    """
    prefix = list(request["required_prefix_token_ids"])
    if turn.outcome is Outcome.OTHER_PROMPT:
        prefix = [token + 1 for token in prefix]
    message: dict[str, Any] = {**said(position)}
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    body: dict[str, Any] = {
        "id": response_id(position),
        "object": "chat.completion",
        "created": 0,
        "model": "policy",
        "choices": [choice],
    }
    if turn.outcome is not Outcome.UNREADABLE:
        prompt = [*prefix, *turn.prompt]
        if turn.layout is Layout.MESSAGE:
            message["prompt_token_ids"] = prompt
            message["generation_token_ids"] = list(turn.generated)
            message["generation_log_probs"] = list(turn.log_probs)
        else:
            body["prompt_token_ids"] = prompt
            pairs = zip(turn.generated, turn.log_probs, strict=True)
            choice["logprobs"] = {
                "content": [{"token": f"token_id:{token}", "logprob": value} for token, value in pairs]
            }
    if turn.routes:
        message["routed_experts"] = routes_of(position, len(turn.prompt) + len(turn.generated))
    return json.loads(json.dumps(body))


def routes_of(position: int, length: int) -> str | list[Any]:
    """Return experts for ``length`` tokens: distinct in a vector, as an envelope or, every other call, as a list."""
    values = [
        [
            [(position + token + layer + slot) % ROUTE_EXPERTS for slot in range(ROUTE_TOP_K)]
            for layer in range(ROUTE_LAYERS)
        ]
        for token in range(length)
    ]
    if position % 2 or not values:
        return values
    encoded: str = load_staging().encode_routed_experts(values)
    return encoded


# ── strategies ──────────────────────────────────────────────────────────────────────────────────────────────────────


def conversations(*, failures: bool = True, max_turns: int = MAX_TURNS) -> SearchStrategy[Conversation]:
    """Draw conversations of one to ``max_turns`` calls: chains, branches, retries, several roots, growing versions.

    With ``failures``, about one in six may hold calls that are not captured or generate nothing. Branches may leave a
    conversation without a unique terminal in any case.
    """
    return _conversations(failures, max_turns)


@st.composite
def _conversations(draw: DrawFn, failures: bool, max_turns: int) -> Conversation:
    decide = draw_bytes(draw, 24 * max_turns)
    count = 1 + decide.below(max_turns)
    troubled = failures and decide.chance(48)
    turns: list[Turn] = []
    version = weight_version(decide)
    for _ in range(count):
        version = min(version + decide.chance(32), INT63_LIMIT - 1)
        turns.append(_turn(decide, turns, version, troubled))
    declared = None
    if decide.chance(128):
        answered = [position for position, turn in enumerate(turns) if turn.outcome is Outcome.ANSWERED]
        declared = decide.choose(answered or [0])
    return Conversation(CAPTURED_ROLLOUT, tuple(turns), declared)


def _turn(decide: Bytes, before: list[Turn], version: int, troubled: bool) -> Turn:
    """Draw one more call: usually the child of the one before, now and then a branch, a retry or another root."""
    count = len(before)
    parent = None
    if before and not decide.chance(24):
        parent = count - 1 - (decide.below(count) if decide.chance(64) else 0)
    retried = before[-1] if before and decide.chance(16) else None
    if retried is not None:
        parent, prompt = retried.parent, retried.prompt
    else:
        prompt = tuple(token_id(decide) for _ in range(decide.below(4)))
    silent = troubled and decide.chance(24)
    generated = tuple(token_id(decide) for _ in range(0 if silent else 1 + decide.below(3)))
    return Turn(
        parent=parent,
        prompt=prompt,
        generated=generated,
        log_probs=tuple(log_prob(decide) for _ in generated),
        weight_version=version,
        outcome=decide.choose(tuple(Outcome)) if troubled and decide.chance(64) else Outcome.ANSWERED,
        layout=decide.choose(tuple(Layout)),
        inline_prefix=decide.chance(96),
        admitted_at=None if decide.chance(32) else float(decide.below(16)),
        routes=decide.chance(48),
    )
