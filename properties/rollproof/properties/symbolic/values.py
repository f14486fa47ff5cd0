"""Domains and digest encodings (sections 1 to 3): what is a length, a version, a call's place, an owned key."""

from __future__ import annotations

from rollproof.properties.strategies.rollouts.staged_calls import bare_record
from rollproof.properties.symbolic.build import accepted
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import extra, sized, tokens, u64
from rollproof.spec.values import check_position, check_versions, is_length, is_rollout_id, owned_key


@rule("1", ("RECEIPT-2", "ROUTE-5", "DIGEST-3"), "all integers", (2**63,))
def a_length_has_63_bits(value: int) -> bool:
    """An integer is a length iff it is at least 0 and below 2**63.

    post: _
    """
    return is_length(value) == (0 <= value < 2**63)


@rule("1", ("RECEIPT-2", "ROUTE-5"), "both bools", (True,))
def a_bool_is_no_length(value: bool) -> bool:
    """A bool is not an integer, so it is neither a length nor a version (decision D16).

    post: _
    """
    record = bare_record("c", None, schema_version=value, digest_version=value, extras_digest_version=value)
    return not is_length(value) and not accepted(check_versions, record)


@rule("3", ("RECEIPT-2", "LINEAGE-3"), "all integers", (2, 2, 1))
def versions_are_exact(schema: int, digest: int, extras: int) -> bool:
    """A call record carries schema 2, digest 2 and extras digest 1, or it is refused.

    post: _
    """
    record = bare_record("c", None, schema_version=schema, digest_version=digest, extras_digest_version=extras)
    return accepted(check_versions, record) == ((schema, digest, extras) == (2, 2, 1))


@rule("3", ("RECEIPT-2", "LINEAGE-3"), "lengths and weight version from -2**63 to 2**63", (3, 2, 5, 1, False, False))
def a_call_knows_its_place(prev: int, delta: int, cum: int, version: int, is_root: bool, is_text: bool) -> bool:
    """A call is accepted iff cum = prev + delta, delta > 0, all are lengths, and root, text and prev = 0 agree.

    pre: -2**63 <= prev <= 2**63
    pre: -2**63 <= delta <= 2**63
    pre: -2**63 <= cum <= 2**63
    pre: -2**63 <= version <= 2**63
    post: _
    """
    record = bare_record(
        "c",
        None if is_root else "p",
        mode=MODE_TEXT if is_text else MODE_TOKEN_IN,
        prev_len=prev,
        delta_len=delta,
        cum_len=cum,
        weight_version=version,
    )
    lengths = prev >= 0 and delta > 0 and cum == prev + delta < 2**63 and 0 <= version < 2**63
    return accepted(check_position, record) == (lengths and is_root == is_text == (prev == 0))


@rule("3", ("GROUP-4", "ROUTE-16"), "ids of up to 2 characters", ("r", "c", "r", "d"))
def a_key_names_one_call(rollout: str, call: str, other_rollout: str, other_call: str) -> bool:
    """Two calls have the same staging key only if they are the same call of the same rollout (decision D14).

    pre: 0 < len(rollout) <= 2 and "/" not in rollout
    pre: 0 < len(other_rollout) <= 2 and "/" not in other_rollout
    pre: 0 < len(call) <= 2
    pre: 0 < len(other_call) <= 2
    post: _
    """
    same_key = owned_key(rollout, call) == owned_key(other_rollout, other_call)
    return same_key == ((rollout, call) == (other_rollout, other_call))


@rule("1", ("RECEIPT-2", "GROUP-4"), "strings of up to 2 characters", ("a/",))
def a_rollout_id_has_no_slash(value: str) -> bool:
    """A rollout id is not empty and has no "/": the first "/" of a staging key ends it.

    pre: len(value) <= 2
    pre: all(ord(character) < 0xD800 for character in value)
    post: _
    """
    return is_rollout_id(value) == (value != "" and "/" not in value)


@rule("2", ("DIGEST-2", "RETAINED-5"), "integers below 2**64", (2**64 - 1,))
def numbers_are_big_endian(value: int) -> bool:
    """A number enters a digest as 8 bytes, the most significant first.

    pre: 0 <= value < 2**64
    post: _
    """
    return list(u64(value)) == [value // 256**place % 256 for place in range(7, -1, -1)]


@rule("2", "DIGEST-3", "integers from -2**64 to 2**64", (-(2**63),))
def extras_hold_signed_64_bits(value: int) -> bool:
    """An integer in the extras has a digest iff it fits into 64 signed bits.

    pre: -2**64 <= value <= 2**64
    post: _
    """
    return accepted(extra, value) == (-(2**63) <= value < 2**63)


@rule("2", ("DIGEST-3", "DIGEST-4"), "62 to 66 containers", (64,))
def extras_end_at_depth_64(depth: int) -> bool:
    """A value nested in 64 lists has a digest, and one nested deeper has none (decision D3).

    pre: 62 <= depth <= 66
    post: _
    """
    value: object = None
    for _ in range(depth):
        value = [value]
    return accepted(extra, value) == (depth <= 64)


@rule("2", ("DIGEST-2", "RETAINED-1"), "pairs of up to 2 bytes each", (b"a", b"", b"", b"a"))
def sizes_keep_neighbours_apart(first: bytes, second: bytes, other_first: bytes, other_second: bytes) -> bool:
    """Two values in a row, each after its length, are the same bytes only if both values are the same.

    pre: len(first) <= 2
    pre: len(second) <= 2
    pre: len(other_first) <= 2
    pre: len(other_second) <= 2
    post: _
    """
    same = sized(first) + sized(second) == sized(other_first) + sized(other_second)
    return same == ((first, second) == (other_first, other_second))


@rule("2", "DIGEST-2", "two ids below 2**64", (7, 8))
def token_lists_tell_their_length(first: int, second: int) -> bool:
    """Token ids enter a digest after their number, each as a number of its own and in their order.

    pre: 0 <= first < 2**64
    pre: 0 <= second < 2**64
    post: _
    """
    return tokens([first, second]) == u64(2) + u64(first) + u64(second)
