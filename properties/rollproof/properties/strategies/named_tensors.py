"""Named tensors, held in every way, and pairs of sets of them that are equal or almost equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.rollouts.media import DTYPES, draw_tensor
from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.spec.constants import BUNDLE_FRAMES, MEDIA_DIGEST_FIELDS
from rollproof.spec.judge.requests import MediaDigest, SameMedia
from rollproof.spec.judge.views import VALUELESS, Entry, Held
from rollproof.spec.tensor import ITEM_SIZES, Tensor

Entries = tuple[Entry, ...]

NAMES: Final = (
    "imgs",
    "imgs_sizes",
    "num_frames",
    "a",
    "",
    "é",
    "\x00",
    "\U0001f600",
    "\uffff",
    "a|torch.uint8|(0,)|b",
)
"""Names of tensors: any string."""
NO_NAMES: Final[tuple[Any, ...]] = (1, None, b"imgs", 1.5, ("a",), "\ud800", True)
"""Values that are not a name, or not a string."""
SIMPLE: Final = (Held.CONTIGUOUS, Held.OFFSET, Held.TRANSPOSED, Held.STRIDED, Held.EXPANDED)
LAZY: Final = (Held.CONJUGATED, Held.NEGATED)


# ── named tensors ───────────────────────────────────────────────────────────────────────────────────────────────────


def finite(tensor: Tensor) -> Tensor:
    """Return the tensor with finite numbers as bytes in every dtype: NaNs lose their payload in lazy arithmetic."""
    return Tensor(tensor.dtype, tensor.shape, bytes(byte & 0xBF for byte in tensor.data))


def alike(tensor: Tensor) -> Tensor:
    """Return the tensor with every slice replaced by its first."""
    if not tensor.shape or not tensor.count:
        return tensor
    size = len(tensor.data) // tensor.shape[0]
    return Tensor(tensor.dtype, tensor.shape, tensor.data[:size] * tensor.shape[0])


def draw_entry(decide: Bytes, name: Any) -> Entry:
    """Draw a tensor of any dtype and shape, held in any way that leaves it a value."""
    tensor = draw_tensor(decide)
    held = decide.choose((*SIMPLE, *LAZY)) if decide.chance(160) else Held.CONTIGUOUS
    if held is Held.CONJUGATED:
        tensor = finite(draw_tensor(decide, ("complex64", "complex128")))
    elif held is Held.NEGATED:
        tensor = finite(draw_tensor(decide, ("float32", "float16", "bfloat16", "float64")))
    elif held is Held.EXPANDED:
        tensor = alike(tensor)
    return Entry(name, tensor, held)


def draw_entries(decide: Bytes) -> Entries | None:
    """Draw up to three named tensors, now and then none."""
    if decide.chance(16):
        return None
    names = list(NAMES)
    return tuple(draw_entry(decide, names.pop(decide.below(len(names)))) for _ in range(decide.below(4)))


def relaid(decide: Bytes, entries: Entries) -> Entries:
    """Return the same tensors, held differently and in another order."""
    changed = [entry if entry.held in LAZY else evolve(entry, held=decide.choose(SIMPLE)) for entry in entries]
    at = decide.below(len(changed)) if changed else 0
    return (*changed[at:], *changed[:at])


def draw_scheme(decide: Bytes) -> str:
    """Draw the scheme of a digest."""
    return decide.choose(tuple(MEDIA_DIGEST_FIELDS))


@st.composite
def digests(draw: DrawFn) -> MediaDigest:
    """Draw named tensors that have a digest."""
    decide = draw_bytes(draw, 64)
    return MediaDigest(draw_entries(decide), draw_scheme(decide))


@st.composite
def valueless(draw: DrawFn) -> MediaDigest:
    """Draw named tensors of which one has no digest, because of its value or of its name."""
    decide = draw_bytes(draw, 64)
    entries = draw_entries(decide) or ()
    if decide.chance(96):
        odd = Entry(decide.choose(NO_NAMES), Tensor.of("uint8", [7]))
    else:
        odd = Entry("odd", Tensor.of("uint8", [1, 2]), decide.choose(tuple(sorted(VALUELESS))))
    return MediaDigest((*entries, odd) if decide.chance(128) else (odd, *entries), draw_scheme(decide))


@st.composite
def valueless_pairs(draw: DrawFn) -> SameMedia:
    """Draw a set of tensors of which one has no digest, against itself or against another set."""
    odd = draw(valueless()).tensors
    return SameMedia(odd, odd if draw(st.booleans()) else draw_entries(draw_bytes(draw, 64)))


# ── pairs ───────────────────────────────────────────────────────────────────────────────────────────────────────────

PairEdit = Callable[[Bytes, list[Entry]], list[Entry] | None]
"""Another set of tensors in place of at least one; None where it does not apply."""


def flipped_bit(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Flip one bit of one tensor."""
    at = decide.below(len(entries))
    tensor = entries[at].tensor
    if not tensor.data or tensor.dtype == "bool":
        return None
    data = bytearray(tensor.data)
    where = decide.below(256) * len(data) >> 8
    data[where] ^= 1 << decide.below(8)
    return changed(entries, at, Tensor(tensor.dtype, tensor.shape, bytes(data)))


def changed(entries: list[Entry], at: int, tensor: Tensor) -> list[Entry]:
    """Return the entries with one tensor exchanged, held contiguously."""
    return [*entries[:at], Entry(entries[at].name, tensor), *entries[at + 1 :]]


def other_name(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Change one name."""
    at = decide.below(len(entries))
    return [*entries[:at], evolve(entries[at], name=f"{entries[at].name}."), *entries[at + 1 :]]


def other_shape(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Swap dimensions, add one, or flatten them all."""
    at = decide.below(len(entries))
    tensor = entries[at].tensor
    shape = decide.choose((tensor.shape[::-1], (*tensor.shape, 1), (1, *tensor.shape), (tensor.count,)))
    return None if shape == tensor.shape else changed(entries, at, Tensor(tensor.dtype, shape, tensor.data))


def other_dtype(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Return another dtype of the same width: equal bytes, other values."""
    at = decide.below(len(entries))
    tensor = entries[at].tensor
    width = ITEM_SIZES[tensor.dtype]
    same = [name for name in DTYPES if ITEM_SIZES[name] == width and name not in (tensor.dtype, "bool")]
    return changed(entries, at, Tensor(decide.choose(same), tensor.shape, tensor.data)) if same else None


def split(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Split one tensor into two, under two names: nothing but the boundaries differs."""
    at = decide.below(len(entries))
    entry, count = entries[at], entries[at].tensor.count
    size = ITEM_SIZES[entry.tensor.dtype]
    cut = decide.below(count + 1)
    pieces = [
        Entry(f"{entry.name}{number}", Tensor(entry.tensor.dtype, (len(data) // size,), data))
        for number, data in enumerate((entry.tensor.data[: cut * size], entry.tensor.data[cut * size :]))
    ]
    return [*entries[:at], *pieces, *entries[at + 1 :]]


def exchanged(_: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Swap the names of two tensors."""
    if len(entries) < 2 or entries[0].tensor == entries[1].tensor:
        return None
    return [evolve(entries[1], name=entries[0].name), evolve(entries[0], name=entries[1].name), *entries[2:]]


def lost(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Lose one tensor."""
    at = decide.below(len(entries))
    return [*entries[:at], *entries[at + 1 :]]


def cut_tail(decide: Bytes, entries: list[Entry]) -> list[Entry] | None:
    """Cut off a tensor's last slice."""
    at = decide.below(len(entries))
    tensor = entries[at].tensor
    if not tensor.shape or not tensor.count:
        return None
    size = len(tensor.data) // tensor.shape[0]
    return changed(entries, at, Tensor(tensor.dtype, (tensor.shape[0] - 1, *tensor.shape[1:]), tensor.data[:-size]))


PAIR_EDITS: Final[tuple[PairEdit, ...]] = (
    flipped_bit, other_name, other_shape, other_dtype, split, exchanged, lost, cut_tail,
)  # fmt: skip

BYTE: Final = Tensor.of("uint8", [7])
NOTHING: Final = Tensor("uint8", (0,), b"")


def one(tensor: Tensor, held: Held = Held.CONTIGUOUS, name: Any = "a") -> Entries:
    """Return a single tensor."""
    return (Entry(name, tensor, held),)


def bfloat16(*values: int) -> Tensor:
    """Return a tensor of these bit patterns."""
    return Tensor("bfloat16", (len(values),), b"".join(value.to_bytes(2, "little") for value in values))


NAN: Final = Tensor("float32", (1,), b"\x01\x00\xc0\x7f")
COMPLEX: Final = Tensor("complex64", (1,), Tensor.of("float32", [1.0, 2.0]).data)
SCALAR: Final = Tensor.of("float32", [7.0], ())

HARD_PAIRS: Final[dict[str, SameMedia]] = {
    "framing": SameMedia(
        (Entry("a", NOTHING), Entry("b", BYTE)),
        one(BYTE, name="a|torch.uint8|(0,)|b"),
    ),
    "null": SameMedia(None, ()),
    "0-dimensional": SameMedia(one(SCALAR), one(SCALAR)),
    "conjugated": SameMedia(one(COMPLEX, Held.CONJUGATED), one(COMPLEX)),
    "negated": SameMedia(one(Tensor.of("float32", [1.0]), Held.NEGATED), one(Tensor.of("float32", [1.0]))),
    "quantization": SameMedia(one(BYTE, Held.QUANTIZED), one(BYTE, Held.QUANTIZED_COARSER)),
    "name that is not a string": SameMedia(one(BYTE, name=1), one(BYTE, name="1")),
    "negative zero": SameMedia(one(Tensor.of("float32", [0.0])), one(Tensor.of("float32", [-0.0]))),
    "promotion": SameMedia(one(Tensor.of("float32", [1.0])), one(Tensor.of("float64", [1.0]))),
    "70000 and 80000, infinite in float16": SameMedia(one(bfloat16(0x4789)), one(bfloat16(0x479C))),
    "borders": SameMedia(
        (Entry("a", Tensor.of("int64", [1, 2])), Entry("b", Tensor.of("int64", [3, 4, 5]))),
        (Entry("a", Tensor.of("int64", [1, 2, 3])), Entry("b", Tensor.of("int64", [4, 5]))),
    ),
    "NaN pixels": SameMedia(one(NAN), one(NAN)),
    "three of two bytes": SameMedia(one(bfloat16(0, 0, 0)), one(bfloat16(0, 0, 1))),
    "one strided element": SameMedia(one(Tensor.of("int16", [7]), Held.STRIDED), one(Tensor.of("int16", [7]))),
    "dimensions": SameMedia(one(Tensor.of("uint8", [7], ())), one(BYTE)),
    "dtype without a name": SameMedia(one(BYTE, Held.OTHER_DTYPE), one(BYTE, Held.OTHER_DTYPE)),
    "null entry": SameMedia(one(BYTE, Held.NULL), ()),
    "frame counts": SameMedia(one(Tensor.of("int32", [8])), one(Tensor.of("int32", [16]))),
    "frame counts of a video": SameMedia(
        one(Tensor.of("int32", [8]), name=BUNDLE_FRAMES), one(Tensor.of("int32", [16]), name=BUNDLE_FRAMES)
    ),
}
"""Pairs that hashers have got wrong."""


@st.composite
def different(draw: DrawFn) -> SameMedia:
    """Draw sets of tensors that differ in one property."""
    decide = draw_bytes(draw, 96)
    entries = draw_entries(decide)
    if not entries:
        return SameMedia(None, ()) if decide.chance(128) else SameMedia((), (draw_entry(decide, "a"),))
    edited = decide.choose(PAIR_EDITS)(decide, list(entries))
    pair = entries, tuple(edited) if edited is not None else (*entries, draw_entry(decide, "more"))
    return SameMedia(*pair) if decide.chance(128) else SameMedia(*pair[::-1])


@st.composite
def equal(draw: DrawFn) -> SameMedia:
    """Draw the same tensors, held in two ways."""
    decide = draw_bytes(draw, 96)
    entries = draw_entries(decide)
    return SameMedia(entries, None if entries is None else relaid(decide, entries))
