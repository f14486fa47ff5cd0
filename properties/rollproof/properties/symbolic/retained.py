"""Generation cuts and their completion (section 7): counts, prefixes, retired keys, weight versions."""

from __future__ import annotations

from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.completion import check_completion, faults, trained_generation
from rollproof.spec.records import Completion, Cut, LinkSpan, TrainedRow, Violation
from rollproof.spec.rejections import Code
from rollproof.spec.retained import restored_weight_version

IDS = tuple(range(10, 20))


@rule("7", "RETAINED-13", "prefixes of up to 2 tokens, 3 generated ones, counts from -2**63 to 2**63", (2, 2, 1))
def counts_come_from_the_trained_row(cut: int, prefix: int, tail: int) -> bool:
    """A completion has the right counts iff its prefix is the cut's and, with its tail, what the row generated.

    pre: 0 <= cut <= 2
    pre: -2**63 <= prefix <= 2**63
    pre: -2**63 <= tail <= 2**63
    post: _
    """
    restored = IDS[: pick(range(3), cut)]
    found = set(faults(Cut("s", "r", restored), Completion("s", "n", prefix, tail), IDS[:3]))
    return (Code.TOKEN_COUNT in found) == (prefix != len(restored) or prefix + tail != 3)


@rule("7", "RETAINED-13", "counts from -2**63 to 2**63", (1, 0))
def a_tail_has_a_token(prefix: int, tail: int) -> bool:
    """A completion that adds no token is reported, whatever its counts add up to.

    pre: -2**63 <= prefix <= 2**63
    pre: -2**63 <= tail <= 2**63
    post: _
    """
    found = set(faults(Cut("s", "r", IDS[:1]), Completion("s", "n", prefix, tail), IDS[:2]))
    return (Code.EMPTY_TAIL in found) == (tail < 1)


@rule("7", "RETAINED-14", "2 prefix and 3 generated ids below 2**63", (7, 8, 7, 8, 9))
def a_generation_begins_with_its_prefix(first: int, second: int, third: int, fourth: int, fifth: int) -> bool:
    """The trained generation begins with the cut's ids, or the prefix is reported: right counts are not enough.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63
    pre: 0 <= third < 2**63 and 0 <= fourth < 2**63 and 0 <= fifth < 2**63
    post: _
    """
    found = list(faults(Cut("s", "r", (first, second)), Completion("s", "n", 2, 1), (third, fourth, fifth)))
    return found == ([] if (first, second) == (third, fourth) else [Code.PREFIX_TOKENS])


@rule("7", ("RETAINED-13", "RETAINED-14"), "2 calls of up to 2 carry and 2 generated tokens", (1, 2, 0, 1))
def a_generation_is_its_own_span(carry: int, generation: int, next_carry: int, next_generation: int) -> bool:
    """What a call generated is read off its own link span of the row: after all earlier tokens and its own carry.

    pre: 0 <= carry <= 2
    pre: 0 <= generation <= 2
    pre: 0 <= next_carry <= 2
    pre: 0 <= next_generation <= 2
    post: _
    """
    spans = LinkSpan("a", carry, generation), LinkSpan("b", next_carry, next_generation)
    start = carry + generation + next_carry
    found = trained_generation([TrainedRow("r", spans, IDS)], "r", "b")
    return found is not None and list(found) == list(range(10 + start, 10 + start + next_generation))


@rule("7", ("RETAINED-12", "RETAINED-16"), "2 completions of either of 2 cuts, or of none", (0, 1))
def a_cut_completes_exactly_once(first: int, second: int) -> bool:
    """A cut that completes more or less than once is reported, and so is a completion of what was never cut.

    pre: 0 <= first <= 2
    pre: 0 <= second <= 2
    post: _
    """
    names = pick("stu", first), pick("stu", second)
    cuts = [Cut("s", "r", IDS[:1]), Cut("t", "r", IDS[:1])]
    completions = [Completion(name, "n", 1, 1) for name in names]
    wrong = {violation.subject for violation in check_completion(cuts, completions, [], (), ())}
    return wrong == {name for name in "st" if names.count(name) != 1} | ({"u"} & set(names))


@rule("7", "RETAINED-15", "a prefix key that is or is not live, and a successor or not", (True, False))
def a_retired_key_is_gone(is_live: bool, is_successor: bool) -> bool:
    """A prefix key that is still live is reported, unless it is among the successor keys.

    post: _
    """
    cut = Cut("s", "r", IDS[:1], ("k",))
    live, successors = (("k",) if is_live else ()), (("k",) if is_successor else ())
    found = check_completion([cut], [Completion("s", "n", 1, 1)], [], live, successors)
    return found == ((Violation(Code.RETIRED_KEY_LIVE, "k"),) if is_live and not is_successor else ())


@rule("7", "RETAINED-16", "3 weight versions below 2**63", (4, 3, 5))
def a_restored_call_is_as_old_as_its_oldest_part(first: int, second: int, third: int) -> bool:
    """The weight version of a restored call is one of its prefix's, and none of them is older.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63 and 0 <= third < 2**63
    post: _
    """
    versions = first, second, third
    restored = restored_weight_version(versions)
    return restored in versions and all(restored <= version for version in versions)
