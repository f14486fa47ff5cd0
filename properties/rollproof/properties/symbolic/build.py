"""Records of the spec around the few numbers that a rule is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from attrs import evolve

from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.records import CallRecord, StagedCall
from rollproof.spec.rejections import Rejected
from rollproof.spec.values import owned_key

HASH = "0" * 64

T = TypeVar("T")


def pick(choices: Iterable[T], index: int) -> T:
    """The choice at an index within bounds. Each is a path of its own, on which nothing about it is symbolic."""
    return next(choice for position, choice in enumerate(choices) if position == index)


def accepted(check: Callable[..., object], *arguments: object) -> bool:
    """Whether a check of the spec lets something pass."""
    try:
        check(*arguments)
    except (Rejected, ValueError):
        return False
    return True


def call_record(call: str, parent: str | None, **fields: Any) -> CallRecord:
    """A manifest row of rollout ``r``: a root or child of one token, with ``fields`` changed."""
    record = CallRecord(
        model_call_id=call,
        parent_call_id=parent,
        prev_len=0 if parent is None else 1,
        delta_len=1,
        cum_len=1 if parent is None else 2,
        weight_version=0,
        digest=HASH,
        extras_digest=HASH,
        staging_key=owned_key("r", call),
        chain_hash=HASH,
        cumulative_hash=HASH,
        response_id=call,
        mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
    )
    return evolve(record, **fields)


def staged_call(call: str, parent: str | None, mask: Sequence[float], **fields: Any) -> StagedCall:
    """A staged call of rollout ``r`` with that token mask; its ids are all 0 and its hashes are not right."""
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
        extras_digest=HASH,
        chain_hash=HASH,
        cumulative_hash=HASH,
        digest=HASH,
    )
    return evolve(staged, **fields)
