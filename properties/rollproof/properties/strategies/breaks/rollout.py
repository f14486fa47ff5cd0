"""One edit, or several, per rejection code of section 5, and edits that no rule forbids."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve

from rollproof.properties.strategies.breaks.pair import manifest_key_twice
from rollproof.properties.strategies.breaks.receipt import INVALID_RECEIPTS, replace
from rollproof.properties.strategies.breaks.row import INVALID_ROWS, current
from rollproof.properties.strategies.rollouts.draft import Draft, Edit, Inapplicable, flipped
from rollproof.properties.strategies.rollouts.history import staged_columns
from rollproof.properties.strategies.scalars import REWARDS, UNUSABLE_REWARDS, Bytes
from rollproof.spec.constants import INT63_LIMIT, RESERVED_ROLLOUT_ID, SCALAR_COLUMNS
from rollproof.spec.judge.staging import OnMiss
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor


def no_receipt(draft: Draft, decide: Bytes) -> None:
    """Drop the receipt."""
    draft.receipt = None


def other_name_asked(draft: Draft, decide: Bytes) -> None:
    """Finalize another rollout than the receipt's; from their names it may own the receipt's keys."""
    own = draft.rollout_id
    others = ("other", own + "0", own[:-1], own.upper(), own + "/c0", "", own + "\u0301", "\ud800")
    draft.rollout_id = decide.choose([other for other in others if other != own])


def failed(draft: Draft, decide: Bytes) -> None:
    """Make the capture fail, with or without a terminal; the reason is any string."""
    draft.receipt["capture_poisoned"] = True
    draft.receipt["failure_reason"] = decide.choose(
        ("worker_capture_failed", "lookup_error", "orphaned_row: c0", "a:b:c", " ", "é", "", "reason\n", "x" * 1000)
    )
    if decide.chance(112):
        draft.receipt["terminal_model_call_id"] = draft.receipt["terminal_selection"] = None
    if decide.chance(64):
        draft.receipt["terminal_model_call_id"] = draft.receipt["terminal_selection"] = None
        draft.receipt["manifest"] = []


def poisoned(draft: Draft, decide: Bytes) -> None:
    """Poison the capture without a reason; a terminal was selected or not found."""
    draft.receipt["capture_poisoned"] = True
    if decide.chance(112):
        replace(draft.receipt, "terminal_model_call_id", None)


def some_rows_missing(draft: Draft, decide: Bytes) -> None:
    """Leave at least one row unstaged, or all, reported in one of the data plane's ways."""
    draft.on_miss = decide.choose(tuple(OnMiss))
    draft.missing.add(draft.pick(decide))
    for index in range(len(draft.calls)):
        if decide.chance(96):
            draft.missing.add(index)


def keys_of_others(draft: Draft, decide: Bytes) -> None:
    """Make a manifest row list a key under which nothing is staged, perhaps another rollout's."""
    draft.on_miss = decide.choose(tuple(OnMiss))
    index = draft.pick(decide)
    own = draft.calls[index].staged.rollout_id
    keys = (f"{own}/elsewhere", "elsewhere/c0", own, "/", f"{draft.calls[index].key}/", f"{own}//")
    draft.list_as(index, staging_key=decide.choose([key for key in keys if key not in draft.keys]))


def rows_swapped(draft: Draft, decide: Bytes) -> None:
    """Stage two calls under each other's key."""
    first, second = draft.pick_two(decide)
    draft.keys[first], draft.keys[second] = draft.keys[second], draft.keys[first]


def key_of_a_cut(draft: Draft, decide: Bytes) -> None:
    """Stage and list a call under a key of generation cuts, which never holds a rollout's call."""
    index = draft.pick(decide)
    call = draft.calls[index]
    key = f"{RESERVED_ROLLOUT_ID}/1/{call.staged.rollout_id}/{call.id}/{decide.below(2)}"
    draft.keys[index] = key
    draft.list_as(index, staging_key=key)


def row_of_another_rollout(draft: Draft, decide: Bytes) -> None:
    """Put another rollout's row under the key."""
    index = draft.pick(decide)
    own = draft.calls[index].staged.rollout_id
    other = decide.choose(("other", own + "0", own[:-1] or "s"))
    draft.restage(index, rollout_id="another" if other == own else other)


def row_of_another_call(draft: Draft, decide: Bytes) -> None:
    """Put another call's row under the key, known or unknown."""
    index = draft.pick(decide)
    own = draft.calls[index].id
    ids = ["elsewhere", own + "/", *(call.id for call in draft.calls if call.id != own)]
    draft.restage(index, model_call_id=decide.choose(ids))


def keys_swapped(draft: Draft, decide: Bytes) -> None:
    """List two calls under each other's key: each row belongs to its key, but not to its manifest row."""
    first, second = draft.pick_two(decide)
    keys = [draft.manifest[index]["staging_key"] for index in (second, first)]
    draft.list_as(first, staging_key=keys[0])
    draft.list_as(second, staging_key=keys[1])


def key_of_a_longer_call(draft: Draft, decide: Bytes) -> None:
    """List key a/b/c for call c: it starts with "a/", and belongs to a's call b/c, which is staged."""
    index = draft.pick(decide)
    call = draft.calls[index]
    longer = decide.choose((f"b/{call.id}", f"{call.id}/{call.id}", f"{call.id}0", "stranger"))
    stranger = evolve(call, staged=evolve(call.staged, model_call_id=longer))
    if stranger.key in draft.keys:
        raise Inapplicable
    draft.strangers[stranger.key] = staged_columns(stranger)
    draft.list_as(index, staging_key=stranger.key)


def unusable_reward(draft: Draft, decide: Bytes) -> None:
    """Give the rollout a reward that is not a number that float32 can hold."""
    draft.reward = decide.choose(UNUSABLE_REWARDS)


ROLLOUT_EDITS: Final[dict[Code, tuple[Edit, ...]]] = {
    Code.MISSING_RECEIPT: (no_receipt,),
    Code.INVALID_RECEIPT: INVALID_RECEIPTS,
    Code.IDENTITY_MISMATCH: (other_name_asked,),
    Code.ROLLOUT_FAILED: (failed,),
    Code.CAPTURE_POISONED: (poisoned,),
    Code.DUPLICATE_STAGING_KEY: (manifest_key_twice,),
    Code.MISSING_STAGING_ROW: (some_rows_missing, keys_of_others),
    Code.INVALID_STAGING_ROW: INVALID_ROWS,
    Code.STAGING_KEY_MISMATCH: (rows_swapped, row_of_another_rollout, row_of_another_call, key_of_a_cut),
    Code.CALL_ID_MISMATCH: (keys_swapped, key_of_a_longer_call),
    Code.INVALID_REWARD: (unusable_reward,),
}
"""Per code of section 5, the edits that lead to it. Those of section 4 follow in ``lineage_breaks``."""


# ── what no rule forbids ────────────────────────────────────────────────────────────────────────────────────────────


def dead_branch_damaged(draft: Draft, decide: Bytes) -> None:
    """Break a rule in a call off the chain that only calls of the chain must satisfy."""
    index = draft.off_chain(decide)
    staged = draft.calls[index].staged
    zeros = (0.0,) * staged.delta_len
    changes: tuple[dict[str, Any], ...] = (
        {"chain_hash": flipped(staged.chain_hash, decide)},
        {"cumulative_hash": flipped(staged.cumulative_hash, decide)},
        {"token_mask_delta": zeros, "generation_log_probs_delta": zeros},
        {"token_mask_delta": (1.0, *zeros[1:]), "generation_log_probs_delta": (-0.5, *zeros[1:])},
    )
    draft.amend(index, **decide.choose(changes))


def inner_prefix_damaged(draft: Draft, decide: Bytes) -> None:
    """Give a call of the chain before its terminal another cumulative hash: only the terminal's is checked."""
    index = draft.on_chain(decide, lambda call: call.id != draft.terminal)
    draft.amend(index, cumulative_hash=flipped(draft.calls[index].staged.cumulative_hash, decide))


def scalar_with_two_dimensions(draft: Draft, decide: Bytes) -> None:
    """Give a scalar column the shape [1, 1], as some backends return it."""
    index = draft.pick(decide)
    for name in SCALAR_COLUMNS:
        if decide.chance(96):
            column = current(draft, index, name)
            draft.put_column(index, name, Tensor(column.dtype, (1, 1), column.data))


def other_columns(draft: Draft, decide: Bytes) -> None:
    """Add columns to the row that nobody requested."""
    index = draft.pick(decide)
    name = decide.choose(("media_present", "tag", "routed_experts", "reward"))
    draft.put_column(index, name, Tensor.of("float32", [0.0], (1, 1)))


def odd_metadata(draft: Draft, decide: Bytes) -> None:
    """Stage extras that are not JSON, or not even UTF-8: nothing reads them without routes and media."""
    data = decide.choose((b"\x00", b"\xff", b"{", b'{"a":1,"a":2}', b"NaN", b"[" * 3000, b'"' + b"x" * 5000))
    draft.put_column(draft.pick(decide), "extras_metadata_json", Tensor("uint8", (1, len(data)), data))


def routes_nobody_asked_for(draft: Draft, decide: Bytes) -> None:
    """Mark the row as one with routes; without router replay that does not matter."""
    index = draft.pick(decide)
    length = decide.choose((draft.calls[index].staged.delta_len, 1, INT63_LIMIT - 1))
    draft.put_column(index, "routed_experts_encoding", Tensor.of("int64", [decide.choose((1, 2))]))
    draft.put_column(index, "routed_len", Tensor.of("int64", [length]))


def whole_vocabulary(draft: Draft, decide: Bytes) -> None:
    """Make the vocabulary's last id the largest one, unless there is no such size."""
    largest = max(max(call.staged.token_ids_delta) for call in draft.calls)
    if largest + 1 < INT63_LIMIT:
        draft.config = evolve(draft.config, vocab_size=largest + 1)


def strangers_around(draft: Draft, decide: Bytes) -> None:
    """Put other rollouts' rows into the same partition, under keys that look alike."""
    call = draft.calls[draft.pick(decide)]
    for owner in (f"{call.staged.rollout_id}0", "other"):
        stranger = evolve(call, staged=evolve(call.staged, rollout_id=owner))
        draft.strangers[stranger.key] = staged_columns(stranger)


def any_usable_reward(draft: Draft, decide: Bytes) -> None:
    """Give the rollout any reward that float32 can hold."""
    draft.reward = decide.choose(REWARDS)


HARMLESS: Final[tuple[Edit, ...]] = (
    any_usable_reward,
    dead_branch_damaged,
    inner_prefix_damaged,
    scalar_with_two_dimensions,
    other_columns,
    odd_metadata,
    routes_nobody_asked_for,
    whole_vocabulary,
    strangers_around,
)
"""Edits of a valid rollout that leave it valid."""

HARMLESS_TO_LINEAGE: Final[tuple[Edit, ...]] = (dead_branch_damaged, inner_prefix_damaged)
"""Those that a direct request can show."""
