"""What does a generation cut cost that keeps a copy of a call's pixels, or their hash?

The copy is staged at the cut, read back at the restore, and compared with the freshly processed pixels. The hash is
staged instead; at the restore the fresh pixels are hashed again. Both run here in one process, where a copy costs no
network: what the hash saves on a real data plane is the bytes in the second and third column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import torch

from benchmarks import Table, race
from rollproof.impl.patches import image_bundle
from rollproof.impl.retained import media_digest

SIDE: Final = 1024
PATCH: Final = 16
IMAGES: Final = (1, 4, 16, 64)
ROUNDS: Final = 5


def bundle(images: int) -> dict[str, torch.Tensor]:
    """Return so many images of 1024 x 1024 pixels in bfloat16, packed."""
    generator = torch.Generator().manual_seed(images)
    return image_bundle(
        [torch.rand(3, SIDE, SIDE, generator=generator).to(torch.bfloat16) for _ in range(images)], PATCH
    )


def copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a copy of the pixels, as staging holds it, or as reading it gives."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def restored_from_copy(staged: dict[str, torch.Tensor], fresh: dict[str, torch.Tensor]) -> bool:
    """Read the copy back and compare."""
    read = copied(staged)
    return all(torch.equal(read[name], fresh[name]) for name in fresh)


def restored_from_hash(staged: str, fresh: dict[str, torch.Tensor]) -> bool:
    """Hash the fresh pixels and compare."""
    return media_digest(fresh) == staged


def hashed(parts: list[memoryview]) -> str:
    """Hash the bytes alone."""
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def main() -> Iterable[Table]:
    """Yield one table: bytes staged at the cut, and the time of the cut and of the restore."""
    rows = []
    for images in IMAGES:
        fresh = bundle(images)
        staged, digest = copied(fresh), media_digest(fresh)
        plain = [tensor.view(torch.uint8).reshape(-1).numpy().data for tensor in fresh.values()]
        size = sum(len(part) for part in plain)

        contestants: dict[str, Callable[[], object]] = {
            "cut by copy": partial(copied, fresh),
            "cut by hash": partial(media_digest, fresh),
            "restore by copy": partial(restored_from_copy, staged, fresh),
            "restore by hash": partial(restored_from_hash, digest, fresh),
            "hashlib": partial(hashed, plain),
        }
        timings = race(contestants, ROUNDS)
        throughput = timings["hashlib"].over(timings["cut by hash"])[1]
        times = (1e3 * timings[name].median for name in contestants if name != "hashlib")
        rows.append((images, size, len(digest), *times, throughput))
    yield Table(
        f"retained media: images of {SIDE} x {SIDE} in bfloat16, patches of {PATCH}",
        (
            "images",
            "bytes copied",
            "bytes of hash",
            "cut, copy ms",
            "cut, hash ms",
            "restore, copy ms",
            "restore, hash ms",
            "hash speed x hashlib",
        ),
        tuple(rows),
        (
            f"Medians of {ROUNDS} rounds, interleaved, in one process: a copy here is a copy in memory.",
            "Restore by copy: read back, then torch.equal. hashlib: SHA-256 over the same bytes.",
        ),
    )
