"""Hostile JSON for receipts and hostile columns for staged rows, unlike any real rollout.

The recipes for what is too deep or too large to be drawn are in ``recipes``; they are offered here as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.draft import Draft, fresh
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import History
from rollproof.properties.strategies.rollouts.recipes import (
    RECIPES,
    BigInt,
    JsonText,
    Nest,
    Repeat,
    Rows,
    realize,
    realize_request,
)
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import CHUNKS, REWARDS, UNUSABLE_REWARDS, Bytes, draw_bytes, json_values
from rollproof.spec.constants import BASE_COLUMNS
from rollproof.spec.judge.requests import FinalizeRollout, ParseReceipt
from rollproof.spec.receipt import MANIFEST_FIELDS, RECEIPT_FIELDS
from rollproof.spec.tensor import ITEM_SIZES, Tensor

__all__ = [
    "BigInt",
    "JsonText",
    "Nest",
    "Repeat",
    "Rows",
    "hostile_receipts",
    "hostile_rollouts",
    "hostile_rows",
    "odd_values",
    "realize",
    "realize_request",
]

ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, 2, -1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, BigInt(38), BigInt(309), BigInt(5000),
    BigInt(5000, negative=True), 0.0, -0.0, 0.5, 1.0, 2.0, 1e308, 5e-324, math.nan, math.inf, -math.inf, "", "r", "c0",
    "c1", "g7_g0", "g7_g0/c1", "a/b/c", "/", "0" * 64, "f" * 64, "A" * 64, "g" * 64, "text", "token_in", "declared",
    "heuristic", "no", "true", "null", "3.0", "NaN", "\x00", "\ud800", "a\udfffb", "\ud83d\ude00", "é\u0301", " ",
    Repeat("a", 100_000), Repeat("\ud800", 3), Repeat("/", 1000), [], [None], [[]], [{}], ["c0"], [0.5, "x", None], {},
    {"": None}, {"rollout_id": "r"}, {"model_call_id": "c0"}, {"\ud800": 1}, {"manifest": [{}]}, Nest("list", 10),
    Nest("dict", 10), Nest("list", 100), Nest("dict", 1000), Nest("list", 1000, {"a": Nest("dict", 1000)}),
    JsonText('{"a": 1, "a": 2}'), JsonText("[1e400, -1e400, NaN]"), JsonText('"\\ud800"'), JsonText("1" + "0" * 400),
)  # fmt: skip
"""One of every kind of value that code may not expect."""

ODD_REWARDS: Final = tuple(value for value in ODD if type(value) not in RECIPES)

HUGE: Final[tuple[Any, ...]] = (
    Nest("list", 100_000),
    Nest("dict", 20_000),
    Nest("list", 50_000, Nest("dict", 5000)),
    Repeat("x", 1_000_000),
    BigInt(50_000),
)
"""The same, and slow to build; drawn rarely."""

ODD_FIELDS: Final[tuple[Any, ...]] = (
    "token_ids", "terminal", "Rollout_id", "rollout_id ", "", "\ud800", "__proto__", "__class__", Repeat("k", 10_000),
    "schema-version", "rollout\x00id", "$float",
)  # fmt: skip

RECEIPT_NAMES: Final = tuple(RECEIPT_FIELDS)
ROW_NAMES: Final = tuple(MANIFEST_FIELDS)


def odd(decide: Bytes) -> Any:
    """Return an odd value, alone or inside a list or an object."""
    kind = decide.next()
    if kind == 255:
        return decide.choose(HUGE)
    value = fresh(decide.choose(ODD))
    if kind < 192:
        return value
    return [value, fresh(decide.choose(ODD))] if kind < 224 else {decide.choose(("", "a", "manifest")): value}


def odd_values() -> SearchStrategy[Any]:
    """Draw JSON values of every kind: odd ones from a table, and drawn ones."""
    return CHUNKS.map(lambda data: odd(Bytes(data))) | json_values()


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────

Mutation = Callable[[dict[str, Any], Bytes], Any]
"""Changes a raw receipt in place, or returns another value in its place."""


def rows_of(receipt: dict[str, Any]) -> list[Any]:
    """Return the manifest where it is still a non-empty list; else a list to be thrown away."""
    rows = receipt.get("manifest")
    return rows if type(rows) is list and rows else [{}]


def mutate_field(receipt: dict[str, Any], decide: Bytes) -> None:
    """Replace a field of the receipt by something odd."""
    receipt[decide.choose(RECEIPT_NAMES)] = odd(decide)


def mutate_row_field(receipt: dict[str, Any], decide: Bytes) -> None:
    """Replace a field of a manifest row by something odd."""
    row = decide.choose(rows_of(receipt))
    if type(row) is dict:
        row[decide.choose(ROW_NAMES)] = odd(decide)


def drop_field(receipt: dict[str, Any], decide: Bytes) -> None:
    """Drop a field."""
    row = decide.choose(rows_of(receipt))
    record = row if type(row) is dict and decide.chance(128) else receipt
    if record:
        del record[decide.choose(list(record))]


def add_field(receipt: dict[str, Any], decide: Bytes) -> None:
    """Add a field too many."""
    row = decide.choose(rows_of(receipt))
    record = row if type(row) is dict and decide.chance(128) else receipt
    record[decide.choose(ODD_FIELDS)] = odd(decide)


def mutate_row(receipt: dict[str, Any], decide: Bytes) -> None:
    """Replace a manifest row by something odd, repeat it, or lose it."""
    rows = rows_of(receipt)
    at = decide.below(min(len(rows), 256))
    match decide.below(3):
        case 0:
            rows[at] = odd(decide)
        case 1:
            rows.append(fresh(rows[at]))
        case _:
            del rows[at]


def odd_manifest(receipt: dict[str, Any], decide: Bytes) -> None:
    """Replace the manifest by something that is not a list, or by a list of anything."""
    values: tuple[Any, ...] = (5, None, True, "c0", {}, [5], [None], ["c0"], [[]], [{}], Nest("list", 10), {"": []})
    receipt["manifest"] = fresh(decide.choose(values))


def scrambled(receipt: dict[str, Any], decide: Bytes) -> Any:
    """Return some fields of a receipt, each with something odd in it."""
    return {decide.choose(RECEIPT_NAMES): odd(decide) for _ in range(decide.below(6))}


def something_else(receipt: dict[str, Any], decide: Bytes) -> Any:
    """Return something that is not a receipt at all."""
    return odd(decide)


def swapped_types(receipt: dict[str, Any], decide: Bytes) -> None:
    """Replace a value by the same value in another type: 2 and 2.0, 3.0 and "3.0", true and 1, a list and a tuple."""
    row = decide.choose(rows_of(receipt))
    record = row if type(row) is dict and decide.chance(128) else receipt
    if record:
        name = decide.choose(list(record))
        record[name] = retyped(record[name], decide)


def retyped(value: Any, decide: Bytes) -> Any:
    """Return the value, written in another type."""
    if type(value) is bool:
        return decide.choose((int(value), str(value).lower(), float(value)))
    if type(value) is int:
        return decide.choose((str(value), float(value) if abs(value) < 2**53 else str(value), bool(value), [value]))
    if type(value) is float:
        return decide.choose((repr(value), [value], math.nan))
    if type(value) is str:
        return decide.choose(([value], {"": value}, value.encode("utf-8", "replace"), value.upper(), value + " "))
    return decide.choose((0, "", False, tuple(value) if type(value) is list else None))


def many_rows(receipt: dict[str, Any], decide: Bytes) -> None:
    """List thousands of manifest rows, distinct or not."""
    row = decide.choose(rows_of(receipt))
    template = row if type(row) is dict else {}
    receipt["manifest"] = Rows(fresh(template), decide.choose((100, 1000, 2000)), distinct=decide.chance(128))


MUTATIONS: Final[tuple[Mutation, ...]] = (
    mutate_field,
    mutate_row_field,
    swapped_types,
    drop_field,
    add_field,
    mutate_row,
    odd_manifest,
    mutate_field,
    mutate_row_field,
    scrambled,
    something_else,
)


def hostile_receipt(receipt: Any, decide: Bytes) -> Any:
    """Return the receipt after one to four mutations."""
    kind = decide.next()
    if kind >= 253:
        many_rows(receipt, decide)
        return receipt
    for _ in range(1 if kind < 192 else 2 + decide.below(3)):
        if type(receipt) is not dict:
            break
        result = decide.choose(MUTATIONS)(receipt, decide)
        receipt = receipt if result is None else result
    return receipt


# Most receipts are mutations of one fixed receipt: drawing a history costs more than reading a hundred.
_BASES: Final = st.one_of(st.just(WORKED_EXAMPLE), st.just(WORKED_EXAMPLE), histories(max_calls=3))


@st.composite
def _hostile_receipts(draw: DrawFn) -> ParseReceipt:
    history: History = draw(_BASES)
    decide = draw_bytes(draw)
    if decide.chance(3):
        return ParseReceipt(crowded_receipt(decide))
    return ParseReceipt(hostile_receipt(history.raw_receipt(), decide))


def crowded_receipt(decide: Bytes) -> dict[str, Any]:
    """Return a valid receipt of a thousand calls and more, all of them roots."""
    receipt = WORKED_EXAMPLE.raw_receipt()
    row = receipt["manifest"][0]
    count = decide.choose((1000, 2000, 4000))
    terminal = f"{row['model_call_id']}{count - 1}"
    return receipt | {"manifest": Rows(row, count), "terminal_model_call_id": terminal}


def hostile_receipts() -> SearchStrategy[ParseReceipt]:
    """Draw any JSON value where a receipt should be: near-valid ones, scrambled ones, anything, deep and huge ones."""
    return _hostile_receipts()


# ── receipts as text ────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def _texts(draw: DrawFn) -> ParseReceipt:
    decide = draw_bytes(draw)
    history: History = draw(_BASES)
    text = json.dumps(history.raw_receipt(), ensure_ascii=decide.chance(128))
    text = text.replace("\\ud8", "\\uD8")
    name = decide.choose(RECEIPT_NAMES)
    literal = decide.choose(
        ("null", "NaN", "-Infinity", "1e400", "-0", "0.1e1", '"\\ud800"', "{}", "[]", '"r"', "true", "2", "2.0")
    )
    match decide.below(4):
        case 0:
            # A repeated key: most parsers let the last one win, so the receipt is what follows.
            text = f'{{"{name}": {literal}, {text[1:]}'
        case 1:
            text = f'{text[:-1]}, "{name}": {literal}}}'
        case 2:
            depth = decide.choose((10, 100, 400))
            text = f'{text[:-1]}, "{name}": {"[" * depth}{"]" * depth}}}'
        case _:
            text = f'{text[:-1]}, "x": {literal}}}'
    return ParseReceipt(JsonText(text))


def receipt_texts() -> SearchStrategy[ParseReceipt]:
    """Draw receipts as JSON strings: repeated keys, literals beyond JSON, escaped lone surrogates, nesting."""
    return _texts()


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def _hostile_rollouts(draw: DrawFn) -> FinalizeRollout:
    history: History = draw(_BASES)
    decide = draw_bytes(draw)
    draft = Draft.of(history)
    draft.receipt = hostile_receipt(draft.receipt, decide)
    match decide.below(4):
        case 1:
            draft.reward = decide.choose(UNUSABLE_REWARDS)
        case 2:
            draft.reward = fresh(decide.choose(ODD_REWARDS))
        case 3:
            draft.reward = decide.choose(REWARDS)
    if decide.chance(128):
        # Most of these receipts are not even read. Half of them come without rows, which saves staging them.
        draft.missing = set(range(len(draft.calls)))
    if decide.chance(48):
        draft.rollout_id = decide.choose(("other", "a/b", "", "\ud800", "/"))
    return draft.finalize()


def hostile_rollouts() -> SearchStrategy[FinalizeRollout]:
    """Draw requests to finalize what is hardly a receipt over sound staged rows, with rewards of any kind."""
    return _hostile_rollouts()


SHAPES: Final = ((1,), (1, 1), (1, 2), (1, 0), (1, 3, 1), (1, 1, 1), (1, 32), (1, 5))
PATTERNS: Final = (b"\x00", b"\x01", b"\xff", b"\x00\x00\x80\x3f", b"\x00\x00\x00\x80", b"\x7f")


@st.composite
def _hostile_rows(draw: DrawFn) -> FinalizeRollout:
    history: History = draw(_BASES)
    draft = Draft.of(history)
    decide = draw_bytes(draw)
    for _ in range(1 + decide.below(4)):
        index, name = draft.pick(decide), decide.choose(BASE_COLUMNS)
        if decide.chance(32):
            draft.put_column(index, name, None)
            continue
        dtype, shape = decide.choose(tuple(ITEM_SIZES)), decide.choose(SHAPES)
        size = math.prod(shape) * ITEM_SIZES[dtype]
        data = decide.choose(PATTERNS if dtype != "bool" else PATTERNS[:2])
        draft.put_column(index, name, Tensor(dtype, shape, (data * (size // len(data) + 1))[:size]))
    return draft.finalize()


def hostile_rows() -> SearchStrategy[FinalizeRollout]:
    """Draw requests to finalize over staged rows with columns of any dtype, shape and content, or none."""
    return _hostile_rows()
