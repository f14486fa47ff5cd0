"""Mutants of digests, receipts and terminal selection (sections 2 and 3)."""

from __future__ import annotations

import math
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import MAX_EXTRAS_DEPTH, MODE_TEXT
from rollproof.spec.digest import text, u64
from rollproof.spec.receipt import Domain, nullable, one_of
from rollproof.spec.records import CallRecord, Receipt, TerminalSelection
from rollproof.spec.values import is_identifier

# ── digests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def unsorted_keys(extra: Any) -> Any:
    """Encode mappings in the order in which they arrive."""

    def wrong(value: Any, depth_left: int = MAX_EXTRAS_DEPTH) -> bytes:
        if type(value) is not dict or depth_left == 0 or not all(type(key) is str for key in value):
            return bytes(extra(value, depth_left))
        pairs = b"".join(text(key) + wrong(item, depth_left - 1) for key, item in value.items())
        return b"D" + u64(len(value)) + pairs

    return wrong


def booleans_as_integers(extra: Any) -> Any:
    """Encode True as 1."""
    return lambda value, *depth: extra(int(value) if type(value) is bool else value, *depth)


def any_depth(extra: Any) -> Any:
    """Recurse to any depth, until the interpreter refuses."""
    return lambda value, *_depth: extra(value, 10**9)


def compared_as_equal(_: Any) -> Any:
    """Take -0.0 for 0.0."""
    return lambda value: value == 0.0


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def field_rule(name: str, domain: Domain) -> Any:
    """Read a field by another rule."""
    return lambda rules: {**rules, name: domain}


def known_fields_only(read_fields: Any) -> Any:
    """Ignore unknown fields."""

    def wrong(value: object, rules: dict[str, Any], *rest: Any) -> Any:
        known = {name: value[name] for name in value if name in rules} if type(value) is dict else value
        return read_fields(known, rules, *rest)

    return wrong


def selection_made_up(check_agreement: Any) -> Any:
    """Count a terminal without a selection as selected."""

    def wrong(receipt: Receipt) -> None:
        missing = receipt.terminal_selection is None and receipt.terminal_model_call_id is not None
        check_agreement(evolve(receipt, terminal_selection="heuristic") if missing else receipt)

    return wrong


def identifier_without_slash(value: object) -> bool:
    """Any identifier without a slash, the reserved one too."""
    return is_identifier(value) and "/" not in str(value)


def numbers_and_more(value: object) -> bool:
    """Accept as a reward whatever float() takes."""
    try:
        return math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def unguarded_number(value: object) -> bool:
    """Forget that no float may hold an integer."""
    return type(value) in (int, float) and math.isfinite(float(value))  # type: ignore[arg-type]


# ── terminal selection ──────────────────────────────────────────────────────────────────────────────────────────────


def unstamped_first(_: Any) -> Any:
    """Treat a root without a stamp as admitted before all others."""
    return lambda record: -math.inf if record.admitted_at is None else record.admitted_at


def no_preference(_: Any) -> Any:
    """Count abandoned retries like the calls that were continued."""
    return lambda candidates, _records: candidates


def stop_where_it_forks(select_terminal: Any) -> Any:
    """Where two calls continue the same one, select that one as the terminal."""

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
        patches(receipt__MANIFEST_DEFAULTS=lambda defaults: {**defaults, "mode": MODE_TEXT}),
    ),
    Mutant(
        "selection-not-required",
        "RECEIPT-2",
        "NVIDIA-NeMo/Gym 2823",
        "An unpoisoned receipt without a selection is accepted.",
        patches(receipt__check_agreement=selection_made_up),
    ),
    Mutant(
        "unknown-fields-ignored",
        "RECEIPT-2",
        "NVIDIA-NeMo/Gym 2872",
        "A terminal under the field's old name is ignored.",
        patches(receipt__read_fields=known_fields_only),
    ),
    Mutant(
        "reserved-id-is-a-rollout",
        "RECEIPT-2",
        "contract decision D24",
        "A receipt may take the id under which generation cuts are staged.",
        patches(receipt__RECEIPT_FIELDS=field_rule("rollout_id", Domain(identifier_without_slash, "an identifier"))),
    ),
    Mutant(
        "rewards-of-any-type",
        "RECEIPT-2",
        "contract decision D16",
        'true and "3.0" are read as rewards.',
        patches(receipt__RECEIPT_FIELDS=field_rule("reward", nullable(Domain(numbers_and_more, "a number")))),
    ),
    Mutant(
        "huge-rewards-raise",
        "RECEIPT-3",
        "contract decision D4",
        "A reward of 400 digits dies in an OverflowError.",
        patches(receipt__RECEIPT_FIELDS=field_rule("reward", nullable(Domain(unguarded_number, "a number")))),
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
        patches(judge__oracle__select_terminal=stop_where_it_forks),
    ),
)
