"""Groups through TransferQueue and a pool of finalizers for minutes, with faults on: ``make soak``.

With ``CAPABILITY=boundary,sampler`` calls also stage routes with sidecars, and candidates.
Every row that is published is compared with the spec's row for what was truly staged; nothing may stay staged that
nobody owns; and the memory of all processes is tracked.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from attrs import asdict, define, field

from benchmarks.__main__ import machine
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue
from rollproof.impl.pool import FinalizerPool, FinalizerSettings, Outcome
from rollproof.properties.adapters.recording import published_rows
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.chaos import StormyPlane
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, Group, RolloutPlan, config_with, group_of
from rollproof.spec.constants import ROUTED_EXPERTS, TOPK_COLUMNS
from rollproof.spec.judge.area import Area
from rollproof.spec.plane import PublishedRow
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.staged import Row

REPORT = Path(__file__).parents[1] / "docs" / "evidence" / "soak.md"
COLUMNS = (
    *("input_ids", "input_lengths", "generation_logprobs", "token_mask", "sample_mask", "prompt_ids_for_adv"),
    *("total_reward", "mask_sample", "truncated"),
)
FLAWS = ("no receipt", "poisoned", "unstaged", "foreign")
FLAWS_OF = {Area.BOUNDARY: "no sidecar", Area.SAMPLER: "one candidate"}
SAMPLE_SECONDS = 10.0
INTRODUCTION = (
    "Written by `make soak`: groups staged, finalized and recovered over TransferQueue by a pool of two finalizers,",
    "every published row compared with the spec's. Each operation of a finalizer fails with the given probability:",
    "refused, timed out after it took effect, broken off half-way, answered wrongly (a row missing, twice, in",
    "another order, cut, with a bit changed, or lost from storage), or with the end of the process. One rollout in ten",
    "is staged with a flaw for which the contract wants a placeholder.",
    "",
    "A group that is given up comes back with its error, and what is left of it is discarded here. Where a read of its",
    "first attempt failed, nothing was written, and a trainer would ask for it again; after recoveries, it would do as",
    "[Operations](../operations.md#after-an-error) says. What must not happen is counted in the last line.",
)


@define(eq=False)
class Soak:
    """One soak: what it stages, the outcomes, and what was wrong."""

    queue: TransferQueueDataPlane
    seconds: float
    seed: int
    config: ReassemblerConfig = CONFIG
    flaws: tuple[str, ...] = FLAWS
    counts: Counter[str] = field(factory=Counter)
    given_up: Counter[tuple[str, bool]] = field(factory=Counter)
    """By the error's name, and whether there were recoveries before it."""
    wrong: list[str] = field(factory=list)
    groups: dict[str, Group] = field(factory=dict)
    memory: list[tuple[float, float]] = field(factory=list)
    """(seconds since the start, MiB over all processes)."""
    started: float = field(factory=time.monotonic)
    _number: int = 0
    _last: Group | None = None

    def requests(self) -> Iterator[GroupRequest]:
        """Stage a group and yield the request for it, until the time is up."""
        rng = random.Random(self.seed)
        while time.monotonic() - self.started < self.seconds:
            earlier = [] if self._last is None else [self._last]
            group = group_of(self._number, plans(rng, self.flaws), earlier, self.config)
            self._number += 1
            stage_rows(self.queue, STAGING, group.rows)
            self.groups[group.request.group_id] = group
            self._last = group
            self.sample()
            yield group.request

    def sample(self) -> None:
        """Record the memory of this process and all below it, now and then."""
        elapsed = time.monotonic() - self.started
        if not self.memory or elapsed - self.memory[-1][0] >= SAMPLE_SECONDS:
            me = psutil.Process()
            used = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    used += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self.memory.append((elapsed, used / 2**20))

    def take(self, outcome: Outcome, recovery: Any) -> None:
        """Check a group that was finished, and clear what is left of it, as trainer and workers would."""
        group = self.groups.pop(outcome.request.group_id)
        self.counts["groups"] += 1
        ids = list(group.sample_ids)
        if outcome.error is None:
            self.counts["published"] += 1
            self.counts["recovered"] += bool(outcome.recoveries)
            self._judge(group, ids)
        else:
            self.given_up[type(outcome.error).__name__, outcome.recoveries > 0] += 1
            recovery.discard(outcome.request)
        left = set(self.queue.sample_ids(STAGING)) & set(group.rows)
        if leaked := left & group.owned:
            self.wrong.append(f"{outcome.request.group_id}: still staged: {sorted(leaked)}")
        self.queue.clear_samples(sorted(left), STAGING)
        self.queue.clear_samples(ids, TRAIN)

    def _judge(self, group: Group, ids: list[str]) -> None:
        rows = rows_published(self.queue, group)
        if len(rows) != len(ids):
            self.wrong.append(f"{group.request.group_id}: {len(rows)} of {len(ids)} rows")
            return
        valid = frozenset(index for index, row in enumerate(rows) if row.columns["sample_mask"].values()[0] > 0)
        staged: dict[str, Row] = dict(group.rows)
        truth = group.valid(staged)
        self.counts["rows"] += len(ids)
        self.counts["rows that train"] += len(valid)
        self.counts["placeholders owed"] += len(ids) - len(truth)
        self.counts["placeholders by faults"] += len(truth - valid)
        if valid - truth or rows != group.published(valid, staged):
            self.wrong.append(f"{group.request.group_id}: rows that were not staged")


def rows_published(queue: TransferQueueDataPlane, group: Group) -> tuple[PublishedRow, ...]:
    """Return the rows of a group that are there, in order."""
    tags = queue.tags(TRAIN)
    there = [key for key in group.sample_ids if key in tags]
    answer = queue.get_samples(there, TRAIN, columns_of(group.config))
    return published_rows(answer, [dict(tags[key]) for key in there], CONFIG.pad_token_id)


def columns_of(config: ReassemblerConfig) -> list[str]:
    """Return the columns of published rows."""
    routes = [ROUTED_EXPERTS] if config.direct_routes else []
    return [*COLUMNS, *routes, *(TOPK_COLUMNS if config.top_logprobs else ())]


def plans(rng: random.Random, flaws: Sequence[str]) -> list[RolloutPlan]:
    """Draw a group of two to eight rollouts; one rollout in ten has a flaw."""
    return [
        RolloutPlan(
            tuple((rng.randrange(40), rng.randrange(1, 120)) for _ in range(rng.randrange(1, 6))),
            rng.choice(flaws) if rng.random() < 0.1 else "",
        )
        for _ in range(rng.randrange(2, 9))
    ]


def soak(minutes: float, rate: float, seed: int, capabilities: Sequence[Area] = ()) -> Soak:
    """Run one soak, with some capabilities on."""
    with local_queue():
        queue = TransferQueueDataPlane(60.0)
        config = config_with(capabilities)
        arguments = asdict(config, recurse=False)
        run = Soak(queue, 60 * minutes, seed, config, (*FLAWS, *(FLAWS_OF[one] for one in capabilities)))
        settings = FinalizerSettings(StormyPlane(queue, rate), arguments)
        recovery = FinalizerSettings(queue, arguments).recovery()
        pool = FinalizerPool(settings, size=2, in_flight=4, timeout_s=120.0, max_recoveries=8)
        try:
            for outcome in pool.finalize(run.requests()):
                run.take(outcome, recovery)
        finally:
            pool.close()
        for partition in (STAGING, TRAIN):
            if left := queue.sample_ids(partition):
                run.wrong.append(f"left in {partition} at the end: {left[:5]} ({len(left)} in all)")
        if run.groups:
            run.wrong.append(f"groups that were never finished: {sorted(run.groups)[:5]}")
        queue.close()
    return run


def totals(run: Soak) -> Iterator[str]:
    """Yield the lines of the report's table: the outcomes of the groups, and of the rows of published ones."""
    counts = run.counts
    lost = "placeholders for good rollouts, of which rows were lost or misread"
    yield f"| groups | {counts['groups']:,} |"
    yield f"| … published | {counts['published']:,} |"
    yield f"| … … of these after a recovery | {counts['recovered']:,} |"
    for (error, recovered), count in sorted(run.given_up.items()):
        when = "after recoveries" if recovered else "before anything was written"
        yield f"| … given up {when}: {error} | {count:,} |"
    yield f"| rows published | {counts['rows']:,} |"
    yield f"| … that train | {counts['rows that train']:,} |"
    yield f"| … placeholders that the contract wants | {counts['placeholders owed']:,} |"
    yield f"| … {lost} | {counts['placeholders by faults']:,} |"


def report(run: Soak, minutes: float, rate: float, seed: int, capabilities: Sequence[Area] = ()) -> str:
    """Return the soak's report, as Markdown."""
    used = [value for _, value in run.memory]
    third = max(1, len(used) // 3)
    about = ", ".join(f"{name} {value}" for name, value in machine().items())
    having = f", with {' and '.join(capabilities)}" if capabilities else ""
    lines = [
        f"# Soak{' with capabilities' if capabilities else ''}",
        "",
        *INTRODUCTION,
        "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}; {about}.",
        "",
        "| | |",
        "| --- | --- |",
        f"| requested | {minutes:g} minutes, {rate:.1%} of operations fail, seed {seed}{having} |",
        f"| ran | {(time.monotonic() - run.started) / 60:.1f} minutes |",
        *totals(run),
        f"| memory of all processes, median MiB: first third | {statistics.median(used[:third]):,.0f} |",
        f"| … middle third | {statistics.median(used[third : 2 * third] or used):,.0f} |",
        f"| … last third | {statistics.median(used[-third:]):,.0f} |",
        f"| wrong rows, leaked keys, lost groups | {len(run.wrong)} |",
        "",
        *(f"- {line}" for line in run.wrong[:20]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def capabilities_of(names: str) -> tuple[Area, ...]:
    """Return the capabilities with these names. Raises ``ValueError`` for one that no finalizer has."""
    found = tuple(map(Area, names.split(",")))
    if not set(found) <= set(FLAWS_OF):
        raise ValueError(names)
    return found


def command(arguments: list[str]) -> int:
    """Run the command line. Returns the exit status: 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=0.02, help="how many of a finalizer's operations fail")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help=f"default: {REPORT.name} of the docs, without capabilities")
    parser.add_argument(
        "--capability",
        type=capabilities_of,
        default=(),
        help=f"switch these on, separated by commas: {', '.join(FLAWS_OF)}",
    )
    given = parser.parse_args(arguments)
    run = soak(given.minutes, given.rate, given.seed, given.capability)
    text = report(run, given.minutes, given.rate, given.seed, given.capability)
    path = given.report or (None if given.capability else REPORT)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print(text)
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
