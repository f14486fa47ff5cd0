"""Edits of one staged row's wire columns after which it is ``invalid_staging_row`` (sections 9 and 5, decision D17)."""

from __future__ import annotations

import math
from typing import Any, Final

from attrs import evolve

from rollproof.properties.strategies.rollouts.draft import Draft, Edit, Inapplicable
from rollproof.properties.strategies.rollouts.history import staged_columns
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.constants import (
    BASE_COLUMNS,
    DIGEST_COLUMNS,
    FLAG_COLUMNS,
    INT63_LIMIT,
    RESERVED_ROLLOUT_ID,
    SCALAR_COLUMNS,
    TEXT_COLUMNS,
    TOKEN_COLUMNS,
)
from rollproof.spec.tensor import ITEM_SIZES, Tensor


def current(draft: Draft, index: int, name: str) -> Tensor:
    """Return a call's column as it is staged."""
    column = draft.columns.get(index, {}).get(name) or staged_columns(draft.calls[index]).get(name)
    if column is None:
        raise Inapplicable
    return column


def column_missing(draft: Draft, decide: Bytes) -> None:
    """Drop a column."""
    draft.put_column(draft.pick(decide), decide.choose(BASE_COLUMNS), None)


OTHER_DTYPES: Final = ("int64", "int32", "uint8", "float32", "float64", "bool", "int16", "float16", "bfloat16", "int8")


def other_dtype(draft: Draft, decide: Bytes) -> None:
    """Replace a column by zeros of another dtype, in the same shape."""
    index, name = draft.pick(decide), decide.choose(BASE_COLUMNS)
    column = current(draft, index, name)
    dtype = decide.choose([dtype for dtype in OTHER_DTYPES if dtype != column.dtype])
    draft.put_column(index, name, Tensor(dtype, column.shape, bytes(column.count * ITEM_SIZES[dtype])))


def float64_log_probs(draft: Draft, decide: Bytes) -> None:
    """Convert log-probabilities, mask or ids to a wider or narrower dtype, with the same values."""
    index = draft.pick(decide)
    name, dtype = decide.choose((("generation_logprobs_delta", "float64"), ("token_mask_delta", "float64")))
    column = current(draft, index, name)
    draft.put_column(index, name, Tensor.of(dtype, column.values(), column.shape))


def scalar_shape(draft: Draft, decide: Bytes) -> None:
    """Make a scalar column hold two values or none, or give it a dimension too many."""
    index, name = draft.pick(decide), decide.choose((*SCALAR_COLUMNS, *FLAG_COLUMNS))
    column = current(draft, index, name)
    shape = decide.choose(((1, 2), (1, 1, 1), (1, 0)))
    draft.put_column(index, name, Tensor(column.dtype, shape, column.data * math.prod(shape)))


def vector_shape(draft: Draft, decide: Bytes) -> None:
    """Take a dimension from a token, string or digest column, add one, or leave it no elements."""
    index, name = draft.pick(decide), decide.choose((*TOKEN_COLUMNS, *TEXT_COLUMNS, *DIGEST_COLUMNS))
    column = current(draft, index, name)
    shapes = [(1, column.count, 1), (1, 1, column.count), (1, 0)] + [(1,)] * (column.count == 1)
    shape = decide.choose(shapes)
    draft.put_column(index, name, Tensor(column.dtype, shape, b"" if 0 in shape else column.data))


def digest_length(draft: Draft, decide: Bytes) -> None:
    """Make a digest one byte longer or shorter."""
    resize(draft, draft.pick(decide), decide.choose(tuple(DIGEST_COLUMNS)), decide.choose((1, -1)))


def surplus_token(draft: Draft, decide: Bytes) -> None:
    """Make a token column one element longer than the row says, by a zero."""
    resize(draft, draft.pick(decide), decide.choose(tuple(TOKEN_COLUMNS)), 1)


def lost_token(draft: Draft, decide: Bytes) -> None:
    """Make a token column one element shorter than the row says."""
    index = draft.pick(decide, lambda call: call.staged.delta_len > 1)
    resize(draft, index, decide.choose(tuple(TOKEN_COLUMNS)), -1)


def resize(draft: Draft, index: int, name: str, by: int) -> None:
    """Make a column one zero longer, or one element shorter."""
    column = current(draft, index, name)
    if column.count == 0:
        raise Inapplicable
    size = len(column.data) // column.count
    data = column.data + bytes(size) if by > 0 else column.data[:-size]
    draft.put_column(index, name, Tensor(column.dtype, (1, len(data) // size), data))


SCALAR_VALUES: Final[dict[str, tuple[int, ...]]] = {
    "schema_version": (1, 3, 0, -1),
    "digest_version": (1, 3, 0, -1),
    "extras_digest_version": (2, 0, -1),
    "capture_mode": (2, -1, INT63_LIMIT - 1),
    "prev_len": (-1, -(2**63)),
    "delta_len": (0, -1),
    "cum_len": (0, -1),
    "weight_version": (-1, -(2**63)),
    "routed_experts_encoding": (1, 2, 3, 4, -1),
    "routed_len": (1, -1, INT63_LIMIT - 1),
}
"""Values that are wrong in a row without routes."""


def scalar_value(draft: Draft, decide: Bytes) -> None:
    """Put a scalar outside its domain, or let one say that there are routes where another says that there are none."""
    index = draft.pick(decide)
    name = decide.choose(SCALAR_COLUMNS)
    draft.put_column(index, name, Tensor.of("int64", [decide.choose(SCALAR_VALUES[name])]))


def scalar_contradiction(draft: Draft, decide: Bytes) -> None:
    """Make a mode contradict the parent, or the lengths each other."""
    index = draft.pick(decide)
    staged = draft.calls[index].staged
    root = staged.parent_call_id is None
    match decide.below(5):
        case 0:
            changes = {"capture_mode": 1 if root else 0}
        case 1:
            changes = {"prev_len": 1 if root else 0, "cum_len": staged.delta_len + (1 if root else 0)}
        case 2:
            changes = {"cum_len": staged.cum_len + 1}
        case 3:
            changes = {"delta_len": staged.delta_len + 1, "cum_len": staged.cum_len + 1}
        case _:
            changes = {"routed_experts_encoding": 1, "routed_len": -1}
    for name, value in changes.items():
        draft.put_column(index, name, Tensor.of("int64", [value]))


def flag_off(draft: Draft, decide: Bytes) -> None:
    """Make a flag contradict its column."""
    index, name = draft.pick(decide), decide.choose(FLAG_COLUMNS)
    value = bool(current(draft, index, name).values()[0])
    draft.put_column(index, name, Tensor.of("bool", [not value]))


NOT_UTF8: Final = (b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"c0\xc3", b"\xf4\x90\x80\x80", b"\x80")
"""Stray and overlong bytes, an encoded surrogate, a cut sequence, beyond the last code point."""


def not_utf8(draft: Draft, decide: Bytes) -> None:
    """Make an id invalid UTF-8."""
    index = draft.pick(decide)
    names = ["rollout_id_utf8", "model_call_id_utf8"]
    if draft.calls[index].staged.parent_call_id is not None:
        names.append("parent_call_id_utf8")
    text_column(draft, index, decide.choose(names), decide.choose(NOT_UTF8))


def text_column(draft: Draft, index: int, name: str, data: bytes) -> None:
    """Replace a string column by these bytes."""
    draft.put_column(index, name, Tensor("uint8", (1, len(data)), data))


def slash_in_row(draft: Draft, decide: Bytes) -> None:
    """Put a slash into the row's rollout id, or make it the reserved one: "r" + "/" + "c0" can be read in two ways."""
    index = draft.pick(decide)
    text_column(draft, index, "rollout_id_utf8", decide.choose((draft.calls[index].key, RESERVED_ROLLOUT_ID)).encode())


def absent_parent_named(draft: Draft, decide: Bytes) -> None:
    """Put something else than one zero byte into a root's parent column."""
    index = draft.pick(decide, lambda call: call.staged.parent_call_id is None)
    text_column(draft, index, "parent_call_id_utf8", decide.choose((b"\x00\x00", b"c0", b"\x01", b" ")))


def token_value(draft: Draft, decide: Bytes) -> None:
    """Make an id negative."""
    index = draft.pick(decide)
    column = current(draft, index, "token_ids_delta")
    put_value(draft, index, "token_ids_delta", decide.below(column.count), decide.choose((-1, -100, -(2**63))))


def outside_vocabulary(draft: Draft, decide: Bytes) -> None:
    """Make an id as large as the vocabulary, or larger."""
    index = draft.pick(decide)
    largest = max(max(call.staged.token_ids_delta) for call in draft.calls)
    if largest + 1 < INT63_LIMIT and not decide.chance(128):
        draft.config = evolve(draft.config, vocab_size=largest + 1)
        column = current(draft, index, "token_ids_delta")
        put_value(draft, index, "token_ids_delta", decide.below(column.count), largest + 1)
    elif largest > 0:
        draft.config = evolve(draft.config, vocab_size=largest)
    else:
        raise Inapplicable


def put_value(draft: Draft, index: int, name: str, at: int, value: Any) -> None:
    """Replace one element of a token column."""
    column = current(draft, index, name)
    values = list(column.values())
    if column.dtype != TOKEN_COLUMNS[name] or at >= len(values):
        raise Inapplicable
    values[at] = value
    draft.put_column(index, name, Tensor.of(column.dtype, values, column.shape))


NOT_FINITE: Final = (math.nan, math.inf, -math.inf)


def mask_value(draft: Draft, decide: Bytes) -> None:
    """Give a mask other bits than those of 0.0 and 1.0."""
    index = draft.pick(decide)
    count = draft.calls[index].staged.delta_len
    put_value(
        draft, index, "token_mask_delta", decide.below(count), decide.choose((0.5, -1.0, 2.0, 1e-45, *NOT_FINITE))
    )


def minus_zero(draft: Draft, decide: Bytes) -> None:
    """Give a carry token a mask or log-probability of -0.0 (decision D2)."""
    index = draft.pick(decide, lambda call: 0.0 in call.staged.token_mask_delta)
    name = decide.choose(("token_mask_delta", "generation_logprobs_delta"))
    put_value(draft, index, name, carry_place(draft, index, decide), -0.0)


def carry_log_prob(draft: Draft, decide: Bytes) -> None:
    """Give a carry token a log-probability: mask and log-probabilities are shifted against each other."""
    index = draft.pick(decide, lambda call: 0.0 in call.staged.token_mask_delta)
    value = decide.choose((-0.5, 1e-45, 1.0, *NOT_FINITE))
    put_value(draft, index, "generation_logprobs_delta", carry_place(draft, index, decide), value)


def carry_place(draft: Draft, index: int, decide: Bytes) -> int:
    """Return the position of a carry token."""
    return decide.below(draft.calls[index].staged.token_mask_delta.count(0.0))


def log_prob_not_finite(draft: Draft, decide: Bytes) -> None:
    """Make a log-probability NaN or infinite."""
    index = draft.pick(decide)
    at = decide.below(draft.calls[index].staged.delta_len)
    put_value(draft, index, "generation_logprobs_delta", at, decide.choose(NOT_FINITE))


INVALID_ROWS: Final[tuple[Edit, ...]] = (
    column_missing,
    other_dtype,
    float64_log_probs,
    scalar_shape,
    vector_shape,
    digest_length,
    surplus_token,
    lost_token,
    scalar_value,
    scalar_contradiction,
    flag_off,
    not_utf8,
    slash_in_row,
    absent_parent_named,
    token_value,
    outside_vocabulary,
    mask_value,
    minus_zero,
    carry_log_prob,
    log_prob_not_finite,
)
"""Edits after which one row is invalid."""
