"""Mutants of digests, receipts and terminal selection (sections 2 and 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import CAPTURE_MODES, MAX_EXTRAS_DEPTH, MODE_TEXT
from rollproof.spec.digest import text, u64
from rollproof.spec.receipt import nullable, one_of
from rollproof.spec.records import CallRecord, Receipt, TerminalSelection

# ── digests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def unsorted_keys(extra: Any) -> Any:
    """Mappings are encoded in the order in which they arrive."""

    def wrong(value: Any, depth_left: int = MAX_EXTRAS_DEPTH) -> bytes:
        if type(value) is not dict or depth_left == 0 or not all(type(key) is str for key in value):
            return bytes(extra(value, depth_left))
        pairs = b"".join(text(key) + wrong(item, depth_left - 1) for key, item in value.items())
        return b"D" + u64(len(value)) + pairs

    return wrong


def booleans_as_integers(extra: Any) -> Any:
    """True is encoded as 1."""
    return lambda value, *depth: extra(int(value) if type(value) is bool else value, *depth)


def any_depth(extra: Any) -> Any:
    """Nothing ends the recursion but the interpreter."""
    return lambda value, *_depth: extra(value, 10**9)


def compared_as_equal(_: Any) -> Any:
    """-0.0 equals 0.0."""
    return lambda value: value == 0.0


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def field_rule(name: str, rule: Callable[[object], bool], *default: object) -> Any:
    """A field is read by another rule, with the same default unless another is given."""
    return lambda fields: {**fields, name: (rule, default[0] if default else fields[name][1])}


def known_fields_only(read_fields: Any) -> Any:
    """Fields that nobody knows are ignored."""

    def wrong(value: object, fields: dict[str, Any], what: str) -> Any:
        known = {name: value[name] for name in value if name in fields} if type(value) is dict else value
        return read_fields(known, fields, what)

    return wrong


def selection_made_up(check_receipt: Any) -> Any:
    """A terminal without a selection counts as selected."""

    def wrong(receipt: Receipt) -> None:
        missing = receipt.terminal_selection is None and receipt.terminal_model_call_id is not None
        check_receipt(evolve(receipt, terminal_selection="heuristic") if missing else receipt)

    return wrong


def numbers_and_more(value: object) -> bool:
    """A reward is whatever float() takes."""
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def unguarded_number(value: object) -> bool:
    """Integers that no float holds are not thought of."""
    return type(value) in (int, float) and math.isfinite(float(value))  # type: ignore[arg-type]


# ── terminal selection ──────────────────────────────────────────────────────────────────────────────────────────────


def unstamped_first(_: Any) -> Any:
    """A root without a stamp was admitted before all others."""
    return lambda record: -math.inf if record.admitted_at is None else record.admitted_at


def no_preference(_: Any) -> Any:
    """Abandoned retries count like the calls that were continued."""
    return lambda candidates, _records: candidates


def stop_where_it_forks(select_terminal: Any) -> Any:
    """Where two calls continue the same one, that one is the terminal."""

    def wrong(records: tuple[CallRecord, ...]) -> TerminalSelection:
        selection: TerminalSelection = select_terminal(records)
        if selection.reason != "ambiguous_terminal":
            return selection
        parents = [record.parent_call_id for record in records]
        fork = next(parent for parent in parents if parent is not None and parents.count(parent) > 1)
        return TerminalSelection(fork, "selected")

    return wrong


MUTANTS: Final = (
    Mutant(
        "little-endian-lengths",
        "DIGEST-1",
        "contract section 2",
        "Integers are hashed in the machine's own byte order.",
        patches(digest__u64=lambda u64: lambda value: u64(value)[::-1]),
    ),
    Mutant(
        "extras-in-insertion-order",
        "DIGEST-2",
        "contract section 2",
        "One mapping has as many digests as its keys have orders.",
        patches(digest__extra=unsorted_keys),
    ),
    Mutant(
        "booleans-digest-as-integers",
        "DIGEST-2",
        "contract section 2",
        "In extras true and 1 have one digest.",
        patches(digest__extra=booleans_as_integers),
    ),
    Mutant(
        "minus-zero-has-a-digest",
        "DIGEST-3",
        "contract decision D2",
        "-0.0 as a mask or on carry is compared as equal and hashed as it is: one row, several digests.",
        patches(values__is_plus_zero=compared_as_equal),
    ),
    Mutant(
        "extras-of-any-depth",
        "DIGEST-4",
        "contract decision D3",
        "Deep extras end in a RecursionError, past every guard.",
        patches(digest__extra=any_depth),
    ),
    Mutant(
        "two-failure-reasons-known",
        "RECEIPT-1",
        "NVIDIA-NeMo/RL 4129",
        "The two failure reasons that were seen first are taken for all there are.",
        patches(
            receipt__RECEIPT_FIELDS=field_rule(
                "failure_reason", nullable(one_of(("worker_capture_failed", "orphaned_row")))
            )
        ),
    ),
    Mutant(
        "mode-defaults-to-text",
        "RECEIPT-1",
        "contract section 3",
        "A manifest row without a mode is read as one of text.",
        patches(receipt__MANIFEST_FIELDS=field_rule("mode", one_of(CAPTURE_MODES), MODE_TEXT)),
    ),
    Mutant(
        "selection-not-required",
        "RECEIPT-2",
        "NVIDIA-NeMo/Gym 2823",
        "An unpoisoned receipt without a selection is accepted.",
        patches(receipt__check_receipt=selection_made_up),
    ),
    Mutant(
        "unknown-fields-ignored",
        "RECEIPT-2",
        "NVIDIA-NeMo/Gym 2872",
        "A terminal under the field's old name is ignored.",
        patches(receipt__read_fields=known_fields_only),
    ),
    Mutant(
        "rewards-of-any-type",
        "RECEIPT-2",
        "contract decision D16",
        'true and "3.0" are read as rewards.',
        patches(receipt__RECEIPT_FIELDS=field_rule("reward", lambda value: value is None or numbers_and_more(value))),
    ),
    Mutant(
        "huge-rewards-raise",
        "RECEIPT-3",
        "contract decision D4",
        "A reward of 400 digits dies in an OverflowError.",
        patches(receipt__RECEIPT_FIELDS=field_rule("reward", nullable(unguarded_number))),
    ),
    Mutant(
        "unstamped-roots-first",
        "TERMINAL-1",
        "contract section 3",
        "A root that nobody stamped counts as the earliest.",
        patches(terminal__admission_order=unstamped_first),
    ),
    Mutant(
        "retries-count-as-continuations",
        "TERMINAL-1",
        "contract section 3",
        "A call that was retried is ambiguous, although only one retry was continued.",
        patches(terminal__preferred=no_preference),
    ),
    Mutant(
        "terminal-is-a-fork",
        "TERMINAL-2",
        "contract section 3",
        "Where the walk cannot decide, the row ends at the fork, and what was generated after it is lost.",
        patches(oracle__select_terminal=stop_where_it_forks),
    ),
)
