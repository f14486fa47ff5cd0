"""Is the cost of verifying a rollout linear: in its calls, chained or side by side, and in its tokens?

The time from the data plane's batched answer to the verified row, over sizes that grow tenfold. A rule that walks back
to the root for every call, or hashes every prefix anew, shows as a slope of 2.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from benchmarks import ROUND_SECONDS, UPPER_SIZES, Plot, Table, race, slope
from benchmarks.inputs import StagedRollout, chain_of, rollout_of, star_of
from rollproof.impl.lineage import verify
from rollproof.impl.records import read_receipt
from rollproof.impl.staged import decode
from rollproof.properties.nemo_gym.adapter import load_staging, row_of
from rollproof.properties.nemo_gym.source import snapshots_of

OURS, THEIRS, SHA = "ours ms", "nemo-gym ms", "SHA-256 alone ms"
ROUNDS: Final = 5
ONCE_SECONDS: Final = 1.0
"""Where nemo-gym takes longer than this for one rollout, it runs once."""
PEER_SECONDS: Final = 6.0
"""Where it would take longer than this if its cost were linear, it stops."""


@frozen
class Series:
    """Rollouts that grow in one direction."""

    name: str
    title: str
    sizes: tuple[int, ...]
    rollout: Callable[[int], StagedRollout]


def series() -> tuple[Series, ...]:
    """Return the three directions."""
    calls, tokens = tuple(10**power for power in range(6)), tuple(10**power for power in range(3, 8))
    return (
        Series("calls", "calls in one chain, 16 tokens each", calls, lambda size: rollout_of(chain_of(size), 16)),
        Series(
            "leaves", "calls that continue one root, 16 tokens each", calls, lambda size: rollout_of(star_of(size), 16)
        ),
        Series("tokens", "tokens in a chain of 20 calls", tokens, lambda size: rollout_of(chain_of(20), size // 20)),
    )


def contestants_of(rollout: StagedRollout) -> dict[str, Callable[[], Any]]:
    """Return what is timed over one rollout."""
    staging, receipt = load_staging(), read_receipt(rollout.receipt)
    model = staging.RolloutReceipt.model_validate(rollout.receipt)
    return {
        OURS: lambda: verify(receipt, decode(rollout.answer)),
        THEIRS: lambda: staging.verify_and_linearize(model, snapshots_of(rollout.answer)),
        SHA: lambda: [hashlib.sha256(buffer).digest() for buffer in rollout.hashed],
    }


def measure(rollout: StagedRollout, without: Iterable[str] = (), rounds: int = ROUNDS) -> Mapping[str, float]:
    """Return the fewest seconds by contestant. Raises ``AssertionError`` where two of them find different rows."""
    contestants = {name: run for name, run in contestants_of(rollout).items() if name not in without}
    once: dict[str, float] = {}
    if THEIRS in contestants:
        started = time.perf_counter()
        row = contestants[THEIRS]()
        seconds = time.perf_counter() - started
        if contestants[OURS]().record() != row_of(row):
            raise AssertionError("the contestants do not agree on the row")
        if seconds > ONCE_SECONDS:
            once[THEIRS] = seconds
            del contestants[THEIRS]
    return {name: timing.best for name, timing in race(contestants, rounds).items()} | once


def grow(one: Series, budget: float = PEER_SECONDS, rounds: int = ROUNDS) -> Table:
    """Measure one direction, size by size; from where nemo-gym would take more than ``budget`` seconds, without it."""
    rows: list[tuple[Any, ...]] = []
    stopped: tuple[str, ...] = ()
    expected = 0.0
    for index, size in enumerate(one.sizes):
        if expected > budget and not stopped:
            stopped = (f"nemo-gym stops before {size:,}: at a linear cost it would take {expected:.0f} s.",)
        seconds = measure(one.rollout(size), (THEIRS,) if stopped else (), rounds)
        if THEIRS in seconds and index + 1 < len(one.sizes):
            expected = seconds[THEIRS] * one.sizes[index + 1] / size
        times = (1e3 * seconds[name] if name in seconds else None for name in (OURS, THEIRS, SHA))
        ratio = seconds[THEIRS] / seconds[OURS] if THEIRS in seconds else None
        rows.append((size, *times, ratio, 1e6 * seconds[OURS] / size))
    plot = Plot(f"scaling-{one.name}", (OURS, THEIRS, SHA), one.title, "milliseconds")
    return Table(f"staged columns to verified row: {one.title}", COLUMNS, tuple(rows), (*stopped, *NOTES), plot)


COLUMNS: Final = ("size", OURS, THEIRS, SHA, "nemo-gym x ours", "ours µs per unit")
NOTES: Final = (
    f"The fastest of {ROUNDS} rounds, interleaved; each contestant repeats for {1e3 * ROUND_SECONDS:.0f} ms per round. "
    f"nemo-gym runs once where it takes more than {ONCE_SECONDS:g} s.",
    "Wherever nemo-gym runs, both rows are compared; the receipt is parsed before the clock starts.",
)


def slopes(tables: Sequence[tuple[Series, Table]]) -> Table:
    """Tabulate how each contestant's time grows over its largest sizes."""
    rows = []
    for one, table in tables:
        for name in (OURS, THEIRS, SHA):
            points = table.line(name)[-UPPER_SIZES:]
            span = f"{points[0][0]:,} to {points[-1][0]:,}"
            rows.append((f"{one.title}: {name.removesuffix(' ms')}", span, slope(points)))
    return Table(
        "how the time grows",
        ("series", "sizes", "log-log slope"),
        tuple(rows),
        (f"Least squares over the {UPPER_SIZES} largest sizes that were measured. 1 is linear, 2 is quadratic.",),
    )


def main() -> Iterable[Table]:
    """Yield one table per direction, and one of all slopes."""
    done = []
    for one in series():
        done.append((one, grow(one)))
        yield done[-1][1]
    yield slopes(done)
