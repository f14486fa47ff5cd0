"""A run of hostile inputs: batches over workers, the progress, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from attrs import define, field
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollproof.properties.cluster import Cluster
from rollproof.properties.fuzz.campaign_summary import show_limit, shown_live
from rollproof.properties.fuzz.crew import Crew, interruptible
from rollproof.properties.fuzz.hostile_inputs import KINDS, Batch, Extreme, KindTally, batches, run_batch
from rollproof.properties.fuzz.limits import (
    MEMORY_FLOOR,
    MEMORY_RATIO,
    ROLLOUT_BYTES,
    UNIT,
    LimitFinding,
    seconds_per_unit,
)


@define
class HostileReport:
    """The outcomes of hostile inputs, by kind."""

    implementation: str
    seed: int
    planned: int
    kinds: dict[str, KindTally] = field(factory=lambda: {kind.name: KindTally() for kind in KINDS})
    seconds: float = 0.0

    @property
    def whole(self) -> KindTally:
        """All kinds together."""
        total = KindTally()
        for tally in self.kinds.values():
            total.merge(tally)
        return total

    @property
    def findings(self) -> list[LimitFinding]:
        """The inputs that break a limit, declared deviations aside: the smallest input of each sort."""
        return [one for tally in self.kinds.values() for one in tally.findings.values() if one.deviation is None]

    @property
    def declared(self) -> list[LimitFinding]:
        """Crashes that are declared deviations."""
        return [one for tally in self.kinds.values() for one in tally.findings.values() if one.deviation is not None]


def run_hostile(
    console: Console, implementation: str, count: int, seed: int, place: int | Cluster, minutes: float | None
) -> HostileReport:
    """Send ``count`` hostile inputs, or as many as the minutes allow."""
    report = HostileReport(implementation, seed, count)
    started = time.monotonic()
    waiting = batches(count, seed)[::-1]
    crew: Crew[Batch, KindTally]
    with Crew(implementation, run_batch, place, minutes) as crew, interruptible(crew.stop):
        given: list[Batch] = []
        with shown_live(console, lambda: progress(report)) as show:
            while waiting or len(crew):
                while waiting and not crew.full and not crew.stop():
                    given.append(waiting.pop())
                    crew.give(given[-1])
                if not len(crew):
                    break
                tally = crew.take()
                report.kinds[given.pop(0).kind].merge(tally)
                report.seconds = time.monotonic() - started
                show()
    return report


def progress(report: HostileReport) -> Text:
    """Return the progress in one line."""
    whole = report.whole
    rate = whole.inputs / report.seconds if report.seconds else 0.0
    return Text(
        f"{report.implementation}: {whole.inputs:,} of {report.planned:,} hostile inputs · {rate:,.0f}/s · "
        f"{whole.accepted:,} accepted · {whole.crashed:,} crashed · slowest {per_unit(whole.slowest)} ms per kB "
        f"(first {per_unit(whole.first)}) · "
        f"memory {whole.greediest.value:.1f} times the input · {sum(whole.broken.values()):,} beyond a limit"
    )


def per_unit(extreme: Extreme) -> str:
    """Return milliseconds per kB."""
    return f"{1000 * extreme.value:.1f}"


def hostile_tables(report: HostileReport) -> RenderableType:
    """Tabulate per kind how its inputs ended, by which reasons they were refused, and which took the most."""
    parts: list[RenderableType] = [_outcomes(report), _reasons(report.kinds), _extremes(report.kinds)]
    parts += [show_limit(finding) for finding in report.declared]
    return Group(*parts)


def _outcomes(report: HostileReport) -> Table:
    table = Table(title=f"{report.implementation}: hostile inputs, seed {report.seed}", title_justify="left")
    for name in (
        "kind",
        "inputs",
        "accepted",
        "refused",
        "crashed",
        "bytes each",
        "µs each",
        "ms per kB, first",
        "measured again",
    ):
        table.add_column(name, justify="left" if name == "kind" else "right")
    table.add_column("memory per byte, at most", justify="right")
    table.add_column("beyond a limit", justify="right")
    for name, tally in (*report.kinds.items(), ("all", report.whole)):
        inputs = max(1, tally.inputs)
        table.add_row(
            name,
            f"{tally.inputs:,}",
            f"{tally.accepted:,}",
            f"{sum(tally.refused.values()):,}",
            f"{tally.crashed:,}",
            f"{tally.bytes / inputs:,.0f}",
            f"{1e6 * tally.asked_seconds / inputs:,.0f}",
            per_unit(tally.first),
            per_unit(tally.slowest),
            f"{tally.greediest.value:.1f}",
            f"{sum(tally.broken.values()):,}",
        )
    return table


def _reasons(kinds: Mapping[str, KindTally]) -> Table:
    table = Table(title="refused", title_justify="left")
    table.add_column("kind")
    table.add_column("reason")
    table.add_column("times", justify="right")
    for name, tally in kinds.items():
        for reason, times in tally.refused.most_common():
            table.add_row(name, reason, f"{times:,}")
    return table


def _extremes(kinds: Mapping[str, KindTally]) -> Table:
    table = Table(title="slowest and largest", title_justify="left", show_lines=True)
    table.add_column("kind")
    table.add_column("took")
    table.add_column("input", ratio=1, overflow="fold")
    for name, tally in kinds.items():
        for extreme, took in _taken(tally):
            table.add_row(name, took, Text(extreme.description))
    return table


def _taken(tally: KindTally) -> Iterable[tuple[Extreme, str]]:
    for extreme in (tally.slowest, tally.greediest):
        found = extreme.measured
        if found is not None:
            took = f"{1000 * found.seconds:.1f} ms" if extreme is tally.slowest else f"{found.peak:,} bytes"
            yield extreme, f"{took} for {found.size:,} bytes"


def limits_text() -> str:
    """Return the limits in one sentence."""
    return (
        f"limits: nothing escapes; {1000 * seconds_per_unit():.1f} ms of processor time per {UNIT:,} bytes of input, "
        f"and for any; {MEMORY_RATIO} bytes of memory per byte of input, {MEMORY_FLOOR // 1024} KiB for any "
        f"(a rollout counts {ROLLOUT_BYTES:,} bytes more than it has)"
    )


def hostile_summary(report: HostileReport) -> Text:
    """Return the outcome in one line."""
    whole, beyond = report.whole, len(report.findings)
    ending = f"{beyond} kinds of input beyond a limit" if beyond else "all within the limits"
    asked = f"{whole.inputs:,} hostile inputs in {report.seconds:.1f} s"
    skipped = f" · {whole.skipped:,} not offered" if whole.skipped else ""
    cut = f" · stopped {report.planned - whole.inputs - whole.skipped:,} inputs early"
    cut = cut if report.planned > whole.inputs + whole.skipped else ""
    return Text(
        f"{report.implementation}: {ending} · {asked}{skipped}{cut} (seed {report.seed})",
        style="bold red" if beyond else "bold green",
    )
