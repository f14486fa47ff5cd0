"""BLAKE3, the hash of ``media-blake3-v1`` (section 7), as its public specification describes it.

There is a second hash because SHA-256 is one long chain, block after block, so it runs on one core and at that core's
speed. BLAKE3 hashes chunks of 1,024 bytes independently and joins them in a binary tree, so that an accelerator can
hash a tensor in its own memory, with all its lanes, and hand back 32 bytes. Only the plain hash of 32 bytes is needed
here: no key, no derived keys, no longer output.
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

Words: TypeAlias = tuple[int, ...]
"""32-bit words: eight are a chaining value, sixteen are a block."""

CHUNK_BYTES: Final = 1024
BLOCK_BYTES: Final = 64

CHUNK_START: Final = 1
CHUNK_END: Final = 2
PARENT: Final = 4
ROOT: Final = 8

INITIAL: Final[Words] = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)  # fmt: skip
"""The chaining value that every chunk and every parent starts from: that of SHA-256."""

PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
"""Which word of a block takes which place in the next round."""

COLUMNS: Final = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS: Final = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))

ROUNDS: Final = 7


def blake3(data: bytes) -> bytes:
    """Return the hash of ``data``: 32 bytes."""
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)] or [b""]
    if len(chunks) == 1:
        return to_bytes(chunk_value(chunks[0], 0, ROOT))
    values = [chunk_value(chunk, index, 0) for index, chunk in enumerate(chunks)]
    while len(values) > 2:
        values = [parent(*values[at : at + 2], flags=0) for at in range(0, len(values), 2)]
    return to_bytes(parent(*values, flags=ROOT))


def chunk_value(chunk: bytes, index: int, flags: int) -> Words:
    """Return the chaining value of one chunk: its blocks, one on top of the other.

    ``flags`` count at the last block.
    """
    value = INITIAL
    starts = range(0, len(chunk), BLOCK_BYTES) or range(1)
    for start in starts:
        block = chunk[start : start + BLOCK_BYTES]
        first = CHUNK_START if start == 0 else 0
        last = CHUNK_END | flags if start == starts[-1] else 0
        words = struct.unpack("<16I", block.ljust(BLOCK_BYTES, b"\x00"))
        value = compress(value, words, index, len(block), first | last)
    return value


def parent(left: Words, right: Words | None = None, *, flags: int) -> Words:
    """Return the chaining value of two neighbours in the tree. The last of an odd number moves up as it is."""
    if right is None:
        return left
    return compress(INITIAL, left + right, 0, BLOCK_BYTES, PARENT | flags)


def compress(value: Words, block: Words, counter: int, length: int, flags: int) -> Words:
    """Compress: return a new chaining value from the old one and a block of ``length`` bytes."""
    state = [*value, *INITIAL[:4], counter % 2**32, counter >> 32, length, flags]
    for _ in range(ROUNDS):
        for place, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            mix(state, a, b, c, d, block[2 * place], block[2 * place + 1])
        block = tuple(block[at] for at in PERMUTATION)
    return tuple(low ^ high for low, high in zip(state[:8], state[8:], strict=True))


def mix(state: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    """Run the quarter round: stir two words of the block into four of the state."""
    for word, first, second in ((x, 16, 12), (y, 8, 7)):
        state[a] = (state[a] + state[b] + word) % 2**32
        state[d] = rotated(state[d] ^ state[a], first)
        state[c] = (state[c] + state[d]) % 2**32
        state[b] = rotated(state[b] ^ state[c], second)


def rotated(word: int, bits: int) -> int:
    """Return a 32-bit word, rotated to the right."""
    return (word >> bits | word << (32 - bits)) % 2**32


def to_bytes(value: Words) -> bytes:
    """Return words as bytes, little-endian."""
    return struct.pack("<8I", *value)
