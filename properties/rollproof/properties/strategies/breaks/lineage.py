"""One edit, or several, per rejection code of section 4: here those of the graph and of the chain."""

from __future__ import annotations

from typing import Final

from rollproof.properties.strategies.breaks.pair import (
    call_twice,
    calls_swapped,
    forged_digest,
    forged_hash,
    listed_cum_len,
    listed_delta_len,
    listed_hash,
    listed_mode,
    listed_parent,
    listed_prev_len,
    listed_version,
    listed_weight_version,
    manifest_id_twice,
    manifest_key_twice,
    manifest_row_twice,
    no_calls,
    other_rollout,
    receipt_field,
    retokenized,
    staged_cum_len,
    staged_hash,
    staged_mode,
    staged_parent,
    staged_prev_len,
    staged_version,
    staged_weight_version,
    tampered,
    too_few_calls,
    too_many_calls,
    unknown_call,
)
from rollproof.properties.strategies.breaks.snapshot import INVALID_SNAPSHOTS
from rollproof.properties.strategies.rollouts.draft import Draft, Edit, Inapplicable, flipped
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.constants import MODE_TOKEN_IN
from rollproof.spec.digest import chain_digest
from rollproof.spec.rejections import Code


def parent_dropped(draft: Draft, decide: Bytes) -> None:
    """Lose a call that another one continues: manifest and staging have a hole."""
    child = draft.child(decide)
    parent = draft.calls[child].staged.parent_call_id
    lost = draft.pick(decide, lambda call: call.id == parent)
    if draft.terminal == parent:
        draft.set_terminal(draft.calls[child].id)
    draft.drop(lost)


def parent_unknown(draft: Draft, decide: Bytes) -> None:
    """Make a call name a parent that never existed."""
    index = draft.child(decide)
    draft.amend(index, parent_call_id=decide.choose(("elsewhere", draft.calls[index].id + "/", "\x00 ")))


def starts_late(draft: Draft, decide: Bytes) -> None:
    """Make a call start after the end of its parent."""
    start_at(draft, index := draft.child(decide), draft.calls[index].staged.prev_len + decide.choose((1, 2, 5, 1000)))


def starts_early(draft: Draft, decide: Bytes) -> None:
    """Make a call start before the end of its parent."""
    index = draft.child(decide)
    prev_len = draft.calls[index].staged.prev_len
    if prev_len == 1:
        raise Inapplicable
    start_at(draft, index, decide.choose((prev_len - 1, 1)))


def start_at(draft: Draft, index: int, prev_len: int) -> None:
    """Give the call this prev_len, in staging and in the manifest."""
    draft.amend(index, prev_len=prev_len, cum_len=prev_len + draft.calls[index].staged.delta_len)


def circle(draft: Draft, decide: Bytes) -> None:
    """Make the first call of the manifest continue one from which parents lead in a circle.

    Along a circle lengths cannot add up everywhere. They do at the first call, so the circle is detected first.
    """
    if draft.count < 2:
        raise Inapplicable
    last = draft.count - 1
    other = 1 + decide.below(last)
    back = draft.calls[decide.choose((0, other, 0, last))].id
    enter(draft, other, back, 1)
    if back == draft.calls[last].id and last != other:
        enter(draft, last, draft.calls[other].id, 1)
    enter(draft, 0, draft.calls[other].id, draft.calls[other].staged.cum_len)


def enter(draft: Draft, index: int, parent: str, prev_len: int) -> None:
    """Make the call continue ``parent`` from ``prev_len`` on."""
    cum_len = prev_len + draft.calls[index].staged.delta_len
    draft.amend(index, parent_call_id=parent, mode=MODE_TOKEN_IN, prev_len=prev_len, cum_len=cum_len)


def unknown_terminal(draft: Draft, decide: Bytes) -> None:
    """Make the receipt name an unlisted terminal, or none."""
    draft.set_terminal(decide.choose((None, "elsewhere", "")))


def unchained(draft: Draft, decide: Bytes) -> None:
    """Give a call of the chain the chain hash of other tokens or of another place."""
    index = draft.on_chain(decide)
    staged = draft.calls[index].staged
    wrong = flipped(staged.chain_hash, decide)
    moved = [call.staged.chain_hash for call in draft.calls if call.staged.chain_hash != staged.chain_hash]
    if staged.parent_call_id is not None:
        moved.append(chain_digest(None, staged.token_ids_delta))
    draft.amend(index, chain_hash=decide.choose([wrong, *moved]))


def mask_falls(draft: Draft, decide: Bytes) -> None:
    """Put a carry token after a generated one, in a call of the chain."""
    index = draft.on_chain(decide, lambda call: call.staged.delta_len > 1)
    staged = draft.calls[index].staged
    mask, values = list(staged.token_mask_delta), list(staged.generation_log_probs_delta)
    first = decide.below(len(mask) - 1)
    second = first + 1 + decide.below(len(mask) - 1 - first)
    mask[first], mask[second], values[second] = 1.0, 0.0, 0.0
    draft.amend(index, token_mask_delta=tuple(mask), generation_log_probs_delta=tuple(values))


def nothing_generated(draft: Draft, decide: Bytes) -> None:
    """Make a call of the chain consist of carry tokens only."""
    index = draft.on_chain(decide)
    zeros = (0.0,) * draft.calls[index].staged.delta_len
    draft.amend(index, token_mask_delta=zeros, generation_log_probs_delta=zeros)


def other_prefix(draft: Draft, decide: Bytes) -> None:
    """Make the terminal call commit to another prefix."""
    index = draft.pick(decide, lambda call: call.id == draft.terminal)
    own = draft.calls[index].staged.cumulative_hash
    others = [call.staged.cumulative_hash for call in draft.calls if call.staged.cumulative_hash != own]
    draft.amend(index, cumulative_hash=decide.choose([flipped(own, decide), *others]))


NOT_TWO: Final = (1, 3, 0, -1, None, "2", 2**64)
NOT_ONE: Final = (2, 0, -1, None, "1", 2**64)
LINEAGE_EDITS: Final[dict[Code, tuple[Edit, ...]]] = {
    Code.UNSUPPORTED_SCHEMA: (receipt_field("schema_version", *NOT_TWO),),
    Code.UNSUPPORTED_DIGEST: (receipt_field("digest_version", *NOT_TWO),),
    Code.UNSUPPORTED_EXTRAS_DIGEST: (receipt_field("extras_digest_version", *NOT_ONE),),
    Code.REBUILD_ROLLOUT_FAILED: (receipt_field("failure_reason", "worker_capture_failed", "", "a:b: c"),),
    Code.REBUILD_CAPTURE_POISONED: (receipt_field("capture_poisoned", True),),
    Code.EMPTY_MANIFEST: (no_calls,),
    Code.DUPLICATE_MANIFEST_ROW: (manifest_row_twice, manifest_id_twice),
    Code.REBUILD_DUPLICATE_STAGING_KEY: (manifest_key_twice,),
    Code.ROW_COUNT_MISMATCH: (too_few_calls, too_many_calls),
    Code.DUPLICATE_SNAPSHOT: (call_twice,),
    Code.SNAPSHOT_IDENTITY_MISMATCH: (unknown_call,),
    Code.SNAPSHOT_ORDER_MISMATCH: (calls_swapped,),
    Code.WRONG_ROLLOUT: (other_rollout,),
    Code.WRONG_PARENT_CALL_ID: (listed_parent, staged_parent),
    Code.WRONG_MODE: (listed_mode, staged_mode),
    Code.WRONG_PREV_LEN: (listed_prev_len, staged_prev_len),
    Code.WRONG_DELTA_LEN: (listed_delta_len,),
    Code.WRONG_CUM_LEN: (listed_cum_len, staged_cum_len),
    Code.WRONG_WEIGHT_VERSION: (listed_weight_version, staged_weight_version),
    Code.WRONG_DIGEST: (listed_hash("digest"), staged_hash("digest"), retokenized),
    Code.WRONG_EXTRAS_DIGEST: (listed_hash("extras_digest"), staged_hash("extras_digest")),
    Code.WRONG_CHAIN_HASH: (listed_hash("chain_hash"), staged_hash("chain_hash")),
    Code.WRONG_CUMULATIVE_HASH: (listed_hash("cumulative_hash"), staged_hash("cumulative_hash")),
    Code.WRONG_SCHEMA_VERSION: (listed_version("schema_version", 2), staged_version("schema_version", 2)),
    Code.WRONG_DIGEST_VERSION: (listed_version("digest_version", 2), staged_version("digest_version", 2)),
    Code.WRONG_EXTRAS_DIGEST_VERSION: (
        listed_version("extras_digest_version", 1),
        staged_version("extras_digest_version", 1),
    ),
    Code.INVALID_SNAPSHOT: INVALID_SNAPSHOTS,
    Code.CORRUPT_DIGEST: (tampered, forged_digest, forged_hash),
    Code.MISSING_PARENT: (parent_dropped, parent_unknown),
    Code.PARENT_LENGTH_MISMATCH: (starts_late, starts_early),
    Code.LINEAGE_CYCLE: (circle,),
    Code.MISSING_TERMINAL: (unknown_terminal,),
    Code.CHAIN_HASH_MISMATCH: (unchained,),
    Code.INVALID_MASK_ORDER: (mask_falls,),
    Code.EMPTY_GENERATION: (nothing_generated,),
    Code.CUMULATIVE_HASH_MISMATCH: (other_prefix,),
}
"""Per code of section 4, the edits that lead to it in a direct request."""
