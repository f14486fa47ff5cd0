"""How many groups per second over TransferQueue: with one finalizer, and with a pool of two?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks import Table
from rollproof.impl.actor import settle
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue
from rollproof.impl.pool import FinalizerPool, FinalizerSettings
from rollproof.impl.recovery import run
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.model import STAGING, TRAIN, Group, RolloutPlan, group_of

ROUNDS = 3
GROUPS = 4
ROLLOUTS = 8
CALLS = ((500, 500),) + ((20, 380),) * 9
"""(carry, generation) of a rollout's calls: 5,000 tokens."""

ARGUMENTS = {"partition_id": TRAIN, "staging_partition": STAGING, "pad_token_id": 0, "max_seq_len": 8192}


BY_ROLLOUT, BY_GROUP, POOL = "one, in this process, reads by rollout", "… reads by group", "pool of 2, reads by group"


def fill(plane: Any, groups: list[Group]) -> None:
    for group in groups:
        stage_rows(plane, STAGING, group.rows)


def here(plane: Any, groups: list[Group], reads: str) -> int:
    finalizer = FinalizerSettings(plane, ARGUMENTS | {"reads": reads}).reassembler()
    return sum(run(finalizer, group.request).valid_row_count for group in groups)


def timed(plane: Any, groups: list[Group], finalize: Callable[[], int]) -> float:
    """Return the groups per second of one round; staging, and clearing what was published, are not timed."""
    fill(plane, groups)
    started = time.perf_counter()
    valid = finalize()
    seconds = time.perf_counter() - started
    assert valid == len(groups) * ROLLOUTS
    for group in groups:
        plane.clear_samples(list(group.sample_ids), TRAIN)
    return len(groups) / seconds


def main() -> Iterable[Table]:
    groups = [group_of(number, [RolloutPlan(CALLS)] * ROLLOUTS, []) for number in range(GROUPS)]
    with local_queue():
        queue = TransferQueueDataPlane()
        pool = FinalizerPool(FinalizerSettings(queue, ARGUMENTS | {"reads": "group"}), size=2)

        def pooled() -> int:
            outcomes = pool.finalize(group.request for group in groups)
            return sum(outcome.group.valid_row_count for outcome in outcomes if outcome.group is not None)

        contestants: dict[str, Callable[[], int]] = {
            BY_ROLLOUT: lambda: here(queue, groups, "rollout"),
            BY_GROUP: lambda: here(queue, groups, "group"),
            POOL: pooled,
        }
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        settle()
        for index in range(ROUNDS + 1):
            for name, finalize in contestants.items():
                rate = timed(queue, groups, finalize)
                if index:
                    rates[name].append(rate)
        pool.close()
        queue.close()
    ratios = {
        name: [rate / one for rate, one in zip(found, rates[BY_GROUP], strict=True)] for name, found in rates.items()
    }
    tokens = ROLLOUTS * sum(map(sum, CALLS))
    yield Table(
        f"Finalizing groups of {ROLLOUTS} rollouts of {len(CALLS)} calls, {tokens:,} tokens each",
        ("finalizers", "median groups/s", "best groups/s", "x one, by group"),
        tuple(
            (name, statistics.median(found), max(found), statistics.median(ratios[name]))
            for name, found in rates.items()
        ),
        (
            f"{ROUNDS} rounds of {GROUPS} groups, in turn, after one that is not measured. Inside the clock: reads, "
            "verification, assembly, put and clear. Staging is outside.",
            "x one, by group: against one finalizer that reads by group, the median over the rounds; of the pool it "
            f"was {min(ratios[POOL]):.2f} to {max(ratios[POOL]):.2f}.",
            "Queue, storage units and finalizers share this machine's processors.",
        ),
    )
