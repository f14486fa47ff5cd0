"""BLAKE3 of bytes in an accelerator's memory: chunks side by side, then the tree, and 32 bytes come back.

A message is given as segments, host bytes and device tensors, that represent their concatenation. A chunk of 1,024
bytes that is within one tensor is read in place, at any byte offset; only the chunks that straddle a border are
laid out anew, a few kilobytes. Each lane compresses one chunk, block by block; then one launch per level of the tree
pairs neighbours, with the odd one carried up, which gives BLAKE3's tree: its left subtrees are complete.

Levels are launches, and not a loop unrolled in one program: that one takes a compiler minutes. Numbers that change from
call to call are not specialized on, else each kind of them would be compiled anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl
from attrs import frozen

CHUNK: Final = 1024
BLOCK: Final = 64
"""Bytes, as BLAKE3 has them."""
LANES: Final = 128
"""Chunks, or pairs of chaining values, per program."""

_CHUNK_START: Final = tl.constexpr(1)
_CHUNK_END: Final = tl.constexpr(2)
_PARENT: Final = tl.constexpr(4)
_ROOT: Final = tl.constexpr(8)


@triton.jit
def _initial(like):
    """Return the initial chaining value, in every lane of ``like``."""
    return (
        tl.full(like.shape, 0x6A09E667, tl.uint32),
        tl.full(like.shape, 0xBB67AE85, tl.uint32),
        tl.full(like.shape, 0x3C6EF372, tl.uint32),
        tl.full(like.shape, 0xA54FF53A, tl.uint32),
        tl.full(like.shape, 0x510E527F, tl.uint32),
        tl.full(like.shape, 0x9B05688C, tl.uint32),
        tl.full(like.shape, 0x1F83D9AB, tl.uint32),
        tl.full(like.shape, 0x5BE0CD19, tl.uint32),
    )


@triton.jit
def _mix(a, b, c, d, x, y):
    """Run BLAKE3's quarter round."""
    a = a + b + x
    d = d ^ a
    d = (d >> 16) | (d << 16)
    c = c + d
    b = b ^ c
    b = (b >> 12) | (b << 20)
    a = a + b + y
    d = d ^ a
    d = (d >> 8) | (d << 24)
    c = c + d
    b = b ^ c
    b = (b >> 7) | (b << 25)
    return a, b, c, d


@triton.jit
def _compress(
    h0, h1, h2, h3, h4, h5, h6, h7,
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
    counter_low, counter_high, length, flags,
):  # fmt: skip
    """Compress, one per lane: return the new chaining value from the old one and a block of 64 bytes."""
    v0, v1, v2, v3, v4, v5, v6, v7 = h0, h1, h2, h3, h4, h5, h6, h7
    v8, v9, v10, v11, _, _, _, _ = _initial(h0)
    v12, v13, v14, v15 = counter_low, counter_high, length, flags
    for _ in tl.static_range(7):
        v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m0, m1)
        v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m2, m3)
        v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m4, m5)
        v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m6, m7)
        v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m8, m9)
        v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m10, m11)
        v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m12, m13)
        v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m14, m15)
        m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15 = (
            m2, m6, m3, m10, m7, m0, m4, m13, m1, m11, m12, m5, m9, m14, m15, m8,
        )  # fmt: skip
    return v0 ^ v8, v1 ^ v9, v2 ^ v10, v3 ^ v11, v4 ^ v12, v5 ^ v13, v6 ^ v14, v7 ^ v15


@triton.jit
def _word(at, shift, mask, SHIFTED: tl.constexpr):
    """Return the little-endian word that starts ``shift`` bytes into the one at ``at``."""
    word = tl.load(at, mask=mask, other=0).to(tl.uint32, bitcast=True)
    if SHIFTED:
        following = tl.load(at + 1, mask=mask, other=0).to(tl.uint32, bitcast=True)
        word = (word >> (8 * shift)) | (following << (32 - 8 * shift))
    return word


@triton.jit
def _store(row, mask, h0, h1, h2, h3, h4, h5, h6, h7):
    """Store one chaining value per lane."""
    tl.store(row + 0, h0.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 1, h1.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 2, h2.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 3, h3.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 4, h4.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 5, h5.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 6, h6.to(tl.int32, bitcast=True), mask=mask)
    tl.store(row + 7, h7.to(tl.int32, bitcast=True), mask=mask)


@triton.jit(do_not_specialize=("shift", "first_chunk", "count", "last_chunk", "last_bytes", "longest"))
def _chunks(
    data, shift, values, first_chunk, count, last_chunk, last_bytes, longest,
    SHIFTED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the chaining values of ``count`` adjacent chunks, one per lane; ``longest`` is their most blocks.

    ``data`` starts ``shift`` bytes into an aligned word; no word is read that holds none of its bytes.
    """
    words = (data - shift).to(tl.pointer_type(tl.int32))
    lane = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    mask = lane < count
    chunk = first_chunk + lane
    size = tl.where(chunk == last_chunk, last_bytes, 1024)
    blocks = tl.maximum((size + 63) // 64, 1)
    low = (chunk & 0xFFFFFFFF).to(tl.uint32)
    high = (chunk >> 32).to(tl.uint32)
    h0, h1, h2, h3, h4, h5, h6, h7 = _initial(low)
    for block in range(longest):
        at = lane * 256 + block * 16
        m0 = _word(words + at + 0, shift, mask, SHIFTED)
        m1 = _word(words + at + 1, shift, mask, SHIFTED)
        m2 = _word(words + at + 2, shift, mask, SHIFTED)
        m3 = _word(words + at + 3, shift, mask, SHIFTED)
        m4 = _word(words + at + 4, shift, mask, SHIFTED)
        m5 = _word(words + at + 5, shift, mask, SHIFTED)
        m6 = _word(words + at + 6, shift, mask, SHIFTED)
        m7 = _word(words + at + 7, shift, mask, SHIFTED)
        m8 = _word(words + at + 8, shift, mask, SHIFTED)
        m9 = _word(words + at + 9, shift, mask, SHIFTED)
        m10 = _word(words + at + 10, shift, mask, SHIFTED)
        m11 = _word(words + at + 11, shift, mask, SHIFTED)
        m12 = _word(words + at + 12, shift, mask, SHIFTED)
        m13 = _word(words + at + 13, shift, mask, SHIFTED)
        m14 = _word(words + at + 14, shift, mask, SHIFTED)
        m15 = _word(words + at + 15, shift, mask, SHIFTED)
        active = block < blocks
        ends = block == blocks - 1
        flags = tl.where(ends, tl.where(last_chunk == 0, _CHUNK_END | _ROOT, _CHUNK_END), 0)
        flags = (flags | tl.where(block == 0, _CHUNK_START, 0)).to(tl.uint32)
        length = tl.minimum(size - block * 64, 64).to(tl.uint32)
        n0, n1, n2, n3, n4, n5, n6, n7 = _compress(
            h0, h1, h2, h3, h4, h5, h6, h7,
            m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15,
            low, high, length, flags,
        )  # fmt: skip
        h0 = tl.where(active, n0, h0)
        h1 = tl.where(active, n1, h1)
        h2 = tl.where(active, n2, h2)
        h3 = tl.where(active, n3, h3)
        h4 = tl.where(active, n4, h4)
        h5 = tl.where(active, n5, h5)
        h6 = tl.where(active, n6, h6)
        h7 = tl.where(active, n7, h7)
    _store(values + chunk * 8, mask, h0, h1, h2, h3, h4, h5, h6, h7)


@triton.jit(do_not_specialize=("count",))
def _parents(values, count, parents, WIDTH: tl.constexpr):
    """Compute the next level of the tree over ``count`` chaining values, a pair per lane; an odd one is carried up."""
    lane = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    there, paired = 2 * lane < count, 2 * lane + 1 < count
    left, right = values + lane * 16, values + lane * 16 + 8
    l0 = _word(left + 0, 0, there, False)
    l1 = _word(left + 1, 0, there, False)
    l2 = _word(left + 2, 0, there, False)
    l3 = _word(left + 3, 0, there, False)
    l4 = _word(left + 4, 0, there, False)
    l5 = _word(left + 5, 0, there, False)
    l6 = _word(left + 6, 0, there, False)
    l7 = _word(left + 7, 0, there, False)
    flags = tl.where(lane * 0 + count == 2, _PARENT | _ROOT, _PARENT).to(tl.uint32)
    zero = tl.full(l0.shape, 0, tl.uint32)
    i0, i1, i2, i3, i4, i5, i6, i7 = _initial(l0)
    n0, n1, n2, n3, n4, n5, n6, n7 = _compress(
        i0, i1, i2, i3, i4, i5, i6, i7,
        l0, l1, l2, l3, l4, l5, l6, l7,
        _word(right + 0, 0, paired, False),
        _word(right + 1, 0, paired, False),
        _word(right + 2, 0, paired, False),
        _word(right + 3, 0, paired, False),
        _word(right + 4, 0, paired, False),
        _word(right + 5, 0, paired, False),
        _word(right + 6, 0, paired, False),
        _word(right + 7, 0, paired, False),
        zero, zero, zero + 64, flags,
    )  # fmt: skip
    _store(
        parents + lane * 8,
        there,
        tl.where(paired, n0, l0),
        tl.where(paired, n1, l1),
        tl.where(paired, n2, l2),
        tl.where(paired, n3, l3),
        tl.where(paired, n4, l4),
        tl.where(paired, n5, l5),
        tl.where(paired, n6, l6),
        tl.where(paired, n7, l7),
    )


# ── the host's side ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _Run:
    """Chunks that are adjacent in ``data``, a contiguous tensor of bytes, from byte ``start`` on."""

    data: torch.Tensor
    start: int
    first_chunk: int
    count: int


def blake3_hex(segments: Sequence[bytes | torch.Tensor], device: torch.device | str) -> str:
    """Return the BLAKE3 hash, as 64 hex characters, of the segments' bytes back to back.

    Tensors are contiguous and on ``device``; their bytes are hashed in place, and none is copied to the host.
    """
    parts = [_bytes_of(segment) if isinstance(segment, torch.Tensor) else segment for segment in segments]
    total = sum(map(len, parts))
    chunks = max(1, -(-total // CHUNK))
    values = torch.empty((chunks, 8), dtype=torch.int32, device=device)
    for run in _runs(parts, chunks, torch.device(device)):
        _hash_run(run, values, chunks - 1, total - (chunks - 1) * CHUNK)
    while len(values) > 1:
        parents = torch.empty((-(-len(values) // 2), 8), dtype=torch.int32, device=device)
        _parents[(triton.cdiv(len(parents), LANES),)](values, len(values), parents, WIDTH=LANES)
        values = parents
    return values[0].view(torch.uint8).cpu().numpy().tobytes().hex()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a contiguous tensor as bytes, ``[n]`` uint8: a view."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _runs(parts: Sequence[Any], chunks: int, device: torch.device) -> list[_Run]:
    """Return all chunks, each in one run: in place if inside one tensor, else laid out anew with its neighbours."""
    runs: list[_Run] = []
    pending: list[Any] = []
    done = position = 0
    for part in parts:
        end = position + len(part)
        if isinstance(part, torch.Tensor):
            first, last = -(-position // CHUNK), end // CHUNK
            first = max(first, done)
            if last - first > 0:
                inside = first * CHUNK - position
                runs += _laid_out([*pending, part[:inside]], done, device)
                runs.append(_Run(part, inside, first, last - first))
                pending, done = [part[last * CHUNK - position :]], last
                position = end
                continue
        pending.append(part)
        position = end
    return runs + _laid_out(pending, done, device, chunks)


def _laid_out(pieces: Sequence[Any], first_chunk: int, device: torch.device, chunks: int | None = None) -> list[_Run]:
    """Return one run of the pieces' bytes, padded with zeros to whole chunks; none where there are no bytes."""
    size = sum(map(len, pieces))
    count = -(-size // CHUNK) if chunks is None else chunks - first_chunk
    if not count:
        return []
    tensors = [
        piece if isinstance(piece, torch.Tensor) else torch.frombuffer(bytearray(piece), dtype=torch.uint8).to(device)
        for piece in pieces
        if len(piece)
    ]
    padding = torch.zeros(count * CHUNK - size, dtype=torch.uint8, device=device)
    return [_Run(torch.cat([*tensors, padding]), 0, first_chunk, count)]


def _hash_run(run: _Run, values: torch.Tensor, last_chunk: int, last_bytes: int) -> None:
    """Write a run's chaining values into ``values``, ``[chunks, 8]`` int32."""
    data = run.data[run.start :]
    shift = data.data_ptr() % 4
    alone = run.count == 1 and run.first_chunk == last_chunk
    longest = max(1, -(-last_bytes // BLOCK)) if alone else CHUNK // BLOCK
    _chunks[(triton.cdiv(run.count, LANES),)](
        data, shift, values, run.first_chunk, run.count, last_chunk, last_bytes, longest,
        SHIFTED=shift > 0, WIDTH=LANES,
    )  # fmt: skip
