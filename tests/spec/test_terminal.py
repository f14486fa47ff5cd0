"""Terminal selection on every combination of a few links."""

from __future__ import annotations

from itertools import permutations

from cases import every

from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.terminal import CALLS, Parent, manifest
from rollproof.spec.records import CallRecord, TerminalSelection
from rollproof.spec.terminal import select_terminal


def leaves(calls: list[CallRecord]) -> set[str]:
    """Return the calls that nothing continues."""
    return {call.model_call_id for call in calls} - {str(call.parent_call_id) for call in calls}


@every(first=range(4), second=range(4), third=range(4))
def test_a_selected_terminal_is_a_leaf(first: Parent, second: Parent, third: Parent) -> bool:
    """A selected call is continued by nothing, and where none is, links are cyclic or ambiguous."""
    calls = manifest(first, second, third)
    selection = select_terminal(calls)
    if selection.terminal_model_call_id is None:
        return selection.reason in ("no_root", "ambiguous_terminal")
    return selection.reason == "selected" and selection.terminal_model_call_id in leaves(calls)


@every(first=range(4), second=range(4), third=range(4))
def test_select_terminal_says_no_root_iff_there_is_none(first: Parent, second: Parent, third: Parent) -> bool:
    """The reason is no_root iff every call names a parent in the manifest."""
    selection = select_terminal(manifest(first, second, third))
    return (selection.reason == "no_root") == (min(first, second, third) > 0)


@every(order=range(24))
def test_a_chain_ends_at_its_last_call(order: int) -> bool:
    """Of a single chain the last call is selected, wherever it is in the manifest."""
    chain = [bare_record(call, parent) for parent, call in zip((None, *CALLS), CALLS[:4], strict=False)]
    shuffled = pick(permutations(chain), order)
    return select_terminal(shuffled) == TerminalSelection("d", "selected")


@every(first_extended=(False, True), second_extended=(False, True))
def test_equal_children_are_ambiguous(first_extended: bool, second_extended: bool) -> bool:
    """Two children of a call leave no terminal iff both are leaves or both were continued."""
    calls = [bare_record("a", None), bare_record("b", "a"), bare_record("c", "a")]
    calls += [bare_record("d", "b")] if first_extended else []
    calls += [bare_record("e", "c")] if second_extended else []
    return (select_terminal(calls).reason == "ambiguous_terminal") == (first_extended == second_extended)
