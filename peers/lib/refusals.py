"""What several frameworks can never be asked, because of what calls them; needs the standard library alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from serving import Refusal


def refuse_mixed_log_probs(calls: Sequence[dict[str, Any]]) -> None:
    """Refuse calls that one engine would not answer so: some with log-probs, or one with too few or too many."""
    for call in calls:
        if (call["log_probs"] is None) != (calls[0]["log_probs"] is None):
            raise Refusal("unreachable: one engine answers all calls, with log-probs or without")
        if call["log_probs"] is not None and len(call["log_probs"]) != len(call["generated_ids"]):
            raise Refusal("unreachable: the engine answers with one log-prob per token")


def rollouts_per_prompt(items: Sequence[dict[str, Any]], setting: str) -> int:
    """Return how many rollouts every prompt has, which ``setting`` configures; refuse a batch without such a number."""
    sizes = set(Counter(item["group"] for item in items).values())
    if len(sizes) != 1 or sizes == {1}:
        raise Refusal(f"unreachable: every prompt has {setting} rollouts, two at least")
    if len({item["rollout"] for item in items}) < len(items):
        raise Refusal("unreachable: a rollout is one row")
    return sizes.pop()
