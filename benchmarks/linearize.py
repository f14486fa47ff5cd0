"""How long does a rollout take, from its staged columns to its canonical row?

Ours against nemo-gym, and against SHA-256 alone. Every contestant gets the same batched answer of the data plane and
the same receipt. The canonical row is the token, mask and log-probability columns of the terminal chain, verified in
the order of section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from benchmarks import ROUND_SECONDS, Table, Timing, race
from benchmarks.inputs import chain_of, rollout_of
from rollproof.impl.lineage import verify
from rollproof.impl.records import read_receipt
from rollproof.impl.staged import decode
from rollproof.properties.nemo_gym.adapter import load_staging, row_of
from rollproof.properties.nemo_gym.source import snapshots_of

SHAPES: Final = ((20, 1600), (1000, 32), (20, 16_000))
"""(calls, tokens per call)."""
ROUNDS: Final = 15
OURS, THEIRS, READY = "ours", "nemo-gym", "nemo-gym, snapshots ready"
SHA: Final = "SHA-256 alone"
OURS_JSON, THEIRS_JSON = "ours, receipt from JSON", "nemo-gym, receipt from JSON"


def measure(calls: int, tokens: int, rounds: int = ROUNDS) -> tuple[dict[str, Timing], int]:
    """Return timings by contestant, and how many bytes must be hashed."""
    work, staging = rollout_of(chain_of(calls), tokens), load_staging()
    columns, model = read_receipt(work.receipt), staging.RolloutReceipt.model_validate(work.receipt)
    snapshots, buffers = snapshots_of(work.answer), work.hashed
    contestants: dict[str, Callable[[], Any]] = {
        OURS: lambda: verify(columns, decode(work.answer)),
        THEIRS: lambda: staging.verify_and_linearize(model, snapshots_of(work.answer)),
        READY: lambda: staging.verify_and_linearize(model, snapshots),
        OURS_JSON: lambda: verify(read_receipt(work.receipt), decode(work.answer)),
        THEIRS_JSON: lambda: staging.verify_and_linearize(
            staging.RolloutReceipt.model_validate(work.receipt), snapshots_of(work.answer)
        ),
        SHA: lambda: [hashlib.sha256(buffer).digest() for buffer in buffers],
    }
    if contestants[OURS]().record() != row_of(contestants[THEIRS]()):
        raise AssertionError("the contestants do not agree on the row")
    return race(contestants, rounds), sum(map(len, buffers))


def main() -> Iterable[Table]:
    """Yield one table per shape."""
    for calls, tokens in SHAPES:
        timings, size = measure(calls, tokens)
        ours = {name: timings[OURS_JSON if name == THEIRS_JSON else OURS] for name in timings}
        rows = tuple(
            (name, 1e3 * timing.median, *timing.over(ours[name]), timing.over(timings[SHA])[1])
            for name, timing in timings.items()
        )
        yield Table(
            f"staged columns to canonical row: {calls:,} calls x {tokens:,} tokens, {size / 1e6:.1f} MB to hash",
            ("contestant", "median ms", "min x ours", "median x ours", "median x SHA-256"),
            rows,
            (
                f"{ROUNDS} rounds, interleaved; each contestant repeats for {1e3 * ROUND_SECONDS:.0f} ms per round.",
                "Inside the clock: from the data plane's batched answer to the verified row.",
                "nemo-gym: columns to lists, its snapshots built and validated (what a StagingSource does), then "
                "verify_and_linearize. Snapshots ready: verify_and_linearize alone.",
                "The receipt is parsed before the clock starts, except where the name says from JSON; those two are "
                "compared with each other.",
            ),
        )
