"""Edits that make a receipt, its manifest and the staged calls disagree: steps 1 to 4 of section 4."""

from __future__ import annotations

from typing import Any

from rollproof.properties.strategies.rollouts.draft import Draft, Edit, flipped
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.constants import INT63_LIMIT, MODE_TEXT, MODE_TOKEN_IN

# ── the receipt's state and its manifest ────────────────────────────────────────────────────────────────────────────


def receipt_field(name: str, *values: Any) -> Edit:
    """Make the receipt's field ``name`` differ from what was captured."""

    def edit(draft: Draft, decide: Bytes) -> None:
        draft.receipt[name] = decide.choose(values)

    return edit


def no_calls(draft: Draft, decide: Bytes) -> None:
    """Empty the manifest; staging may keep its calls."""
    draft.receipt["manifest"] = []
    if not decide.chance(96):
        draft.calls, draft.keys = [], []


def manifest_row_twice(draft: Draft, decide: Bytes) -> None:
    """List one row twice."""
    index = draft.pick(decide)
    draft.manifest.append(dict(draft.manifest[index]))
    draft.calls.append(draft.calls[index])
    draft.keys.append(draft.keys[index])


def manifest_id_twice(draft: Draft, decide: Bytes) -> None:
    """List one call in two rows, under two keys."""
    first, second = draft.pick_two(decide)
    draft.list_as(second, model_call_id=draft.manifest[first]["model_call_id"])


def manifest_key_twice(draft: Draft, decide: Bytes) -> None:
    """List two calls under one key."""
    first, second = draft.pick_two(decide)
    draft.list_as(second, staging_key=draft.manifest[first]["staging_key"])


# ── pairs of manifest row and staged call ───────────────────────────────────────────────────────────────────────────


def too_few_calls(draft: Draft, decide: Bytes) -> None:
    """Leave a staged call out."""
    index = draft.pick(decide)
    del draft.calls[index], draft.keys[index]


def too_many_calls(draft: Draft, decide: Bytes) -> None:
    """Pass a staged call twice."""
    index = draft.pick(decide)
    draft.calls.append(draft.calls[index])
    draft.keys.append(draft.keys[index])


def call_twice(draft: Draft, decide: Bytes) -> None:
    """Put one staged call in place of a later one."""
    first, second = draft.pick_two(decide)
    draft.calls[second] = draft.calls[first]


def unknown_call(draft: Draft, decide: Bytes) -> None:
    """Give the staged call an id that no manifest row has."""
    index = draft.pick(decide)
    other = decide.choose(("elsewhere", draft.calls[index].id + "/", draft.calls[index].id + "0" * 9))
    draft.restage(index, model_call_id=other)


def calls_swapped(draft: Draft, decide: Bytes) -> None:
    """Swap two staged calls."""
    first, second = draft.pick_two(decide)
    draft.calls[first], draft.calls[second] = draft.calls[second], draft.calls[first]


def other_rollout(draft: Draft, decide: Bytes) -> None:
    """Make the staged call another rollout's: staged, listed and digested as such."""
    index = draft.pick(decide)
    owner = draft.calls[index].staged.rollout_id
    other = decide.choose(("other", owner + "0", owner[:-1] or "s"))
    draft.amend(index, rollout_id="another" if other == owner else other)
    draft.keys[index] = draft.calls[index].key
    draft.list_as(index, staging_key=draft.keys[index])


def listed_parent(draft: Draft, decide: Bytes) -> None:
    """Make the manifest name another parent."""
    index = draft.child(decide)
    draft.list_as(index, parent_call_id=other_parent(draft, index, decide))


def staged_parent(draft: Draft, decide: Bytes) -> None:
    """Make the staged call name another parent."""
    index = draft.child(decide)
    draft.restage(index, parent_call_id=other_parent(draft, index, decide))


def other_parent(draft: Draft, index: int, decide: Bytes) -> str:
    """Return any call but the parent: possibly the call itself, or one that does not exist."""
    parent = draft.calls[index].staged.parent_call_id
    return decide.choose(["elsewhere", *(call.id for call in draft.calls if call.id != parent)])


def listed_mode(draft: Draft, decide: Bytes) -> None:
    """Give the manifest row the other mode."""
    index = draft.pick(decide)
    draft.list_as(index, mode=other_mode(draft.calls[index].staged.mode))


def staged_mode(draft: Draft, decide: Bytes) -> None:
    """Give the staged call the other mode."""
    index = draft.pick(decide)
    draft.restage(index, mode=other_mode(draft.calls[index].staged.mode))


def other_mode(mode: str) -> str:
    """Return the other one of the two modes."""
    return MODE_TOKEN_IN if mode == MODE_TEXT else MODE_TEXT


def listed_prev_len(draft: Draft, decide: Bytes) -> None:
    """Let the call start elsewhere in the manifest; its lengths still add up."""
    index = draft.child(decide)
    row = draft.manifest[index]
    by = shift(row["prev_len"], decide)
    draft.list_as(index, prev_len=row["prev_len"] + by, cum_len=row["cum_len"] + by)


def staged_prev_len(draft: Draft, decide: Bytes) -> None:
    """Let the staged call start elsewhere; its lengths still add up."""
    index = draft.child(decide)
    staged = draft.calls[index].staged
    by = shift(staged.prev_len, decide)
    draft.restage(index, prev_len=staged.prev_len + by, cum_len=staged.cum_len + by)


def listed_delta_len(draft: Draft, decide: Bytes) -> None:
    """Give the manifest row another number of tokens; its lengths still add up."""
    index = draft.pick(decide)
    row = draft.manifest[index]
    by = shift(row["delta_len"], decide)
    draft.list_as(index, delta_len=row["delta_len"] + by, cum_len=row["cum_len"] + by)


def shift(length: int, decide: Bytes) -> int:
    """Return by how much to change a length; it stays positive."""
    return decide.choose((1, -1 if length > 1 else 2, 5, 1000))


def listed_cum_len(draft: Draft, decide: Bytes) -> None:
    """Give the manifest row another cum_len."""
    index = draft.pick(decide)
    draft.list_as(index, cum_len=draft.manifest[index]["cum_len"] + decide.choose((1, -1, 7)))


def staged_cum_len(draft: Draft, decide: Bytes) -> None:
    """Give the staged call another cum_len."""
    index = draft.pick(decide)
    draft.restage(index, cum_len=draft.calls[index].staged.cum_len + decide.choose((1, -1, 7)))


def listed_weight_version(draft: Draft, decide: Bytes) -> None:
    """Give the manifest row another weight version."""
    index = draft.pick(decide)
    draft.list_as(index, weight_version=other_version(draft.calls[index].staged.weight_version, decide))


def staged_weight_version(draft: Draft, decide: Bytes) -> None:
    """Give the staged call another weight version."""
    index = draft.pick(decide)
    draft.restage(index, weight_version=other_version(draft.calls[index].staged.weight_version, decide))


def other_version(version: int, decide: Bytes) -> int:
    """Return another weight version: a neighbour, or the one that a restart counts from."""
    others = (version + 1, version - 1, 0)
    return decide.choose([other for other in others if 0 <= other < INT63_LIMIT and other != version])


def listed_hash(name: str) -> Edit:
    """Give the manifest row another hash; the digest is not recomputed."""

    def edit(draft: Draft, decide: Bytes) -> None:
        index = draft.pick(decide)
        draft.list_as(index, **{name: flipped(draft.manifest[index][name], decide)})

    return edit


def staged_hash(name: str) -> Edit:
    """Give the staged call another hash; the digest is not recomputed."""

    def edit(draft: Draft, decide: Bytes) -> None:
        index = draft.pick(decide)
        draft.stage(index, **{name: flipped(getattr(draft.calls[index].staged, name), decide)})

    return edit


def retokenized(draft: Draft, decide: Bytes) -> None:
    """Stage a call that is consistent in itself, but has other tokens than the receipt commits to."""
    index = draft.pick(decide)
    draft.restage(index, **other_tokens(draft, index, decide))


def other_tokens(draft: Draft, index: int, decide: Bytes) -> dict[str, Any]:
    """Return other values in one of the token columns, inside the domains."""
    staged = draft.calls[index].staged
    at = decide.below(staged.delta_len)
    ids, mask = list(staged.token_ids_delta), list(staged.token_mask_delta)
    values = list(staged.generation_log_probs_delta)
    match decide.below(3):
        case 0:
            ids[at] ^= 1 << decide.below(8)
        case 1 if mask[at] == 1.0:
            values[at] = -0.25 if values[at] != -0.25 else -0.125
        case _:
            mask[at], values[at] = 1.0 - mask[at], 0.0
    return {
        "token_ids_delta": tuple(ids),
        "token_mask_delta": tuple(mask),
        "generation_log_probs_delta": tuple(values),
    }


def listed_version(name: str, supported: int) -> Edit:
    """Give the manifest row another version."""

    def edit(draft: Draft, decide: Bytes) -> None:
        draft.list_as(draft.pick(decide), **{name: decide.choose((supported + 1, supported - 1, -1, None, 2**64))})

    return edit


def staged_version(name: str, supported: int) -> Edit:
    """Give the staged call another version."""

    def edit(draft: Draft, decide: Bytes) -> None:
        draft.stage(draft.pick(decide), **{name: decide.choose((supported + 1, supported - 1, -1, None, 2**64))})

    return edit


# ── digests that are not the call's ─────────────────────────────────────────────────────────────────────────────────


def tampered(draft: Draft, decide: Bytes) -> None:
    """Change the staged tokens after they were digested."""
    index = draft.pick(decide)
    draft.stage(index, **other_tokens(draft, index, decide))


def forged_digest(draft: Draft, decide: Bytes) -> None:
    """Put the same wrong digest on both sides."""
    index = draft.pick(decide)
    wrong = flipped(draft.calls[index].staged.digest, decide)
    draft.stage(index, digest=wrong)
    draft.list_as(index, digest=wrong)


def forged_hash(draft: Draft, decide: Bytes) -> None:
    """Put another hash on both sides than the one that was digested."""
    index = draft.pick(decide)
    name = decide.choose(("extras_digest", "chain_hash", "cumulative_hash"))
    wrong = flipped(getattr(draft.calls[index].staged, name), decide)
    draft.stage(index, **{name: wrong})
    draft.list_as(index, **{name: wrong})
