"""Proving many rules at once: each in a worker process, because a solver keeps one core busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollproof.properties.processes import nothing, processes, tell
from rollproof.properties.symbolic.proofs import Proof
from rollproof.properties.symbolic.registry import ITEMS
from rollproof.properties.symbolic.rule import Pair, Rule


def prove_all(
    items: Sequence[Rule | Pair], timeout: float, jobs: int, done: Callable[[Proof], None] = nothing
) -> list[Proof]:
    """Return the outcomes in the order of ``items``. ``done`` gets each as soon as it is known."""
    with processes(
        min(jobs, max(1, len(items))), preload=(__name__, "rollproof.properties.symbolic.prover")
    ) as workers:
        return workers.run(prove_named, [(item.name, timeout) for item in items], done)


def prove_named(name: str, timeout: float) -> Proof:
    """Prove one item of the registry, in a worker. CrossHair is imported only here."""
    from rollproof.properties.symbolic.prover import prove

    proof = prove(next(item for item in ITEMS if item.name == name), timeout)
    tell(proof)
    return proof
