"""Hostile inputs in bulk: one base, drawn by Hypothesis, spoiled in hundreds of ways by plain bytes.

Drawing a base costs milliseconds, spoiling a copy of it microseconds. The bytes decide what is done, as everywhere in
the strategies, so a batch of inputs is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rollproof.properties.strategies.hostile import ODD_FIELDS, odd, retyped
from rollproof.properties.strategies.rollouts.draft import fresh
from rollproof.properties.strategies.rollouts.media import DTYPES, draw_tensor
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.strategies.streams.media import zeros_like
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES
from rollproof.spec.tensor import Tensor

# ── JSON ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def spoil_json(value: Any, decide: Bytes) -> Any:
    """Return the value after one to three edits somewhere in it. Containers are changed in place."""
    for _ in range(1 if decide.chance(192) else 2 + decide.below(2)):
        value = spoil_once(value, decide)
    return value


def spoil_once(value: Any, decide: Bytes) -> Any:
    """Make one edit: at the top, or in some container below."""
    if decide.chance(12):
        return odd(decide)
    if not _is_container(value):
        return retyped(value, decide) if decide.chance(128) else odd(decide)
    target = value
    while decide.chance(160):
        inner = [item for item in _children(target) if _is_container(item)]
        if not inner:
            break
        target = decide.choose(inner[:256])
    spoil_dict(target, decide) if type(target) is dict else spoil_list(target, decide)
    return value


def _is_container(value: Any) -> bool:
    return (type(value) is dict or type(value) is list) and len(value) > 0


def _children(value: Any) -> list[Any]:
    return list(value.values()) if type(value) is dict else value[:256]


def spoil_dict(target: dict[Any, Any], decide: Bytes) -> None:
    """Change, move or drop a member, or add one."""
    names = list(target)[:256]
    name = decide.choose(names)
    match decide.below(8):
        case 0 | 1 | 2:
            target[name] = odd(decide)
        case 3:
            target[name] = retyped(target[name], decide)
        case 4:
            del target[name]
        case 5:
            target[decide.choose(ODD_FIELDS)] = odd(decide)
        case 6:
            target[name] = fresh(target[decide.choose(names)])
        case _:
            target[name] = [fresh(target[name])] if decide.chance(128) else {"": fresh(target[name])}


def spoil_list(target: list[Any], decide: Bytes) -> None:
    """Change, move or drop an item, or add one."""
    at = decide.below(min(len(target), 256))
    match decide.below(8):
        case 0 | 1 | 2:
            target[at] = odd(decide)
        case 3:
            target[at] = retyped(target[at], decide)
        case 4:
            del target[at]
        case 5:
            target.insert(at, odd(decide))
        case 6:
            target.append(fresh(target[at]))
        case _:
            target[at] = [fresh(target[at])] if decide.chance(128) else {"": fresh(target[at])}


# ── text and bytes ──────────────────────────────────────────────────────────────────────────────────────────────────

PIECES: Final = (
    "", "0", "1", "-1", "+1", " 1", "1_0", "٣", "９", "9" * 18, "9" * 19, "9" * 400, "x", ":", "::", "xx", "=", "==",
    "A", "/", "+", "-", "_", "\n", "\x00", "é", "\ud800", "\U0001f600", "nrlre1", "int8", "int32", "float16", "1x1x1",
    "0x1x1", "2147483648x1x1", "4294967296x4294967296x1", "AAAA", "AA==", "AAA=", "A" * 1000, "null", "[", "{", '"',
)  # fmt: skip
"""Pieces that are put into a string: signs, digits of other scripts, separators, and heads that promise too much."""


def spoil_text(text: str, decide: Bytes) -> str:
    """Return the string after one to three edits: a piece of it replaced, lost, repeated or moved."""
    for _ in range(1 if decide.chance(160) else 2 + decide.below(2)):
        start = _position(text, decide)
        end = min(len(text), start + decide.choose((0, 1, 1, 2, 3, 4, 8, 64)))
        match decide.below(6):
            case 0 | 1 | 2:
                text = text[:start] + decide.choose(PIECES) + text[end:]
            case 3:
                text = text[:start] + text[end:]
            case 4:
                text = text[:end] + text[start:]
            case _:
                text = text[:start] + chr(decide.next() << 8 | decide.next()) + text[end:]
    return text


def _position(text: str, decide: Bytes) -> int:
    """Return a position: near the start as often as anywhere, since that is where a head is."""
    at = decide.next() << 8 | decide.next()
    return at % (min(len(text), 32) + 1) if at & 1 else at % (len(text) + 1)


def spoil_bytes(data: bytes, decide: Bytes) -> bytes:
    """Do the same to bytes."""
    return spoil_text(data.decode("latin-1"), decide).encode("utf-8", "surrogatepass")


# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────

NAMES: Final = (BUNDLE_PIXELS, BUNDLE_SIZES, BUNDLE_FRAMES, "imgs_size", "pixel_values", "", "\ud800", "IMGS")


def spoil_bundle(bundle: Mapping[str, Tensor], decide: Bytes) -> dict[str, Tensor]:
    """Return the bundle with one to three tensors that are lost, renamed, of another kind, or untrue."""
    changed = dict(bundle)
    for _ in range(1 if decide.chance(160) else 2 + decide.below(2)):
        names = list(changed)
        if not names:
            break
        name = decide.choose(names)
        edited = decide.choose(TENSOR_EDITS)(changed[name], decide)
        if edited is None:
            del changed[name]
        elif decide.chance(32):
            changed[decide.choose(NAMES)] = edited
        else:
            changed[name] = edited
    return changed


TensorEdit = Callable[[Tensor, Bytes], Tensor | None]


def lost(_: Tensor, __: Bytes) -> None:
    """Return no tensor."""


def other(_: Tensor, decide: Bytes) -> Tensor:
    """Return any tensor."""
    return draw_tensor(decide)


def other_dtype(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return zeros of another dtype."""
    return zeros_like(tensor, decide.choose(DTYPES))


def other_shape(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return the same elements in another shape."""
    shape = tensor.shape
    shapes = (shape[::-1], (*shape, 1), (1, *shape), (tensor.count,), (1,) * 20 + shape, (tensor.count, 1, 1))
    return Tensor(tensor.dtype, decide.choose(shapes), tensor.data)


def other_numbers(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return integers of which one is wrong: zero, negative, larger, or close to where a sum wraps."""
    if tensor.dtype not in ("int32", "int64") or not tensor.count:
        return tensor
    values = [int(value) for value in tensor.values()]
    at = decide.below(min(len(values), 256))
    value = values[at]
    values[at] = decide.choose((0, -1, value + 1, value * 2, -value, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63)))
    return Tensor.of("int64", [(one + 2**63) % 2**64 - 2**63 for one in values], tensor.shape)


def other_rows(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return a row more, a row less, or none."""
    rows = tensor.shape[0] if tensor.shape else 0
    if not rows:
        return tensor
    count = decide.choose((0, 1, rows - 1, rows + 1, rows * 8))
    size = len(tensor.data) // rows
    return Tensor(tensor.dtype, (count, *tensor.shape[1:]), (tensor.data * 16)[: count * size])


def empty(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return no elements, and dimensions that make up for it."""
    shapes = ((0,), (0, 2), (2**31, 0), (0, 2**40, 3), (1, 0, 3))
    return Tensor(tensor.dtype, decide.choose(shapes), b"")


def other_bits(tensor: Tensor, decide: Bytes) -> Tensor:
    """Return the tensor with some bytes flipped."""
    if not tensor.data or tensor.dtype == "bool":
        return tensor
    data = bytearray(tensor.data)
    for _ in range(1 + decide.below(8)):
        data[(decide.next() << 8 | decide.next()) % len(data)] ^= 1 << decide.below(8)
    return Tensor(tensor.dtype, tensor.shape, bytes(data))


TENSOR_EDITS: Final[tuple[TensorEdit, ...]] = (
    other_numbers, lost, other, other_dtype, other_shape, other_numbers, other_rows, empty, other_bits,
)  # fmt: skip
