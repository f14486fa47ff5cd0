"""Single values of a rollout, read off drawn bytes: token ids, log-probabilities, ids, extras, rewards.

A draw costs Hypothesis far more than what one byte of it decides. So a strategy of this package draws a few bytes at
once and reads its small decisions off them; the byte 0 always means the plainest choice, which is what examples
shrink to.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.tensor import to_float32

T = TypeVar("T")

MAX_FLOAT32: Final = 3.4028234663852886e38
MIN_NORMAL: Final = 1.1754943508222875e-38
MIN_DENORMAL: Final = 1.401298464324817e-45


class Bytes:
    """Drawn bytes, spent one small decision after the other. Past the end every byte is 0."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def next(self) -> int:
        """The next byte."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, count: int) -> int:
        """A number in ``[0, count)``, for ``count`` up to 256."""
        return self.next() * count >> 8

    def chance(self, of_256: int) -> bool:
        """True for ``of_256`` of 256 bytes, and false for 0."""
        return self.next() >= 256 - of_256

    def choose(self, options: Sequence[T]) -> T:
        """One of up to 256 options, the first for 0."""
        return options[self.below(len(options))]


@cache
def raw(size: int) -> SearchStrategy[bytes]:
    """Exactly ``size`` bytes."""
    return st.binary(min_size=size, max_size=size)


def draw_bytes(draw: DrawFn, size: int) -> Bytes:
    """``size`` bytes to decide with, in one draw."""
    return Bytes(draw(raw(size)))


def check_range(name: str, low: int, high: int, floor: int) -> None:
    """Check the arguments ``min_<name>`` and ``max_<name>`` of a strategy."""
    for argument, value in ((f"min_{name}", low), (f"max_{name}", high)):
        if type(value) is not int:
            raise InvalidArgument(f"expected an int for {argument}, got {value!r}")
    if not floor <= low <= high:
        raise InvalidArgument(f"expected {floor} <= min_{name} <= max_{name}, got {low} and {high}")


# ── token columns ───────────────────────────────────────────────────────────────────────────────────────────────────

EDGE_IDS: Final = (
    255, 256, 32767, 32768, 65535, 65536, 151643, 151645, 199999, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**62, INT63_LIMIT - 2, INT63_LIMIT - 1,
)  # fmt: skip
"""Where narrower integers and float64 stop being exact, and a few end-of-turn tokens."""

EDGE_LOG_PROBS: Final = (
    0.0, -0.0, 0.0625, 1.0, -1.0, -100.0, MAX_FLOAT32, -MAX_FLOAT32, MIN_NORMAL, -MIN_NORMAL, MIN_DENORMAL,
    -MIN_DENORMAL, to_float32(-1e-7), to_float32(-9999.0), to_float32(-87.33654), -16777217.0 + 1.0,
)  # fmt: skip
"""Everything finite is allowed on generated tokens: positive, both zeros, denormals, the largest."""


def token_id(decide: Bytes) -> int:
    """A token id in ``[0, 2**63)``, mostly small; two bytes."""
    first, second = decide.next(), decide.next()
    if first < 176:
        return first
    if first < 216:
        return EDGE_IDS[second * len(EDGE_IDS) >> 8]
    return (first << 8 | second) * 0x9E3779B97F4A7C15 % INT63_LIMIT


def log_prob(decide: Bytes) -> float:
    """A log-probability: any kind of finite float32, mostly in ``[-5, 0)``; two bytes."""
    first, second = decide.next(), decide.next()
    if first < 96:
        return -(first + 16) / 32
    if first < 176:
        return to_float32(-(first - 95) / 10)
    if first < 216:
        return EDGE_LOG_PROBS[second * len(EDGE_LOG_PROBS) >> 8]
    bits = (first << 8 | second) * 2654435761 % 2**32
    value = float(struct.unpack("<f", struct.pack("<I", bits))[0])
    return value if math.isfinite(value) else -0.5


EDGE_VERSIONS: Final = (2**31 - 1, 2**31, 2**53 + 1, INT63_LIMIT - 1)


def weight_version(decide: Bytes) -> int:
    """A weight version, mostly in ``[0, 8)``; two bytes."""
    first, second = decide.next(), decide.next()
    return first >> 5 if first < 248 else EDGE_VERSIONS[second >> 6]


# ── identifiers ─────────────────────────────────────────────────────────────────────────────────────────────────────

CALL_IDS: Final[tuple[Callable[[int], str], ...]] = (
    lambda index: f"c{index}",
    lambda index: "/".join("c" * (index + 1)),
    lambda index: f"7d3f1b1e-9c55-4a8e-b1f0-{index:012x}",
    lambda index: f"é\u0301名\U0001f600{index}",
    chr,
    lambda index: " " * (index + 1),
    lambda index: f"{'x' * 300}{index}",
    lambda index: f"../{index}/",
    lambda index: f"chatcmpl:{index}\n",
)
"""Ways to name the calls of one rollout. Slashes, prefixes of each other, NUL and blanks are all valid."""

ROLLOUT_IDS: Final = (
    "r", "g7_g0", "rollout-1", "ré\u0301名", "\U0001f600", " ", "\x00", "r" * 300, "a:b", "..", "r\n", "2f1c0e5e",
)  # fmt: skip
"""Rollout ids: anything but "/"."""

TEXT_ALPHABET: Final = st.characters(exclude_categories=["Cs"])
SHORT_TEXT: Final = st.text(TEXT_ALPHABET, min_size=1, max_size=4)


@st.composite
def _rollout_ids(draw: DrawFn) -> str:
    first = draw_bytes(draw, 1).next()
    if first < 160:
        return ROLLOUT_IDS[first * len(ROLLOUT_IDS) // 160] if first >= 64 else ROLLOUT_IDS[0]
    return draw(SHORT_TEXT).replace("/", "|") if first >= 240 else f"r{first - 160}"


def rollout_ids() -> SearchStrategy[str]:
    """Valid rollout ids, "r" first."""
    return _rollout_ids()


# ── extras ──────────────────────────────────────────────────────────────────────────────────────────────────────────

EXTRAS: Final[tuple[dict[str, Any] | None, ...]] = (
    None,
    {},
    {"finish_reason": "stop"},
    {"tool": {"name": "search", "arguments": {"q": "é", "n": 3}}, "ok": True},
    {"z": [1, -1, 0.5, -0.0, None, False], "a": [[], {}, ""]},
    {"\uffff": 1, "\U00010000": 2, "a": 3, "": 4},
    {"n": [2**63 - 1, -(2**63), 5e-324, 1.7976931348623157e308]},
    {"text": 'line\n\ttab \u2028 \x7f \x00 "quoted" \\ /'},
)
"""Extras of a call: any JSON object, or null."""

_SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(TEXT_ALPHABET, max_size=4)
)
_KEYS: Final = st.text(TEXT_ALPHABET, max_size=3)


def json_values(max_leaves: int = 8) -> SearchStrategy[Any]:
    """JSON values that have a digest: integers of 64 bits, finite floats, text without lone surrogates."""
    check_range("leaves", 1, max_leaves, 1)
    return st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
        max_leaves=max_leaves,
    )


def json_objects(max_leaves: int = 8) -> SearchStrategy[dict[str, Any]]:
    """JSON objects that have a digest, as extras are."""
    return st.dictionaries(_KEYS, json_values(max_leaves), max_size=4)


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REWARDS: Final[tuple[Any, ...]] = (
    0.0, 1.0, 1, 0, -1, 0.5, -0.0, 0.1, 1e-50, 1e30, -MAX_FLOAT32, 3.4028235e38, 2**63, 10**30, 16777217, 1e-45,
)  # fmt: skip
"""Rewards whose float32 is finite."""

UNUSABLE_REWARDS: Final[tuple[Any, ...]] = (
    math.nan, math.inf, -math.inf, None, True, False, "1.0", "", [], [1.0], {}, 1e300, -1e300, 3.4028236e38, 10**39,
    10**400, -(10**400),
)  # fmt: skip
"""Rewards that reject their rollout (decision D6)."""


def rewards() -> SearchStrategy[Any]:
    """Usable rewards."""
    return st.sampled_from(REWARDS) | st.floats(-1e30, 1e30)


def unusable_rewards() -> SearchStrategy[Any]:
    """Rewards that no row can carry."""
    return st.sampled_from(UNUSABLE_REWARDS)
