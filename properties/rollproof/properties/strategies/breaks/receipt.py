"""Edits that make a receipt invalid: field rules of section 3, strict types (D16), and rules between fields."""

from __future__ import annotations

import math
from typing import Any, Final

from rollproof.properties.strategies.rollouts.draft import Draft, Edit, fresh
from rollproof.properties.strategies.rollouts.recipes import BigInt, JsonText, Nest, Repeat, Rows
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.constants import INT63_LIMIT, RESERVED_ROLLOUT_ID, UINT64_LIMIT
from rollproof.spec.receipt import MANIFEST_FIELDS, RECEIPT_FIELDS

ABSENT: Final = object()
"""Stands for leaving a field out."""

NO_TEXT: Final[tuple[Any, ...]] = (0, True, 1.5, [], {}, ["r"], "\ud800", "a\udfffb", BigInt(5000))
NO_ID: Final[tuple[Any, ...]] = ("", *NO_TEXT)
NO_LENGTH: Final[tuple[Any, ...]] = (
    -1, INT63_LIMIT, UINT64_LIMIT, True, False, 1.0, "1", "", None, [], [1], {}, math.nan, BigInt(400),
    BigInt(5000, negative=True),
)  # fmt: skip
NO_DIGESTS: Final[tuple[Any, ...]] = (
    "", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0x" + "0" * 62, " " + "0" * 63, "0" * 63 + "\n", "٠" * 64, 0, True,
    [], {}, ["0" * 64], "\ud800" * 64, Repeat("0", 100_000),
)  # fmt: skip
NO_NUMBER: Final[tuple[Any, ...]] = (
    True, False, "3.0", "", "NaN", "1", math.nan, math.inf, -math.inf, [], [1.0], {}, BigInt(309), BigInt(5000),
    BigInt(400, negative=True),
)  # fmt: skip
NO_BOOL: Final[tuple[Any, ...]] = (0, 1, 0.0, "no", "false", "", None, [], {})
NO_TWO: Final[tuple[Any, ...]] = (1, 3, 0, -2, 2.0, "2", True, None, [2], {}, BigInt(5000))
NO_ONE: Final[tuple[Any, ...]] = (2, 0, -1, 1.0, "1", True, None, [1], {}, BigInt(5000))
NO_SELECTION: Final[tuple[Any, ...]] = ("", "DECLARED", "declared ", "none", "\ud800", 0, True, [], ["declared"], {})
NO_MODE: Final[tuple[Any, ...]] = ("", "TEXT", "tokens", None, 0, 1, True, [], ["text"], {})
NO_MANIFEST: Final[tuple[Any, ...]] = (
    None, 5, "", "c0", {}, True, 0.0, (), [None], [[]], ["c0"], [5], [{}], Nest("list", 2000), Nest("list", 1),
)  # fmt: skip

RECEIPT_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "rollout_id": (ABSENT, None, "a/b", "/", RESERVED_ROLLOUT_ID, *NO_ID),
    "reward": NO_NUMBER,
    "terminal_model_call_id": (ABSENT, None, "elsewhere", *NO_ID),
    "manifest": (ABSENT, *NO_MANIFEST),
    "capture_poisoned": NO_BOOL,
    "failure_reason": ("worker_capture_failed", "", *NO_TEXT),
    "terminal_selection": (ABSENT, None, *NO_SELECTION),
    "terminal_attribution_reason": NO_TEXT,
    "schema_version": NO_TWO,
    "digest_version": NO_TWO,
    "extras_digest_version": NO_ONE,
}
"""Per field of a valid receipt that did not fail: values that make it invalid."""

ROW_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "model_call_id": (ABSENT, None, *NO_ID),
    "parent_call_id": NO_ID,
    "prev_len": (ABSENT, *NO_LENGTH),
    "delta_len": (ABSENT, 0, *NO_LENGTH),
    "cum_len": (ABSENT, 0, *NO_LENGTH),
    "weight_version": (ABSENT, *NO_LENGTH),
    "digest": (ABSENT, None, *NO_DIGESTS),
    "extras_digest": (ABSENT, None, *NO_DIGESTS),
    "staging_key": (ABSENT, None, *NO_ID),
    "chain_hash": (ABSENT, None, *NO_DIGESTS),
    "cumulative_hash": (ABSENT, None, *NO_DIGESTS),
    "response_id": (ABSENT, None, *NO_ID),
    "mode": NO_MODE,
    "admitted_at": NO_NUMBER,
    "output_fingerprint": NO_DIGESTS,
    "continuation_fingerprint": NO_DIGESTS,
    "fingerprint_version": NO_LENGTH,
    "schema_version": NO_TWO,
    "digest_version": NO_TWO,
    "extras_digest_version": NO_ONE,
}
"""The same for a manifest row."""

UNKNOWN_FIELDS: Final = (
    "terminal_call_id", "terminal", "token_ids", "extras", "rollout", "Reward", "reward ", "", "staging_keys",
    "prefix_hash", "\ud800", "__class__",
)  # fmt: skip
"""Fields that no receipt has: old names, other spellings."""

NO_RECEIPT: Final[tuple[Any, ...]] = (
    [], {}, "", 0, True, False, 1.5, "receipt", [{}], math.nan, BigInt(5000), Nest("dict", 3000), Nest("list", 100_000),
    Repeat("r", 100_000), JsonText('{"rollout_id": "r", "rollout_id": 5}'), {"rollout_id": "r"},
    {"rollout_id": "r", "manifest": 5}, {"rollout_id": "r", "manifest": None},
)  # fmt: skip

POISONED: Final = {"capture_poisoned": True, "failure_reason": "worker_capture_failed"}


def replace(fields: dict[str, Any], name: str, value: Any) -> None:
    """Set a field of a raw record, or leave it out."""
    if value is ABSENT:
        fields.pop(name, None)
    else:
        fields[name] = fresh(value)


def receipt_value(draft: Draft, decide: Bytes) -> None:
    """Put one field of the receipt outside its domain, or drop it."""
    name = decide.choose(list(RECEIPT_VALUES))
    replace(draft.receipt, name, decide.choose(RECEIPT_VALUES[name]))


def row_value(draft: Draft, decide: Bytes) -> None:
    """Put one field of a manifest row outside its domain, or drop it."""
    row = draft.manifest[draft.pick(decide)]
    name = decide.choose(list(ROW_VALUES))
    replace(row, name, decide.choose(ROW_VALUES[name]))


def unknown_field(draft: Draft, decide: Bytes) -> None:
    """Add a field to the receipt or to a manifest row that it cannot have."""
    own = decide.chance(128)
    record = draft.manifest[draft.pick(decide)] if own else draft.receipt
    foreign = RECEIPT_FIELDS if own else MANIFEST_FIELDS
    known = MANIFEST_FIELDS if own else RECEIPT_FIELDS
    names = (*UNKNOWN_FIELDS, *(name for name in foreign if name not in known))
    record[decide.choose(names)] = fresh(decide.choose((None, 0, "", [], {}, Nest("list", 500))))


def odd_row(draft: Draft, decide: Bytes) -> None:
    """Replace a manifest row by something that is not an object."""
    odd: tuple[Any, ...] = (None, [], "c0", 5, True, Nest("dict", 1000), {}, {"mode": "text"})
    draft.manifest[draft.pick(decide)] = fresh(decide.choose(odd))


def odd_receipt(draft: Draft, decide: Bytes) -> None:
    """Replace the receipt by something else altogether."""
    draft.receipt = fresh(decide.choose(NO_RECEIPT))


def crowd(draft: Draft, decide: Bytes) -> None:
    """List one call in thousands of manifest rows."""
    row = draft.manifest[draft.pick(decide)]
    draft.receipt["manifest"] = Rows(dict(row), decide.choose((1000, 3000)), distinct=False)


def repeated_call(draft: Draft, decide: Bytes) -> None:
    """List one call in two manifest rows."""
    draft.manifest.insert(decide.below(2), dict(draft.manifest[draft.pick(decide)]))


def lengths_do_not_add_up(draft: Draft, decide: Bytes) -> None:
    """Break prev_len + delta_len == cum_len, or that prev_len is 0 iff the call is a root."""
    row = draft.manifest[draft.pick(decide)]
    match decide.below(4):
        case 0:
            row["cum_len"] += 1
        case 1:
            row["delta_len"] += 1
        case 2:
            row["prev_len"] += 1
        case _:
            row["prev_len"] = 0 if row["prev_len"] else 1
            row["cum_len"] = row["prev_len"] + row["delta_len"]


def mode_contradicts_parent(draft: Draft, decide: Bytes) -> None:
    """Make a root token_in (or nothing), or a child text."""
    row = draft.manifest[draft.pick(decide)]
    if row.get("parent_call_id") is not None:
        row["mode"] = "text"
    else:
        replace(row, "mode", decide.choose(("token_in", ABSENT)))


def failed_but_whole(draft: Draft, decide: Bytes) -> None:
    """Mark the rollout as failed and its capture as sound."""
    draft.receipt["failure_reason"] = decide.choose(("orphaned_row", ""))
    if decide.chance(128):
        draft.receipt["terminal_model_call_id"] = draft.receipt["terminal_selection"] = None


def terminal_without_selection(draft: Draft, decide: Bytes) -> None:
    """Poison the receipt, and name a terminal that was not selected."""
    draft.receipt |= POISONED | {"terminal_selection": None}


def no_selection_without_reason(draft: Draft, decide: Bytes) -> None:
    """Poisoned; nothing was selected, and nothing says why."""
    draft.receipt["capture_poisoned"] = True
    for name in ("failure_reason", "terminal_selection", "terminal_model_call_id"):
        replace(draft.receipt, name, decide.choose((None, ABSENT)))


def poisoned_and_wrong(draft: Draft, decide: Bytes) -> None:
    """Poison the receipt, and name an unlisted terminal or break a row: still invalid."""
    draft.receipt |= POISONED
    if decide.chance(128):
        row_value(draft, decide)
    else:
        draft.receipt["terminal_model_call_id"] = "elsewhere"


INVALID_RECEIPTS: Final[tuple[Edit, ...]] = (
    receipt_value,
    row_value,
    receipt_value,
    row_value,
    unknown_field,
    odd_row,
    odd_receipt,
    repeated_call,
    lengths_do_not_add_up,
    mode_contradicts_parent,
    failed_but_whole,
    terminal_without_selection,
    no_selection_without_reason,
    poisoned_and_wrong,
)
"""Edits after which a receipt is invalid; ``crowd`` is one as well, and slower."""
