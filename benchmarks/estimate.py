"""How fast can the kernels be on a device that is not at hand? An upper bound, from counts and data sheets.

The kernels are compiled for the device, which needs none, and the instructions of their compiled code are counted. What
the counts cost at the least follows from the device's published rates. Nothing is run.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from benchmarks import Table
from rollproof.impl import kernels

ALU_LANES: Final = 64
ISSUED_LANES: Final = 128
"""Per clock and multiprocessor: integer additions, logical operations and shifts; and instructions of all kinds."""
ELSEWHERE: Final = re.compile(r"IMAD|LDG|STG|LDC|BRA|EXIT|NOP|MOV|CS2R|S2R|BAR|U[A-Z]")
"""Instructions that do not take the integer unit's time: multiply-adds, memory, control, and the uniform ones."""


@frozen
class Part:
    """A device, with the figures that its maker publishes."""

    name: str
    multiprocessors: int
    clock_hz: float
    bytes_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.multiprocessors} multiprocessors, {self.clock_hz / 1e9:g} GHz, "
            f"{self.bytes_per_s / 1e12:g} TB/s"
        )


PARTS: Final = (
    Part("H100 SXM", 132, 1.98e9, 3.35e12),
    Part("H200 SXM", 132, 1.98e9, 4.8e12),
)
CAPABILITY: Final = 90
CHUNK, BLOCK, VALUE = 1024, 64, 32
"""Bytes: BLAKE3's chunk and block, and a chaining value."""


# ── counting ────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Counted:
    """Instructions that one lane executes."""

    alu: int
    """For the integer unit."""
    all: int

    @classmethod
    def of(cls, names: Iterable[str]) -> Counted:
        """Count instruction names."""
        found = Counter(names)
        return cls(sum(count for name, count in found.items() if not ELSEWHERE.match(name)), found.total())


def instructions(sass: str) -> list[str]:
    """Return the names of the instructions of disassembled code, in order; a label is kept with its colon."""
    found = re.findall(r"^(LBB\d+:)|^\S+\t(?:@!?U?P\w+ )?([A-Z][A-Z0-9_]*)[^;]*?(LBB\d+)?;", sass, re.MULTILINE)
    return [label or f"{name} {target}".strip() for label, name, target in found]


def longest_loop(code: list[str]) -> list[str]:
    """Return the names of the instructions of the loop that is longest in the code."""
    labels = {line.removesuffix(":"): index for index, line in enumerate(code) if line.endswith(":")}
    loops: list[list[str]] = [
        code[labels[target] : index + 1]
        for index, line in enumerate(code)
        for _, _, target in [line.partition(" ")]
        if target in labels and labels[target] < index
    ]
    longest = max(loops, key=len)
    return names(longest)


def names(code: Iterable[str]) -> list[str]:
    """Return instruction names only."""
    return [line.partition(" ")[0] for line in code if not line.endswith(":")]


def compiled(kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any]) -> list[str]:
    """Return a kernel's instructions, compiled for compute capability 9.0. Raises Triton's error where that fails."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.tools.disasm import get_sass

    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a release's plans for a default that no integer kernel meets
        done = triton.compile(ASTSource(kernel, types, dict(constants)), target=GPUTarget("cuda", CAPABILITY, 32))
    return instructions(get_sass(done.asm["cubin"]))


@frozen
class Hashing:
    """The cost of hashing one chunk: compressing its blocks, and its share of the tree, one parent."""

    block: Counted
    parent: Counted

    @property
    def alu(self) -> int:
        """Integer instructions per chunk."""
        return CHUNK // BLOCK * self.block.alu + self.parent.alu

    @property
    def all(self) -> int:
        """Instructions per chunk."""
        return CHUNK // BLOCK * self.block.all + self.parent.all

    @property
    def traffic(self) -> float:
        """Bytes moved per byte hashed: the chunk, its value written; per parent two values read and one written."""
        return (CHUNK + VALUE + 3 * VALUE) / CHUNK


def hashing() -> Hashing:
    """Count the BLAKE3 kernels. Their lanes are threads: one lane has one thread."""
    from rollproof.impl.kernels import blake3

    numbers = dict.fromkeys(("shift", "first_chunk", "count", "last_chunk", "last_bytes", "longest"), "i32")
    pointers = {"data": "*u8", "values": "*i32", "parents": "*i32"}
    width = {"WIDTH": blake3.LANES}
    chunks = compiled(blake3._chunks, pointers | numbers, width | {"SHIFTED": False})
    parents = compiled(blake3._parents, pointers | numbers, width)
    return Hashing(Counted.of(longest_loop(chunks)), Counted.of(names(parents)))


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hash_bounds(cost: Hashing, part: Part) -> tuple[float, float, float]:
    """Return GB/s at most: by the integer unit, by instruction issue, by memory."""
    clocks = part.multiprocessors * part.clock_hz * CHUNK / 1e9
    return (
        clocks * ALU_LANES / cost.alu,
        clocks * ISSUED_LANES / cost.all,
        part.bytes_per_s / cost.traffic / 1e9,
    )


def gather_bound(source_bytes: int, part: Part) -> float:
    """Return published GB/s at most, where each int16 id was read from so many bytes; 0 for sentinels alone."""
    return part.bytes_per_s * 2 / (source_bytes + 2) / 1e9


def main() -> Iterable[Table]:
    """Yield the counts, and the bounds that follow, for hashing and for gathering."""
    if not kernels.available():
        return
    cost = hashing()
    yield Table(
        "estimate: instructions of the compiled BLAKE3 kernels, per lane",
        ("what", "integer unit", "all"),
        (
            ("a block of 64 bytes", cost.block.alu, cost.block.all),
            ("a parent of the tree", cost.parent.alu, cost.parent.all),
            ("a chunk of 1,024 bytes with its parent", cost.alu, cost.all),
            ("per byte", cost.alu / CHUNK, cost.all / CHUNK),
        ),
        (f"Compiled for compute capability {CAPABILITY / 10}. Bytes moved per byte hashed: {cost.traffic:.3f}.",),
        estimate=True,
    )
    yield Table(
        "estimate: media-blake3-v1 on a device, at most",
        ("device", "GB/s by integer unit", "GB/s by issue", "GB/s by memory", "GB/s at most"),
        tuple((part.name, *hash_bounds(cost, part), min(hash_bounds(cost, part))) for part in PARTS),
        (
            f"{'; '.join(map(str, PARTS))} (NVIDIA's data sheets; the highest clock).",
            f"Per clock and multiprocessor {ALU_LANES} integer operations (the CUDA programming guide's table of "
            f"arithmetic throughput) of {ISSUED_LANES} instructions issued.",
            "Not in the bound: launches, the last levels of a tree, which fill no device, and waiting for memory, each "
            "byte of which is taken to be read once.",
        ),
        estimate=True,
    )
    yield Table(
        "estimate: route gather on a device, at most",
        ("device", "from int8, published GB/s", "from int16, published GB/s", "from int32, published GB/s"),
        tuple((part.name, *(gather_bound(size, part) for size in (1, 2, 4))) for part in PARTS),
        ("Bytes moved per published byte: 1.5, 2 and 3, each read or written once. Memory is the limit.",),
        estimate=True,
    )
