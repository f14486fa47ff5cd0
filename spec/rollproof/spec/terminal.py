"""Choosing the terminal call from parent links when none was declared (section 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rollproof.spec.records import CallRecord, TerminalSelection


def select_terminal(records: Sequence[CallRecord]) -> TerminalSelection:
    """Return the one leaf that the parent links point to, or the reason why there is none.

    Among roots, and then among the children at each step down, calls that were continued are preferred. Of several
    preferred roots the earliest admitted wins; several preferred children are ambiguous.
    """
    if not records:
        return TerminalSelection(None, "no_records")
    call_ids = [record.model_call_id for record in records]
    if len(set(call_ids)) != len(call_ids):
        return TerminalSelection(None, "duplicate_call_id")
    if not {record.parent_call_id for record in records} <= {None, *call_ids}:
        return TerminalSelection(None, "orphaned_row")
    roots = [record for record in records if record.parent_call_id is None]
    if not roots:
        return TerminalSelection(None, "no_root")

    current = min(preferred(roots, records), key=admission_order)
    while children := children_of(current, records):
        candidates = preferred(children, records)
        if len(candidates) > 1:
            return TerminalSelection(None, "ambiguous_terminal")
        current = candidates[0]
    return TerminalSelection(current.model_call_id, "selected")


def children_of(parent: CallRecord, records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the calls that continue ``parent``, in manifest order."""
    return [record for record in records if record.parent_call_id == parent.model_call_id]


def preferred(candidates: list[CallRecord], records: Sequence[CallRecord]) -> list[CallRecord]:
    """Return the candidates that have children; all of them if none has."""
    continued = [record for record in candidates if children_of(record, records)]
    return continued or candidates


def admission_order(record: CallRecord) -> float:
    """Return when a root was admitted, unstamped ones last; ``min`` keeps manifest order on ties."""
    return math.inf if record.admitted_at is None else record.admitted_at
