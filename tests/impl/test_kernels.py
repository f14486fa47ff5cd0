"""The Triton kernels: in Triton's interpreter everywhere, on a device where there is one."""

from __future__ import annotations

import os
import random

import blake3 as public
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before the imports below

from rollproof.impl import retained
from rollproof.impl.assembly import gather_routes, lay_out
from rollproof.impl.kernels import blake3 as kernels
from rollproof.impl.kernels.blake3 import blake3_hex
from rollproof.impl.kernels.gather import Piece, gather
from rollproof.impl.plan import Use
from rollproof.properties.adapters.tensors import from_torch
from rollproof.spec.retained import media_digest as spec_digest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

CHUNK = kernels.CHUNK

slow_to_trace = pytest.mark.untraced
"""For tests whose time goes into the interpreter, which coverage would make several times as long."""

deep = [pytest.mark.deep] if DEVICE == "cpu" else []
"""For sizes that take Triton's interpreter seconds and a device no time at all."""


def small_and(*sizes):
    """Return parameters of which all but the first are deep."""
    first, *others = sizes
    return [first, *(pytest.param(*size if isinstance(size, tuple) else (size,), marks=deep) for size in others)]


def random_bytes(size, seed=0):
    data = bytearray(random.Random(seed).randbytes(max(size, 1)))
    return torch.frombuffer(data, dtype=torch.uint8)[:size].to(DEVICE)


def hashed_by_the_package(segments):
    whole = b"".join(
        segment if isinstance(segment, bytes) else segment.cpu().view(torch.uint8).numpy().tobytes()
        for segment in segments
    )
    return public.blake3(whole).hexdigest()


# ── BLAKE3 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [0, 1, 64, 65])
def test_lengths_around_blocks(size):
    data = random_bytes(size)
    assert blake3_hex([data], DEVICE) == hashed_by_the_package([data])


@slow_to_trace
@pytest.mark.parametrize("size", small_and(CHUNK + 1, CHUNK - 1, CHUNK, 2 * CHUNK + 1))
def test_lengths_around_chunks(size):
    data = random_bytes(size)
    assert blake3_hex([data], DEVICE) == hashed_by_the_package([data])


@slow_to_trace
@pytest.mark.parametrize("chunks", small_and(2, 3, 4, 13))
def test_trees_that_are_full_and_that_are_not(chunks):
    data = random_bytes(chunks * CHUNK - 5)
    assert blake3_hex([data], DEVICE) == hashed_by_the_package([data])


@slow_to_trace
@pytest.mark.parametrize(("lanes", "chunks"), small_and((1, 2), (1, 4), (8, 17)))
def test_trees_whose_levels_take_more_than_one_program(monkeypatch, lanes, chunks):
    monkeypatch.setattr(kernels, "LANES", lanes)
    data = random_bytes(chunks * CHUNK + 1)
    assert blake3_hex([data], DEVICE) == hashed_by_the_package([data])


@slow_to_trace
@pytest.mark.deep
def test_a_megabyte_and_more(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "LANES", 2048)  # the interpreter's time is per program
    data = random_bytes(2**20 + 12_345)
    assert blake3_hex([data], DEVICE) == hashed_by_the_package([data])


@slow_to_trace
@pytest.mark.parametrize(("offset", "chunks"), small_and((3, 0), (1, 2), (0, 2), (3, 2)))
def test_tensors_at_any_byte_between_other_bytes(offset, chunks):
    whole = random_bytes((chunks + 1) * CHUNK + 50)
    segments = [b"head", whole[offset : offset + chunks * CHUNK + 100], b"", b"between", whole[:3], b"t" * 70]
    assert blake3_hex(segments, DEVICE) == hashed_by_the_package(segments)


@slow_to_trace
@pytest.mark.parametrize("chunks", small_and(0, 1, 3))
def test_segments_that_end_at_borders(chunks):
    more = [random_bytes(chunks * CHUNK), b"z" * chunks * CHUNK]
    segments = [b"x" * CHUNK, *more, b"", random_bytes(0), b"y" * 8]
    assert blake3_hex(segments, DEVICE) == hashed_by_the_package(segments)


@slow_to_trace
def test_the_media_digest_of_tensors_on_a_device(monkeypatch):
    monkeypatch.setattr(retained, "_accelerator", lambda _: torch.device(DEVICE))
    pixels = torch.arange(140, dtype=torch.float32, device=DEVICE).bfloat16().reshape(1, 20, 7)
    tensors = {"imgs": pixels, "imgs_sizes": torch.tensor([[2, 3]], dtype=torch.int32), "strided": pixels[0, ::3].T}
    expected = spec_digest({name: from_torch(tensor.cpu()) for name, tensor in tensors.items()}, "media-blake3-v1")
    assert retained.media_digest(tensors, "media-blake3-v1") == expected
    assert retained.media_digest({"imgs": pixels[:, 1:]}, "media-blake3-v1") != retained.media_digest(
        {"imgs": pixels[:, :-1]}, "media-blake3-v1"
    )


@slow_to_trace
def test_nothing_but_headers_and_the_hash_moves(monkeypatch):
    tensors, moved = {"imgs": random_bytes(CHUNK), "video": random_bytes(64)}, []
    for name in ("cpu", "to"):
        original = getattr(torch.Tensor, name)

        def move(tensor, *arguments, original=original, name=name):
            moved.append((name, tensor.numel() * tensor.element_size()))
            return original(tensor, *arguments)

        monkeypatch.setattr(torch.Tensor, name, move)
    monkeypatch.setattr(retained, "_accelerator", lambda _: torch.device(DEVICE))
    retained.media_digest(tensors, "media-blake3-v1")
    assert [size for name, size in moved if name == "cpu"] == [32]
    assert sum(size for name, size in moved if name == "to") < CHUNK // 2


# ── gather ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_routes_of_several_dtypes_with_sentinels_between():
    shape = (3, 2)
    sources = [
        torch.randint(0, 100, (7, *shape), dtype=torch.int8),
        torch.randint(0, 30_000, (5, *shape), dtype=torch.int16),
        torch.randint(0, 30_000, (400, *shape), dtype=torch.int32),
    ]
    sources[2][0] = -1
    first, second, third = (source.to(DEVICE) for source in sources)
    row = torch.zeros((3 + 7 + 2 + 4 + 400, *shape), dtype=torch.int16, device=DEVICE)
    gather([Piece(18), Piece(42, first), Piece(12), Piece(24, second, 6), Piece(2400, third)], row, -1)
    gap = torch.full((3, *shape), -1)
    expected = torch.cat([gap, sources[0], gap[:2], sources[1][1:], sources[2]]).to(torch.int16)
    assert torch.equal(row.cpu(), expected)


def test_a_row_of_spans_is_laid_out_as_without_the_kernel():
    fragments = [torch.randint(0, 90, (tokens, 2, 3), dtype=torch.int8, device=DEVICE) for tokens in (5, 4)]
    used = [
        (Use(2, 0, 5), fragments[0]),
        (Use(3, 0, 0), None),
        (Use(1, 2, 2), torch.stack([fragments[1]] * 2, dim=-1)[..., 1]),
    ]
    kernel, plain = (torch.zeros((15, 2, 3), dtype=torch.int16, device=DEVICE) for _ in range(2))
    gather_routes(used, kernel)
    lay_out(used, plain)
    assert torch.equal(kernel, plain)
    assert kernel[2:7].equal(fragments[0].short())
    gather_routes([], plain[:0])


def test_patches_of_a_chain():
    parts = [torch.randn(count, 12).bfloat16() for count in (3, 1, 90)]
    row = torch.empty((94, 12), dtype=torch.bfloat16, device=DEVICE)
    gather([Piece(part.numel(), part.to(DEVICE)) for part in parts], row)
    assert torch.equal(row.cpu(), torch.cat(parts))


def test_sentinels_alone_and_nothing_at_all():
    row = torch.zeros((4, 2, 2), dtype=torch.int16, device=DEVICE)
    gather([Piece(16)], row, -1)
    assert bool((row == -1).all())
    gather([], row[:0])


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([Piece(3)], "got 3 elements, expected those of"),
        ([Piece(4, torch.zeros(6, dtype=torch.int16)[::2])], "expected a contiguous one"),
        ([Piece(4, torch.zeros(3, dtype=torch.int16))], "got elements 0 to 4, expected some of 3"),
        ([Piece(4, torch.zeros(9, dtype=torch.int16), 6)], "got elements 6 to 10, expected some of 9"),
        ([Piece(4, torch.zeros(4, dtype=torch.float64))], "float64, expected "),
    ],
)
def test_pieces_that_do_not_fit(pieces, message):
    with pytest.raises(ValueError, match=message):
        gather(pieces, torch.zeros(4, dtype=torch.int16))
