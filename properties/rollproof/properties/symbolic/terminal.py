"""Choosing a terminal call from parent links alone (section 3), on small manifests."""

from __future__ import annotations

from typing import TypeAlias

from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.records import CallRecord, TerminalSelection
from rollproof.spec.terminal import select_terminal

Parent: TypeAlias = int
"""0 for a root, else one more than the position of a call's parent in the manifest."""

CALLS = "abcde"


def manifest(*parents: Parent) -> list[CallRecord]:
    """Return calls a, b, c, … with those parents."""
    return [bare_record(call, pick((None, *CALLS), parent)) for call, parent in zip(CALLS, parents, strict=False)]


@rule("3", "TERMINAL-1", "admission times below 2**53, 3 childless roots, any of them unstamped", (2, 1, 1, 7))
def the_earliest_root_wins(first: int, second: int, third: int, unstamped: int) -> bool:
    """Of equal roots the earliest admitted is selected, unstamped ones last, ties by manifest position.

    pre: 0 <= first < 2**53
    pre: 0 <= second < 2**53
    pre: 0 <= third < 2**53
    pre: 0 <= unstamped < 8
    post: _
    """
    times = [first, second, third]
    stamps = [None if unstamped >> position & 1 else time for position, time in enumerate(times)]
    roots = [bare_record(call, None, admitted_at=stamp) for call, stamp in zip(CALLS, stamps, strict=False)]
    best = CALLS.index(str(select_terminal(roots).terminal_model_call_id))
    order = [(stamp is None, 0 if stamp is None else stamp, position) for position, stamp in enumerate(stamps)]
    return order[best] == min(order)


@rule("3", "TERMINAL-1", "admission times below 2**53", (9, 1))
def an_extended_root_is_preferred(extended: int, other: int) -> bool:
    """A root that was continued is preferred to one that was not, however late it was admitted.

    pre: 0 <= extended < 2**53
    pre: 0 <= other < 2**53
    post: _
    """
    records = [
        bare_record("a", None, admitted_at=other),
        bare_record("b", None, admitted_at=extended),
        bare_record("c", "b"),
    ]
    return select_terminal(records) == TerminalSelection("c", "selected")
