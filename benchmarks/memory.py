"""How much memory does finalizing a group take: from the staged columns to the published rows, in multiples of these?

Each figure is the growth of the resident set of a fresh process, at its highest, while one group is finalized: all of
it counts, whichever library asked for it. The data plane's own store is there before, and is not counted.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from benchmarks import Table
from benchmarks.inputs import STAGING, TRAIN, PreparedPlane, StagedGroup, group_of
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import named_columns

RUNS: Final = 3
TARGET: Final = 2.5
"""Times the published bytes."""


@frozen
class Shape:
    """A group to finalize."""

    title: str
    rollouts: int
    calls: int
    tokens: int
    routed_dims: tuple[int, int] | None = None

    def build(self) -> StagedGroup:
        """Return the group, staged."""
        return group_of(self.rollouts, self.calls, self.tokens, self.routed_dims)


SHAPES: Final = {
    "tokens": Shape("16 rollouts x 20 calls x 16,000 tokens", 16, 20, 16_000),
    "routes": Shape("16 rollouts x 16 calls x 2,048 tokens, routes of 16 layers x 8", 16, 16, 2048, (16, 8)),
    "tiny": Shape("2 rollouts x 2 calls x 100 tokens, routes of 2 layers x 2", 2, 2, 100, (2, 2)),
}
ANSWERS: Final = {False: "outside", True: "counted"}
"""Whether the rows that are read belong to the store, or are a copy that finalizing holds."""


def reassembler(plane: Any, shape: Shape) -> RolloutReassembler:
    """Return a finalizer over a plane, with direct router replay where there are routes."""
    return RolloutReassembler(
        plane,
        partition_id=TRAIN,
        staging_partition=STAGING,
        pad_token_id=0,
        max_seq_len=2**31,
        router_replay_enabled=shape.routed_dims is not None,
        routed_dims=shape.routed_dims,
    )


def published_bytes(fields: Any) -> int:
    """Return the size of the rows, column by column."""
    return sum(row.numel() * row.element_size() for _, rows in named_columns(fields) for row in rows)


def growth(call: Callable[[], object]) -> int:
    """Return how many bytes the resident set has grown at its highest while ``call`` ran. Linux."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what building the inputs left in the allocator would be used unseen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def status(name: str) -> int:
    """Return one figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(value)


def measure_here(shape: Shape, fresh: bool) -> tuple[int, int]:
    """Return the growth of this process while it finalizes one group, and the bytes of its rows."""
    warm = Shape("", 2, 2, 8, shape.routed_dims)
    warm_group = warm.build()
    warm_group.finalize(reassembler(PreparedPlane(warm_group), warm))
    group = shape.build()
    plane = PreparedPlane(group, fresh)
    finalizer = reassembler(plane, shape)
    grown = growth(lambda: group.finalize(finalizer))
    return grown, published_bytes(plane.put)


def measure(shape: str, fresh: bool) -> tuple[int, int]:
    """Measure in a fresh process, whose larger allocations are all its own: none is served from what was freed."""
    command = [sys.executable, "-m", "benchmarks.memory", shape, *(["--fresh"] if fresh else [])]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=environment, check=True, stdout=subprocess.PIPE)
    grown, published = json.loads(done.stdout)
    return grown, published


def main() -> Iterable[Table]:
    """Yield one table: every shape, with the rows that are read outside and inside the count."""
    rows = []
    for name in ("tokens", "routes"):
        for fresh, answers in ANSWERS.items():
            found = [measure(name, fresh) for _ in range(RUNS)]
            grown, published = max(found)
            rows.append((SHAPES[name].title, answers, published / 1e6, grown / 1e6, grown / published))
    yield Table(
        "peak memory of finalizing a group",
        ("group", "answers of the plane", "published MB", "peak growth MB", "x published"),
        tuple(rows),
        (
            f"The highest of {RUNS} runs, each in a process of its own: VmHWM, reset before, less VmRSS before.",
            "Counted: everything that the process holds at once beyond the staged rows, the published rows included.",
            "Answers outside: what a read returns is the store's own. Counted: it is a copy, as from a remote store.",
            f"At most {TARGET:g} is what we aim at.",
        ),
    )


if __name__ == "__main__":
    print(json.dumps(measure_here(SHAPES[sys.argv[1]], "--fresh" in sys.argv[2:])))
