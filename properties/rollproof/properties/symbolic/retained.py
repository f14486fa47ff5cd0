"""Generation cuts and their completion (section 7): counts, prefixes, retired keys, weight versions."""

from __future__ import annotations

from rollproof.properties.symbolic.build import pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.completion import faults
from rollproof.spec.cut_records import Completion, Cut
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


@rule("7", "RETAINED-16", "3 weight versions below 2**63", (4, 3, 5))
def a_restored_call_is_as_old_as_its_oldest_part(first: int, second: int, third: int) -> bool:
    """The weight version of a restored call is one of its prefix's, and none of them is older.

    pre: 0 <= first < 2**63 and 0 <= second < 2**63 and 0 <= third < 2**63
    post: _
    """
    versions = first, second, third
    restored = restored_weight_version(versions)
    return restored in versions and all(restored <= version for version in versions)
