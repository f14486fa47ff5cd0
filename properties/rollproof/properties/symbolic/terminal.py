"""Choosing a terminal call from parent links alone (section 3), on small manifests."""

from __future__ import annotations

from itertools import permutations
from typing import TypeAlias

from rollproof.properties.symbolic.build import call_record, pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.records import CallRecord, TerminalSelection
from rollproof.spec.terminal import select_terminal

Parent: TypeAlias = int
"""0 for a root, else one more than the position of a call's parent in the manifest."""

CALLS = "abcde"
THREE = "all manifests of 3 calls"


def manifest(*parents: Parent) -> list[CallRecord]:
    """Calls a, b, c, … with those parents."""
    return [call_record(call, pick((None, *CALLS), parent)) for call, parent in zip(CALLS, parents, strict=False)]


def leaves(calls: list[CallRecord]) -> set[str]:
    """The calls that nothing continues."""
    return {call.model_call_id for call in calls} - {str(call.parent_call_id) for call in calls}


@rule("3", "TERMINAL-2", THREE, (0, 1, 2))
def a_selected_terminal_is_a_leaf(first: Parent, second: Parent, third: Parent) -> bool:
    """A selected call is continued by nothing, and where none is, links are cyclic or ambiguous.

    pre: 0 <= first <= 3
    pre: 0 <= second <= 3
    pre: 0 <= third <= 3
    post: _
    """
    calls = manifest(first, second, third)
    selection = select_terminal(calls)
    if selection.terminal_model_call_id is None:
        return selection.reason in ("no_root", "ambiguous_terminal")
    return selection.reason == "selected" and selection.terminal_model_call_id in leaves(calls)


@rule("3", "TERMINAL-1", THREE, (2, 3, 1))
def no_root_means_no_root(first: Parent, second: Parent, third: Parent) -> bool:
    """The reason is no_root iff every call names a parent in the manifest.

    pre: 0 <= first <= 3
    pre: 0 <= second <= 3
    pre: 0 <= third <= 3
    post: _
    """
    selection = select_terminal(manifest(first, second, third))
    return (selection.reason == "no_root") == (min(first, second, third) > 0)


@rule("3", "TERMINAL-1", "chains of 4 calls in all 24 orders", (5,))
def a_chain_ends_at_its_last_call(order: int) -> bool:
    """Of a single chain the last call is selected, wherever it stands in the manifest.

    pre: 0 <= order < 24
    post: _
    """
    chain = [call_record(call, parent) for parent, call in zip((None, *CALLS), CALLS[:4], strict=False)]
    shuffled = pick(permutations(chain), order)
    return select_terminal(shuffled) == TerminalSelection("d", "selected")


@rule("3", "TERMINAL-1", "two leaves or two extended children of one root", (True, True))
def equal_children_are_ambiguous(first_extended: bool, second_extended: bool) -> bool:
    """Two children of a call leave no terminal iff both are leaves or both were continued.

    post: _
    """
    calls = [call_record("a", None), call_record("b", "a"), call_record("c", "a")]
    calls += [call_record("d", "b")] if first_extended else []
    calls += [call_record("e", "c")] if second_extended else []
    return (select_terminal(calls).reason == "ambiguous_terminal") == (first_extended == second_extended)


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
    roots = [call_record(call, None, admitted_at=stamp) for call, stamp in zip(CALLS, stamps, strict=False)]
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
        call_record("a", None, admitted_at=other),
        call_record("b", None, admitted_at=extended),
        call_record("c", "b"),
    ]
    return select_terminal(records) == TerminalSelection("c", "selected")
