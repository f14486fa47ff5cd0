"""Single values of a rollout, read off drawn bytes: token ids, log-probabilities, ids, extras, rewards.

A draw costs Hypothesis far more than what one byte of it decides. So a strategy of this package draws a few bytes at
once and reads its small decisions off them; the byte 0 always means the plainest choice, which is what examples
shrink to.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.rollouts.recipes import Scalar
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
        """Return the next byte."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, count: int) -> int:
        """Return a number in ``[0, count)``, for ``count`` up to 256.

        A small byte is the number itself, so that it means the same when an example shrinks around it.
        """
        return self.next() % count

    def chance(self, of_256: int) -> bool:
        """Return True for ``of_256`` of 256 bytes, and False for 0."""
        return self.next() >= 256 - of_256

    def choose(self, options: Sequence[T]) -> T:
        """Return one of up to 256 options, the first for 0."""
        return options[self.below(len(options))]


CHUNK: Final = 32
"""Every draw has this size. Hypothesis mutates an example by copying one draw over another of the same kind; a copy of
the wrong size would be replaced by zeros."""

CHUNKS: Final = st.binary(min_size=CHUNK, max_size=CHUNK)


def draw_bytes(draw: DrawFn, size: int = CHUNK) -> Bytes:
    """Draw at least ``size`` bytes to decide with, in as few draws as possible."""
    return Bytes(draw(CHUNKS) if size <= CHUNK else b"".join(draw(CHUNKS) for _ in range(-(-size // CHUNK))))


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
    """Return a token id in ``[0, 2**63)``, mostly small; two bytes."""
    first, second = decide.next(), decide.next()
    if first < 176:
        return first
    if first < 216:
        return EDGE_IDS[second * len(EDGE_IDS) >> 8]
    return (first << 8 | second) * 0x9E3779B97F4A7C15 % INT63_LIMIT


def log_prob(decide: Bytes) -> float:
    """Return a log-probability: any kind of finite float32, mostly in ``[-5, 0)``; two bytes."""
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
    """Return a weight version, mostly in ``[0, 8)``; two bytes."""
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


def rollout_id(decide: Bytes) -> str:
    """Return a valid rollout id, mostly "r"."""
    if not decide.chance(112):
        return ROLLOUT_IDS[0]
    return json_text(decide).replace("/", "|") or "r1" if decide.chance(64) else decide.choose(ROLLOUT_IDS)


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

MAX_JSON_DEPTH: Final = 4


def json_text(decide: Bytes) -> str:
    """Return a string of up to three characters of any plane; no lone surrogates."""
    chars = []
    for _ in range(decide.below(4)):
        first, second = decide.next(), decide.next()
        if first < 128:
            chars.append(chr(first % 95 + 32))
        elif first < 224:
            code = first << 8 | second
            chars.append(chr(code) if not 0xD800 <= code < 0xE000 else "\uffff")
        else:
            chars.append(chr(0x10000 + (first << 8 | second)))
    return "".join(chars)


def json_number(decide: Bytes) -> int | float:
    """Return an integer of 64 bits, or a finite float64."""
    kind, size = decide.next(), decide.below(9)
    data = bytes(decide.next() for _ in range(size)).ljust(8, b"\0")
    if kind < 128:
        return int.from_bytes(data, "little", signed=True)
    value = float(struct.unpack(">d", data)[0])
    return value if math.isfinite(value) else -0.0


def json_value(decide: Bytes, depth: int = MAX_JSON_DEPTH) -> Any:
    """Return a JSON value that has a digest: null for zeros, up to ``depth`` containers deep."""
    kind = decide.below(8 if depth else 5)
    match kind:
        case 0:
            return None
        case 1:
            return decide.chance(128)
        case 2 | 3:
            return json_number(decide)
        case 4:
            return json_text(decide)
        case 5:
            return [json_value(decide, depth - 1) for _ in range(decide.below(4))]
        case _:
            return json_object(decide, depth)


def json_object(decide: Bytes, depth: int = MAX_JSON_DEPTH) -> dict[str, Any]:
    """Return a JSON object that has a digest."""
    return {json_text(decide): json_value(decide, depth - 1) for _ in range(decide.below(5))}


def json_values() -> SearchStrategy[Any]:
    """Draw JSON values that have a digest: integers of 64 bits, finite floats, strings without lone surrogates."""
    return CHUNKS.map(lambda data: json_value(Bytes(data)))


def json_objects() -> SearchStrategy[dict[str, Any]]:
    """Draw JSON objects that have a digest, as extras are."""
    return CHUNKS.map(lambda data: json_object(Bytes(data)))


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


ARRAY_REWARDS: Final[tuple[Any, ...]] = (
    *(Scalar("numpy", dtype, 1, odd=odd) for dtype in ("float16", "float64", "int8", "bool") for odd in ("", "item")),
    *(Scalar("torch", dtype, 1, odd=odd) for dtype in ("bfloat16", "int64", "bool") for odd in ("", "meta", "sparse")),
    *(Scalar("numpy", dtype, 1, (), "item") for dtype in ("complex64", "datetime64[s]", "U1", "V3", "longdouble")),
    *(Scalar(library, "float64", value) for library in ("numpy", "torch") for value in (1e39, math.nan, -math.inf)),
    *(Scalar(library, "float32", 1, shape) for library in ("numpy", "torch") for shape in ((1,), (2,), (0,), (1, 1))),
    *(Scalar(library, "float32", 1, (1, 1, 1)) for library in ("numpy", "torch")),
    *(Scalar(library, "bool", 0) for library in ("numpy", "torch")),
    Scalar("torch", "complex64", 1), Scalar("torch", "float8_e8m0fnu", 1), Scalar("numpy", "object", None),
)  # fmt: skip
"""Rewards as arrays and tensors hold them, and what looks like one: usable and unusable ones (decision D6)."""


def rewards() -> SearchStrategy[Any]:
    """Draw usable rewards."""
    return st.sampled_from(REWARDS) | st.floats(-1e30, 1e30)


def unusable_rewards() -> SearchStrategy[Any]:
    """Draw rewards that no row can carry."""
    return st.sampled_from(UNUSABLE_REWARDS)
