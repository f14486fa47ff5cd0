"""Proving many rules at once: each in a worker process, because a solver takes one core and keeps it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from rollproof.properties.symbolic.proofs import Proof
from rollproof.properties.symbolic.registry import ITEMS
from rollproof.properties.symbolic.rule import Pair, Rule


def prove_all(
    items: Sequence[Rule | Pair], timeout: float, jobs: int, done: Callable[[Proof], None] = lambda proof: None
) -> list[Proof]:
    """The outcomes in the order of ``items``. ``done`` is told about each as soon as it is there."""
    with ProcessPoolExecutor(min(jobs, max(1, len(items))), worker_context()) as pool:
        futures = [pool.submit(prove_named, item.name, timeout) for item in items]
        for future in as_completed(futures):
            done(future.result())
        return [future.result() for future in futures]


def prove_named(name: str, timeout: float) -> Proof:
    """In a worker: prove one item of the registry. CrossHair is imported here, and nowhere else."""
    from rollproof.properties.symbolic.prover import prove

    return prove(next(item for item in ITEMS if item.name == name), timeout)


def worker_context() -> Any:
    """Processes that inherit what is slow to import, where the platform can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "rollproof.properties.symbolic.prover"])
    return context
