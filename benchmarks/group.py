"""How many groups per second does a finalizer finish, and how much does a second core help?

Every contestant is a process that may use so many cores and no others; they take turns, so that nobody competes.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks import Table, timed
from benchmarks.inputs import STAGING, TRAIN, PreparedPlane, StagedGroup, fill, group_of
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler

SHAPES: Final = ((16, 20, 1600), (16, 20, 16_000))
"""Rollouts, calls of each, tokens of each call."""
TOKENS: Final = 2_500_000
"""Groups are finalized for about so many per round."""
ROUNDS: Final = 7
PREPARED, MEMORY, SHA = "prepared answers", "memory data plane", "SHA-256 alone"


def finalizers(group: StagedGroup) -> dict[str, Callable[[], float]]:
    """Return, by data plane, what finalizes the group once, and what only hashes it; both return their seconds."""
    prepared, memory = PreparedPlane(group), MemoryDataPlane()
    buffers = [buffer for rollout in group.rollouts for buffer in rollout.hashed]

    def over_memory() -> float:
        fill(memory, group)
        seconds = timed(lambda: group.finalize(finalizer(memory)), 1)
        memory.clear_samples(None, TRAIN)
        return seconds

    return {
        PREPARED: lambda: timed(lambda: group.finalize(finalizer(prepared)), 1),
        MEMORY: over_memory,
        SHA: lambda: timed(lambda: [hashlib.sha256(buffer).digest() for buffer in buffers], 1),
    }


def finalizer(plane: Any) -> RolloutReassembler:
    return RolloutReassembler(plane, partition_id=TRAIN, staging_partition=STAGING, pad_token_id=0, max_seq_len=2**31)


def serve(channel: Any, shape: tuple[int, int, int], groups: int) -> None:
    """Finalize on request: per data plane named in ``channel``, answer with the mean seconds over some groups."""
    run = finalizers(group_of(*shape))
    for warm_up in run.values():
        warm_up()
    channel.send(None)
    while (name := channel.recv()) is not None:
        gc.collect()
        channel.send(statistics.fmean(run[name]() for _ in range(groups)))


@contextmanager
def on_cores(cores: Sequence[int], shape: tuple[int, int, int], groups: int) -> Iterator[Callable[[str], float]]:
    """Start a process that may use these cores: call it with a data plane for the seconds per group."""
    ours, theirs = multiprocessing.Pipe()
    mine = os.sched_getaffinity(0)
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, shape, groups), daemon=True)
    os.sched_setaffinity(0, cores)  # a child inherits it before it starts any thread
    try:
        process.start()
    finally:
        os.sched_setaffinity(0, mine)
    theirs.close()

    def seconds(name: str) -> float:
        ours.send(name)
        return float(ours.recv())

    try:
        ours.recv()
        yield seconds
        ours.send(None)
        process.join()
    finally:
        ours.close()
        process.kill()


def measure(
    counts: Sequence[int], shape: tuple[int, int, int], groups: int, rounds: int = ROUNDS
) -> dict[tuple[str, int], list[float]]:
    """Return the seconds per group, by contestant and count of cores, round by round."""
    cores = sorted(os.sched_getaffinity(0))
    found: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        run = {count: stack.enter_context(on_cores(cores[:count], shape, groups)) for count in counts}
        for _ in range(rounds):
            for name in (PREPARED, MEMORY, SHA):
                for count, seconds in run.items():
                    if name != SHA or count == 1:
                        found.setdefault((name, count), []).append(seconds(name))
    return found


def main() -> Iterable[Table]:
    """Yield a table per shape: each data plane on one core and on two, where the machine has two."""
    counts = (1, 2)[: len(os.sched_getaffinity(0))]
    for shape in SHAPES:
        rollouts, calls, tokens = shape
        groups = max(1, TOKENS // (rollouts * calls * tokens))
        found = measure(counts, shape, groups)
        hashing = statistics.median(found[SHA, 1])
        rows = []
        for (name, count), seconds in found.items():
            speedups = [one / here for one, here in zip(found[name, 1], seconds, strict=True)]
            median, alone = statistics.median(seconds), statistics.median(found[name, 1])
            possible = alone / max(alone - hashing, alone / 2) if count > 1 else 1.0
            rows.append((name, count, 1 / median, 1e3 * median, statistics.median(speedups), max(speedups), possible))
        yield Table(
            f"finalizing groups of {rollouts} rollouts of {calls} calls x {tokens:,} tokens",
            ("contestant", "cores", "groups/s", "ms", "speed-up", "best speed-up", "possible"),
            tuple(rows),
            (
                f"Medians of {ROUNDS} rounds of {groups} groups, in turn. Staging, and clearing, is not timed.",
                "Prepared answers: reading and writing cost nothing. Memory data plane: both copy every row.",
                "Speed-up: against one core in the same round. As many threads as the process has cores.",
                "Possible: if all hashing, and nothing else, ran in parallel with what needs the interpreter's lock.",
                "More finalizers, not more threads, is what uses more cores: see the pool.",
            ),
        )
