"""Completion after a cut: once for each cut, over exactly the generation that was trained, and no retired key left."""

from __future__ import annotations

import pytest
from attrs import evolve
from cases import HYPOTHESIS, every
from hypothesis import given, settings

from rollproof.properties.strategies.streams.completion import COMPLETION_EDITS, completions
from rollproof.properties.strategies.streams.retained import RETAINED_EDITS
from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.retained import IDS
from rollproof.spec.completion import check_completion, trained_generation
from rollproof.spec.cut_records import Completion, Cut, TrainedRow, Violation
from rollproof.spec.judge.oracle import answer
from rollproof.spec.records import LinkSpan
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.shadowed import SHADOWED_BY

ROW = TrainedRow("g", (LinkSpan("c0", 2, 3), LinkSpan("c1", 1, 4)), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
KEPT = Cut("s", "g", (7, 8), ("g/s/0", "g/s/1"))
DONE = Completion("s", "c1", 2, 2)


@pytest.mark.parametrize(
    ("cut", "entries", "live", "successors", "expected"),
    [
        (KEPT, [DONE], (), (), []),
        (KEPT, [], (), (), [("completion_count", "s")]),
        (KEPT, [DONE, DONE], (), (), [("completion_count", "s")]),
        (KEPT, [DONE, evolve(DONE, source_call_id="x")], (), (), [("completion_count", "x")]),
        (KEPT, [evolve(DONE, tail_len=3)], (), (), [("token_count", "s")]),
        (KEPT, [evolve(DONE, prefix_len=1, tail_len=3)], (), (), [("token_count", "s")]),
        (KEPT, [evolve(DONE, new_call_id="c0", tail_len=1)], (), (), [("prefix_tokens", "s")]),
        (evolve(KEPT, prefix_token_ids=(7, 7)), [DONE], (), (), [("prefix_tokens", "s")]),
        (
            evolve(KEPT, prefix_token_ids=(7, 8, 9, 10)),
            [evolve(DONE, prefix_len=4, tail_len=0)],
            (),
            (),
            [("empty_tail", "s")],
        ),
        (KEPT, [DONE], ("g/s/1", "g/c1"), (), [("retired_key_live", "g/s/1")]),
        (KEPT, [DONE], ("g/s/1",), ("g/s/1",), []),
        # A rejected rollout or a dead branch needs only to complete once.
        (KEPT, [evolve(DONE, new_call_id="dead", tail_len=0)], (), (), []),
        (evolve(KEPT, rollout_id="rejected"), [evolve(DONE, tail_len=9)], (), (), []),
        (
            evolve(KEPT, prefix_token_ids=(1, 1, 1, 1, 1)),
            [evolve(DONE, tail_len=0), evolve(DONE, tail_len=1)],
            ("g/s/0",),
            (),
            [
                ("completion_count", "s"),
                ("empty_tail", "s"),
                ("token_count", "s"),
                ("prefix_tokens", "s"),
                ("token_count", "s"),
                ("prefix_tokens", "s"),
                ("retired_key_live", "g/s/0"),
            ],
        ),
    ],
)
def test_check_completion_reports_every_violation(cut, entries, live, successors, expected):
    found = check_completion([cut], entries, [ROW], live, successors)
    assert [(violation.code.code, violation.subject) for violation in found] == expected
    assert all(isinstance(violation, Violation) for violation in found)


def test_check_completion_does_not_trust_the_sum_of_the_log():
    # The row lost a token of the call: prefix and tail still add up to what the log says.
    lossy = TrainedRow("g", (LinkSpan("c0", 2, 3), LinkSpan("c1", 1, 3)), ROW.token_ids[:9])
    (violation,) = check_completion([KEPT], [DONE], [lossy], (), ())
    assert violation.code is Code.TOKEN_COUNT


@pytest.mark.parametrize("code", COMPLETION_EDITS)
def test_check_completion_gives_the_violation_of_a_break_first(code):
    @settings(HYPOTHESIS, max_examples=60)
    @given(completions(code))
    def check(request):
        assert answer(request).value[0][0] == code.code

    check()


def test_completion_edits_drive_every_code():
    driven = {*RETAINED_EDITS, *COMPLETION_EDITS}
    assert driven == {code for code in Code if code.stage in (Stage.RETAINED, Stage.COMPLETION)}
    assert not [code for code in driven if code in SHADOWED_BY]


def test_completion_lets_a_terminal_cut_have_no_tail():
    row = TrainedRow("g", (LinkSpan("n", 1, 2),), (5, 7, 8))
    whole, entry = evolve(KEPT, terminal=True, prefix_keys=()), Completion("s", "n", 2, 0)
    assert check_completion([whole], [entry], [row], (), ()) == ()
    (violation,) = check_completion([evolve(whole, terminal=False)], [entry], [row], (), ())
    assert violation.code is Code.EMPTY_TAIL


@every(carry=range(3), generation=range(3), next_carry=range(3), next_generation=range(3))
def test_a_generation_is_its_own_span(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """What a call generated is read off its own link span of the row: after all earlier tokens and its own carry."""
    spans = LinkSpan("a", carry, generation), LinkSpan("b", next_carry, next_generation)
    start = carry + generation + next_carry
    found = trained_generation([TrainedRow("r", spans, IDS)], "r", "b")
    return found is not None and list(found) == list(range(10 + start, 10 + start + next_generation))


@every(first=range(3), second=range(3))
def test_a_cut_completes_exactly_once(first: int, second: int) -> bool:
    """A cut that completes more or less than once is reported, and so is a completion of what was never cut."""
    names = pick("stu", first), pick("stu", second)
    cuts = [Cut("s", "r", IDS[:1]), Cut("t", "r", IDS[:1])]
    completions = [Completion(name, "n", 1, 1) for name in names]
    wrong = {violation.subject for violation in check_completion(cuts, completions, [], (), ())}
    return wrong == {name for name in "st" if names.count(name) != 1} | ({"u"} & set(names))


@every(is_live=(False, True), is_successor=(False, True))
def test_a_retired_key_is_gone(is_live: bool, is_successor: bool) -> bool:
    """A prefix key that is still live is reported, unless it is among the successor keys."""
    cut = Cut("s", "r", IDS[:1], ("k",))
    live, successors = (("k",) if is_live else ()), (("k",) if is_successor else ())
    found = check_completion([cut], [Completion("s", "n", 1, 1)], [], live, successors)
    return found == ((Violation(Code.RETIRED_KEY_LIVE, "k"),) if is_live and not is_successor else ())


@pytest.mark.parametrize("wanted, generated", [("a", (2,)), ("b", (4, 5)), ("c", (6,)), ("aa", None), ("", None)])
def test_trained_generation_finds_a_call_by_its_whole_id(wanted: str, generated: tuple[int, ...] | None) -> None:
    row = TrainedRow("r", (LinkSpan("c", 0, 1), LinkSpan("a", 1, 1), LinkSpan("b", 1, 2)), (6, 1, 2, 3, 4, 5))
    other = TrainedRow("q", (LinkSpan(wanted, 0, 1),), (9,))
    assert trained_generation([other, row], "r", wanted) == generated
