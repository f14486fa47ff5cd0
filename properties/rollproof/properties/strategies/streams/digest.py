"""Requests for digests: values of the contract's domains, and values that have no digest (section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.breaks.snapshot import INVALID_SNAPSHOTS, malformed_digest, outside_field
from rollproof.properties.strategies.rollouts.draft import Draft, Edit, apply
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.recipes import BigInt, Nest, Repeat
from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.strategies.scalars import EXTRAS, Bytes, draw_bytes, json_objects, token_id
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.spec.constants import INT63_LIMIT, MAX_EXTRAS_DEPTH, UINT64_LIMIT
from rollproof.spec.digest import prefix_digest
from rollproof.spec.judge.requests import Area, CallDigest, ChainDigest, ExtrasDigest, PrefixDigest
from rollproof.spec.judge.rules.records import GOLDEN, GOLDEN_CALL

MAX_IDS: Final = 24
WIDE_IDS: Final = (INT63_LIMIT, INT63_LIMIT + 1, UINT64_LIMIT - 1)
"""Ids that hash, though no int64 row can hold them (decision D1)."""
NO_IDS: Final[tuple[Any, ...]] = (UINT64_LIMIT, -1, True, False, 1.0, 0.0, "1", None, -(2**63), 10**40, (1,), b"1")
NO_HASHES: Final[tuple[Any, ...]] = (
    "", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 32, "0x" + "0" * 62, "0" * 63 + "\n", " " + "0" * 63,
    "٠" * 64, 0, False, b"0" * 32,
)  # fmt: skip

# ── token ids ───────────────────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def _token_digests(draw: DrawFn, wrong: bool) -> PrefixDigest | ChainDigest:
    decide = draw_bytes(draw, 8 + 2 * MAX_IDS)
    ids: list[Any] = [token_id(decide) for _ in range(decide.below(MAX_IDS + 1))]
    for _ in range(decide.below(3)):
        ids.insert(decide.below(len(ids) + 1), decide.choose(WIDE_IDS))
    parent: Any = decide.choose((None, prefix_digest([len(ids)]), "f" * 64))
    chain = decide.chance(128)
    if wrong and chain and decide.chance(128):
        parent = decide.choose(NO_HASHES)
    elif wrong:
        ids.insert(decide.below(len(ids) + 1), decide.choose(NO_IDS))
    return ChainDigest(parent, tuple(ids)) if chain else PrefixDigest(tuple(ids))


def token_digests() -> SearchStrategy[PrefixDigest | ChainDigest]:
    """Draw prefix and chain digests of ids below 2**64, or of no ids."""
    return _token_digests(wrong=False)


def refused_token_digests() -> SearchStrategy[PrefixDigest | ChainDigest]:
    """Draw prefix and chain digests of what is not an id, or on top of what is not a hash."""
    return _token_digests(wrong=True)


# ── extras ──────────────────────────────────────────────────────────────────────────────────────────────────────────

DEEPEST: Final[tuple[Any, ...]] = (
    Nest("dict", MAX_EXTRAS_DEPTH),
    {"": Nest("list", MAX_EXTRAS_DEPTH - 1)},
    {"a": 1, "b": Nest("list", MAX_EXTRAS_DEPTH - 1, "x"), "c": [[]]},
    Nest("dict", 20, Nest("list", 43, {})),
    {"l": Nest("list", MAX_EXTRAS_DEPTH - 2, []), "d": Nest("dict", MAX_EXTRAS_DEPTH - 2, {})},
    {"long": Repeat("é", 10_000), "": ""},
)
"""Extras of depth 64: the deepest that have a digest."""

TOO_DEEP: Final[tuple[Any, ...]] = (
    Nest("dict", MAX_EXTRAS_DEPTH + 1),
    {"": Nest("list", MAX_EXTRAS_DEPTH)},
    {"a": 1, "b": [Nest("list", MAX_EXTRAS_DEPTH - 1)]},
    Nest("dict", 32, Nest("list", 32, {})),
    {"": Nest("list", 200)},
    {"": Nest("dict", 1000)},
    Nest("dict", 5000),
    {"": Nest("list", 100_000)},
)
"""Extras that are deeper (decision D3)."""

NO_EXTRA: Final[tuple[Any, ...]] = (
    math.nan, math.inf, -math.inf, 2**63, -(2**63) - 1, BigInt(400), BigInt(5000, negative=True), "\ud800",
    "a\udfff", (), (1, 2), b"", b"ab", {1: "a"}, {None: 1}, {True: 1, "a": 2}, {"\ud800": 1}, {b"a": 1}, {"a": 1, 2: 3},
)  # fmt: skip
"""Values that extras cannot hold, at any depth."""

NO_MAPPING: Final[tuple[Any, ...]] = ([], [{}], "", "{}", 0, 1.5, True, False, (), b"")
"""Values that are not extras on their own."""


@st.composite
def _refused_extras(draw: DrawFn) -> ExtrasDigest:
    decide = draw_bytes(draw)
    kind = decide.below(8)
    if kind == 1:
        return ExtrasDigest(decide.choose(NO_MAPPING))
    if kind == 2:
        return ExtrasDigest(decide.choose(TOO_DEEP))
    value = decide.choose(NO_EXTRA)
    for _ in range(decide.below(4)):
        value = wrapped(value, decide)
    return ExtrasDigest(value if type(value) is dict else {"": value})


def wrapped(value: Any, decide: Bytes) -> Any:
    """Return the value among others in a list or an object."""
    match decide.below(4):
        case 0:
            return [value]
        case 1:
            return [1, value, None]
        case 2:
            return {"a": value}
        case _:
            return {"é": [], "a": value, "z": 0.5}


def extras_digests() -> SearchStrategy[ExtrasDigest]:
    """Draw digests of extras: any JSON object, or null."""
    return st.one_of(json_objects(), st.sampled_from(EXTRAS), st.sampled_from(DEEPEST)).map(ExtrasDigest)


def refused_extras_digests() -> SearchStrategy[ExtrasDigest]:
    """Draw digests of invalid extras: too deep, not finite, too wide, not valid strings, not JSON."""
    return _refused_extras()


# ── staged calls ────────────────────────────────────────────────────────────────────────────────────────────────────

NO_CALLS: Final[tuple[Edit, ...]] = (
    *(edit for edit in INVALID_SNAPSHOTS if edit is not malformed_digest),
    outside_field("model_call_id", "", "\ud800", None, 5),
    outside_field("rollout_id", "", "\udfff", "a/b", None),
    outside_field("parent_call_id", "", 5, b"c0"),
)
"""Edits after which a staged call has no digest."""


MINUS_ZEROS: Final = (
    CallDigest(evolve(GOLDEN_CALL.call, token_mask_delta=(-0.0, 1.0))),
    CallDigest(evolve(GOLDEN_CALL.call, token_mask_delta=(0.0, -0.0), generation_log_probs_delta=(0.0, 0.0))),
    CallDigest(evolve(GOLDEN_CALL.call, generation_log_probs_delta=(-0.0, -0.25))),
)
"""A staged call whose mask, or whose log-probability of a token that was not generated, is -0.0 (decision D2)."""


@st.composite
def _refused_calls(draw: DrawFn) -> CallDigest:
    draft = Draft.of(draw(histories(max_calls=3)))
    decide = draw_bytes(draw)
    before = list(draft.calls)
    apply(decide.choose(NO_CALLS), draft, decide)
    changed = [call for call, old in zip(draft.calls, before, strict=True) if call is not old]
    return CallDigest(evolve(changed[0].staged, digest=NO_DIGEST))


def call_digests() -> SearchStrategy[CallDigest]:
    """Draw digests of valid staged calls."""
    return histories(max_calls=3).map(lambda history: CallDigest(history.calls[-1].staged))


def refused_call_digests() -> SearchStrategy[CallDigest]:
    """Draw digests of staged calls that break a rule of sections 1 or 3: -0.0, NaN, a float64, a bool."""
    return _refused_calls()


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area digest."""
    if area is not Area.DIGEST:
        return
    yield listed("golden", area, [request for request, _ in GOLDEN])
    yield Stream("valid:tokens", area, token_digests())
    yield Stream("valid:extras", area, extras_digests())
    yield Stream("valid:calls", area, call_digests())
    yield Stream("refused:tokens", area, refused_token_digests())
    yield Stream("refused:extras", area, refused_extras_digests(), 0.5)
    yield listed("refused:deep extras", area, map(ExtrasDigest, TOO_DEEP[:-1]))
    yield listed("refused:minus zeros", area, MINUS_ZEROS)
    yield Stream("refused:calls", area, refused_call_digests())
