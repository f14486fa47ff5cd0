"""How fast are the kernels on a CUDA device: hashing media, and gathering routes, against what they replace?

``python -m benchmarks --gpu`` runs it. Throughput is of the bytes that are hashed, or of the rows that are written.
"""

from __future__ import annotations

import hashlib
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeAlias

import torch

from benchmarks import Table
from rollproof.impl.assembly import gather_routes
from rollproof.impl.plan import Use
from rollproof.impl.retained import media_digest
from rollproof.spec.constants import MEDIA_BLAKE3, ROUTE_SENTINEL

NEEDS_CUDA: Final = True
HASHED_BYTES: Final = (2**24, 2**26, 2**28, 2**30)
ROUTED: Final = ((20, 1638, 48, 8), (256, 128, 48, 8))
"""(fragments, tokens of each, layers, top-k)."""
RUNS: Final = 20

Clock: TypeAlias = Callable[[Callable[[], object]], float]
"""How many seconds a call takes."""
Used: TypeAlias = Sequence[tuple[Use, torch.Tensor | None]]


def cuda_clock(call: Callable[[], object]) -> float:
    """Return the median of ``RUNS`` runs, by the device's own events, after two that are not counted."""
    cuda: Any = torch.cuda
    found: list[float] = []
    for _ in range(RUNS + 2):
        started, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        started.record()
        call()
        ended.record()
        cuda.synchronize()
        found.append(started.elapsed_time(ended) / 1e3)
    return statistics.median(found[2:])


def about(device: torch.device) -> str:
    """Return the device, its driver and the libraries."""
    if device.type != "cuda":
        return f"{device}, torch {torch.__version__}, triton {version('triton')}"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(query, check=False, capture_output=True, text=True) if shutil.which(query[0]) else None
    driver = found.stdout.split() if found is not None else []
    return (
        f"{torch.cuda.get_device_name(device)}, driver {driver[0] if driver else 'unknown'}, "
        f"CUDA {torch.version.cuda}, torch {torch.__version__}, triton {version('triton')}"
    )


def throughput(contestants: Mapping[str, Callable[[], object]], size: int, clock: Clock) -> list[float]:
    """Return the GB/s of ``size`` bytes by contestant, in their order."""
    return [size / 1e9 / clock(call) for call in contestants.values()]


# ── hashing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def hashed_on_host(pixels: torch.Tensor) -> str:
    """Hash without a kernel: a copy to the host, and SHA-256 over it."""
    return hashlib.sha256(pixels.view(torch.uint8).cpu().numpy().data).hexdigest()


def hash_table(device: torch.device, sizes: Iterable[int], clock: Clock) -> Table:
    """Measure media-blake3-v1 on the pixels' device, against the host, and against copying them within the device."""
    rows = []
    for size in sizes:
        pixels = torch.randint(0, 2**15, (size // 2,), dtype=torch.int16, device=device).view(torch.bfloat16)
        tensors, room = {"imgs": pixels}, torch.empty_like(pixels)
        if media_digest(tensors, MEDIA_BLAKE3) != media_digest({"imgs": pixels.cpu()}, MEDIA_BLAKE3):
            raise AssertionError("device and host do not agree on the hash")
        contestants: dict[str, Callable[[], object]] = {
            "here": partial(media_digest, tensors, MEDIA_BLAKE3),
            "host": partial(hashed_on_host, pixels),
            "copy": partial(room.copy_, pixels),
        }
        here, host, copy = throughput(contestants, size, clock)
        rows.append((size, here, host, copy, here / host, here / copy))
    return Table(
        "media-blake3-v1 on the device",
        ("bytes", "hash GB/s", "copy to host + SHA-256 GB/s", "device copy GB/s", "hash x host", "hash x copy"),
        tuple(rows),
        (about(device), f"Medians of {RUNS} runs by the device's events. The hash is that of the host."),
    )


# ── gathering ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fragments_of(device: torch.device, count: int, tokens: int, layers: int, top_k: int) -> Used:
    """Return spans whose fragments cover them; every fourth has one token more, without a route, before it."""
    ids = [torch.randint(0, 128, (tokens, layers, top_k), dtype=torch.int16, device=device) for _ in range(count)]
    return [(Use(int(index % 4 == 3), 0, tokens), routes) for index, routes in enumerate(ids)]


def gathered_by_torch(used: Used, row: torch.Tensor) -> torch.Tensor:
    """Return the same row by torch's own assignments, one per piece."""
    position = 0
    for use, routes in used:
        row[position : position + use.unrouted] = ROUTE_SENTINEL
        position += use.unrouted
        if routes is not None:
            row[position : position + use.rows] = routes[use.first : use.first + use.rows]
        position += use.rows
    return row


def gather_table(device: torch.device, shapes: Iterable[tuple[int, int, int, int]], clock: Clock) -> Table:
    """Measure the gather kernel against torch's assignments, and against copying the finished row."""
    rows = []
    for shape in shapes:
        used = fragments_of(device, *shape)
        length = sum(use.unrouted + use.rows for use, _ in used)
        row, other = (torch.zeros((length, *shape[2:]), dtype=torch.int16, device=device) for _ in range(2))
        gather_routes(used, row)
        if not torch.equal(row, gathered_by_torch(used, other)):
            raise AssertionError("the kernel and torch do not agree on the row")
        contestants: dict[str, Callable[[], object]] = {
            "kernel": partial(gather_routes, used, row),
            "torch": partial(gathered_by_torch, used, row),
            "copy": partial(other.copy_, row),
        }
        kernel, plain, copy = throughput(contestants, row.nbytes, clock)
        title = "{} fragments x {} tokens x {} layers x {}".format(*shape)
        rows.append((title, row.nbytes, kernel, plain, copy, kernel / plain, kernel / copy))
    return Table(
        "route gather on the device",
        ("row", "bytes", "kernel GB/s", "torch GB/s", "device copy GB/s", "kernel x torch", "kernel x copy"),
        tuple(rows),
        (about(device), "Bytes of the row: each is read once and written once."),
    )


def main() -> Iterable[Table]:
    """Yield both tables, on the current CUDA device."""
    device = torch.device("cuda", torch.cuda.current_device())
    yield hash_table(device, HASHED_BYTES, cuda_clock)
    yield gather_table(device, ROUTED, cuda_clock)
