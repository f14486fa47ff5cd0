"""Choosing the terminal call from parent links when none was declared (section 3), in one pass over the links."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from rollproof.spec.records import CallRecord, TerminalSelection


def select_terminal(records: Sequence[CallRecord]) -> TerminalSelection:
    """Return the terminal call of a manifest, or the reason that there is none.

    Roots, and the children at each step down, that were continued are preferred; the earliest admitted root wins, and
    two preferred children are ambiguous. Cost is linear in the number of records.
    """
    if not records:
        return TerminalSelection(None, "no_records")
    ids = {record.model_call_id for record in records}
    if len(ids) != len(records):
        return TerminalSelection(None, "duplicate_call_id")
    children: defaultdict[str | None, list[CallRecord]] = defaultdict(list)
    for record in records:
        children[record.parent_call_id].append(record)
    if not children.keys() <= {None, *ids}:
        return TerminalSelection(None, "orphaned_row")
    roots = children.get(None)
    if roots is None:
        return TerminalSelection(None, "no_root")

    def preferred(candidates: list[CallRecord]) -> list[CallRecord]:
        return [record for record in candidates if record.model_call_id in children] or candidates

    current = min(preferred(roots), key=lambda root: math.inf if root.admitted_at is None else root.admitted_at)
    while current.model_call_id in children:
        candidates = preferred(children[current.model_call_id])
        if len(candidates) > 1:
            return TerminalSelection(None, "ambiguous_terminal")
        current = candidates[0]
    return TerminalSelection(current.model_call_id, "selected")
