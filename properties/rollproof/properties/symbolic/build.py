"""Records of the spec around the few numbers that a rule is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attrs import evolve

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Rejected

T = TypeVar("T")


def pick(choices: Iterable[T], index: int) -> T:
    """Return the choice at an index within bounds. Each is a path of its own, on which nothing about it is symbolic."""
    return next(choice for position, choice in enumerate(choices) if position == index)


def accepted(check: Callable[..., object], *arguments: object) -> bool:
    """Return whether a check of the spec passes."""
    try:
        check(*arguments)
    except (Rejected, ValueError):
        return False
    return True


def staged_call(call: str, parent: str | None, mask: Sequence[float], **fields: Any) -> StagedCall:
    """Return a staged call of rollout ``r`` with that token mask; its ids are all 0 and its hashes are not right."""
    staged = StagedCall(
        rollout_id="r",
        model_call_id=call,
        parent_call_id=parent,
        mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
        prev_len=0 if parent is None else 1,
        delta_len=len(mask),
        cum_len=len(mask),
        weight_version=0,
        token_ids_delta=(0,) * len(mask),
        token_mask_delta=tuple(mask),
        generation_log_probs_delta=(0.0,) * len(mask),
        extras_digest=NO_DIGEST,
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        digest=NO_DIGEST,
    )
    return evolve(staged, **fields)
