"""The spec's BLAKE3 is the public one, at every border of blocks, chunks and trees."""

from __future__ import annotations

import random

import blake3 as public
import pytest

from rollproof.spec.blake3 import BLOCK_BYTES, CHUNK_BYTES, blake3

BORDERS = sorted(
    {
        size + difference
        for size in (0, BLOCK_BYTES, *(CHUNK_BYTES * count for count in (1, 2, 3, 4, 5, 7, 8)))
        for difference in (-1, 0, 1)
        if size + difference >= 0
    }
)


@pytest.mark.parametrize("size", BORDERS)
def test_lengths_around_the_borders(size):
    data = random.Random(size).randbytes(size)
    assert blake3(data) == public.blake3(data).digest()


def test_chunks_are_told_apart_by_their_place():
    assert blake3(bytes(2 * CHUNK_BYTES)) != blake3(bytes(3 * CHUNK_BYTES))
    assert blake3(bytes(CHUNK_BYTES) + b"a" * CHUNK_BYTES) != blake3(b"a" * CHUNK_BYTES + bytes(CHUNK_BYTES))
