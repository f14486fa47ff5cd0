"""What does a generation cost that is cut, by the number of its cuts?

A call of 2,048 prompt and 32,768 generated tokens is cut evenly, restored from its last cut, and completed. A cut
stages what was generated since the one before; beside it stands a design that stages the whole prefix anew each time.
Without the restore, an engine that generates 1,000 tokens per second and call needs 33 seconds for the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any, Final

import numpy as np
from attrs import define, field

from benchmarks import Table
from rollproof.impl.columns import column_rows
from rollproof.impl.cuts import CutStore, Generation
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.spec.cut_records import CutOrder, DurablePrefix, RunningCall

PROMPT: Final = 2_048
GENERATED: Final = 32_768
CUTS: Final = (1, 4, 16, 64)


@define(eq=False)
class CountingPlane:
    """The memory's data plane, and how many bytes were put."""

    inner: MemoryDataPlane = field(factory=MemoryDataPlane)
    written: int = 0

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows."""
        for name, column in fields.items():
            self.written += sum(row.numel() * row.element_size() for row in column_rows(column, name))
        self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows."""
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows."""
        self.inner.clear_samples(sample_ids, partition_id)


def measure(cuts: int, prompt: int, generated: int) -> tuple[Any, ...]:
    """Return one row of the table: cuts, bytes, milliseconds."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 150_000, prompt + generated).tolist()
    log_probs = (-rng.random(generated)).tolist()
    call = RunningCall("g_g0", "c", None, None, (), tuple(ids[:prompt]))
    plane = CountingPlane()
    store, generation, step = CutStore(plane, "staging"), Generation(call), generated // cuts
    bytes_again, last, acknowledged = 0, 0.0, None
    for end in range(step, generated + 1, step):
        tokens = slice(end - step, end)
        generation.append(ids[prompt:][tokens], log_probs[tokens], 0)
        begin = perf_counter()
        acknowledged = store.cut(generation, CutOrder("k", generated + 1))
        last = perf_counter() - begin
        bytes_again += 16 * (prompt + end)  # an id, a mask and a log-prob per token
    assert isinstance(acknowledged, DurablePrefix)
    written, begin = plane.written, perf_counter()
    restored = CutStore(plane, "staging").restore(call, acknowledged, weight_version=0)
    restore = perf_counter() - begin
    assert restored.tokens_left == 1
    begin = perf_counter()
    store.complete(restored.generation, "c2")
    complete = perf_counter() - begin
    return cuts, written, bytes_again, written / (prompt + generated), 1e3 * last, 1e3 * restore, 1e3 * complete


def main(prompt: int = PROMPT, generated: int = GENERATED, cuts: Iterable[int] = CUTS) -> Iterable[Table]:
    """Yield one table: bytes of the cuts, and the time of the last one, of the restore and of the completion."""
    yield Table(
        f"generation cuts of a call of {prompt:,} prompt and {generated:,} generated tokens",
        ("cuts", "bytes written", "… whole prefixes", "bytes per token", "last cut ms", "restore ms", "complete ms"),
        tuple(measure(count, prompt, generated) for count in cuts),
        (
            "Whole prefixes: 16 bytes per token of the prefix at each cut, columns without tokens left out.",
            "One run each, over the memory's data plane. The last cut hashes the whole prefix, writes its part.",
        ),
    )
