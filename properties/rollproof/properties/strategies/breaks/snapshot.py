"""Edits that take a staged call outside the domains of sections 1 and 3, its manifest row along with it."""

from __future__ import annotations

import math
from typing import Any, Final

from rollproof.properties.strategies.breaks.pair import other_mode
from rollproof.properties.strategies.rollouts.draft import Draft, Edit
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.constants import INT63_LIMIT, RESERVED_ROLLOUT_ID, UINT64_LIMIT


def outside_column(name: str, *values: Any, mask: float | None = None) -> Edit:
    """Put one value of a token column outside its domain; ``mask`` says on which kind of token."""

    def edit(draft: Draft, decide: Bytes) -> None:
        index = draft.pick(decide, lambda call: mask is None or mask in call.staged.token_mask_delta)
        staged = draft.calls[index].staged
        places = [at for at, kind in enumerate(staged.token_mask_delta) if mask is None or kind == mask]
        column = list(getattr(staged, name))
        column[decide.choose(places)] = decide.choose(values)
        draft.amend(index, **{name: tuple(column)})

    return edit


def outside_field(name: str, *values: Any) -> Edit:
    """Put a field of a staged call and of its manifest row outside its domain."""

    def edit(draft: Draft, decide: Bytes) -> None:
        draft.amend(draft.pick(decide), **{name: decide.choose(values)})

    return edit


def malformed(value: str, decide: Bytes) -> Any:
    """Return a hash that is not 64 lowercase hex characters."""
    upper = value.upper() if value.upper() != value else "A" * 64
    return decide.choose((value[:-1], value + "0", upper, "", "g" * 64, None, "0x" + value[2:], value[:-1] + "\n"))


def malformed_digest(draft: Draft, decide: Bytes) -> None:
    """Make the digest malformed on both sides."""
    index = draft.pick(decide)
    wrong = malformed(draft.calls[index].staged.digest, decide)
    draft.stage(index, digest=wrong)
    draft.list_as(index, digest=wrong)


def malformed_hash(draft: Draft, decide: Bytes) -> None:
    """Make another hash malformed on both sides."""
    index = draft.pick(decide)
    name = decide.choose(("extras_digest", "chain_hash", "cumulative_hash"))
    draft.amend(index, **{name: malformed(getattr(draft.calls[index].staged, name), decide)})


def uneven_columns(draft: Draft, decide: Bytes) -> None:
    """Make a token column longer or shorter than the call says."""
    index = draft.pick(decide)
    name = decide.choose(("token_mask_delta", "generation_log_probs_delta", "token_ids_delta"))
    column = getattr(draft.calls[index].staged, name)
    draft.amend(index, **{name: decide.choose((column[:-1], column + column[-1:], ()))})


def lengths_off(draft: Draft, decide: Bytes) -> None:
    """Make the lengths of a call contradict each other or its columns, on both sides."""
    index = draft.pick(decide)
    staged = draft.calls[index].staged
    match decide.below(4):
        case 0:
            draft.amend(index, cum_len=staged.cum_len + decide.choose((1, -1)))
        case 1:
            draft.amend(index, delta_len=staged.delta_len + 1, cum_len=staged.cum_len + 1)
        case 2:
            empty = dict.fromkeys(("token_ids_delta", "token_mask_delta", "generation_log_probs_delta"), ())
            draft.amend(index, delta_len=0, cum_len=staged.prev_len, **empty)
        case _:
            root = staged.parent_call_id is None
            prev_len = 1 if root else 0
            draft.amend(index, prev_len=prev_len, cum_len=prev_len + staged.delta_len)


def mode_off(draft: Draft, decide: Bytes) -> None:
    """Make a root token_in, a child text, or the mode neither of the two, on both sides."""
    index = draft.pick(decide)
    draft.amend(index, mode=decide.choose((other_mode(draft.calls[index].staged.mode), "tokens", "", None)))


def slash_in_rollout_id(draft: Draft, decide: Bytes) -> None:
    """Put a slash into the rollout id, or make it the reserved one, everywhere."""
    own = draft.rollout_id
    draft.rollout_id = draft.receipt["rollout_id"] = decide.choose((f"{own}/", f"{own}/x", RESERVED_ROLLOUT_ID))
    for index in range(draft.count):
        draft.amend(index, rollout_id=draft.rollout_id)


LENGTH_OUTSIDE: Final = (-1, INT63_LIMIT, UINT64_LIMIT, True, 1.0, "1", None)
NOT_FINITE: Final = (math.nan, math.inf, -math.inf)

INVALID_SNAPSHOTS: Final[tuple[Edit, ...]] = (
    outside_column("token_mask_delta", -0.0, mask=0.0),
    outside_column("generation_log_probs_delta", -0.0, mask=0.0),
    outside_column("generation_log_probs_delta", 0.5, -0.1, *NOT_FINITE, mask=0.0),
    outside_column("generation_log_probs_delta", *NOT_FINITE, None, mask=1.0),
    outside_column("generation_log_probs_delta", -0.1, 1e-46, 1e300, -1, True, mask=1.0),
    outside_column("token_mask_delta", 0.5, -1.0, 2.0, math.nan, 1, 0, True, None),
    outside_column("token_ids_delta", INT63_LIMIT, UINT64_LIMIT - 1, UINT64_LIMIT, -1, True, 1.0, "1", None),
    outside_field("weight_version", *LENGTH_OUTSIDE),
    outside_field("parent_call_id", "", "\ud800"),
    outside_field("prev_len", *LENGTH_OUTSIDE),
    malformed_digest,
    malformed_hash,
    uneven_columns,
    lengths_off,
    mode_off,
    slash_in_rollout_id,
)
