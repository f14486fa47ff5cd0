"""At how many seeds a mutant falls: a gate that notices a fault by luck notices the next one like it by luck too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen
from rich.console import Console
from rich.table import Table

from rollproof.properties.gate.trial import STAGES, Verdict

TARGET: Final = 0.995
"""Share of all trials in which a mutant falls, in each profile."""
LEAST: Final = 0.9
"""The same of every mutant by itself."""


@frozen
class Rate:
    """At how many of ``seeds`` seeds a mutant falls in each profile; the requests of the latest fall."""

    mutant: str
    invariant: str
    seeds: int
    killed: dict[str, int]
    latest: int

    def share(self, profile: str) -> float:
        """The share of the seeds at which it falls."""
        return self.killed[profile] / self.seeds


def rate_of(verdicts: Sequence[Verdict], name: str) -> Rate:
    """The rate of one mutant. What falls in the first profile falls in the second, which goes on from there."""
    own = [verdict for verdict in verdicts if verdict.mutant == name]
    reached = {profile: STAGES[: index + 1] for index, profile in enumerate(STAGES)}
    killed = {
        profile: sum(verdict.killed and verdict.profile in stages for verdict in own)
        for profile, stages in reached.items()
    }
    latest = max((verdict.fell[verdict.invariant] for verdict in own if verdict.killed), default=0)
    return Rate(name, own[0].invariant, len(own), killed, latest)


def rate_table(rates: Sequence[Rate]) -> Table:
    """Mutants that live at some seed, the most tenacious first."""
    table = Table(title="Kill rates below 100 %", title_justify="left", expand=True)
    table.add_column("mutant", ratio=2)
    table.add_column("killed by", no_wrap=True)
    for profile in STAGES:
        table.add_column(profile, justify="right")
    table.add_column("latest after", justify="right")
    thin = [rate for rate in rates if any(rate.share(profile) < 1 for profile in STAGES)]
    for rate in sorted(thin, key=lambda rate: [rate.share(profile) for profile in STAGES[::-1]]):
        shares = [f"{rate.killed[profile]} of {rate.seeds}" for profile in STAGES]
        table.add_row(rate.mutant, rate.invariant, *shares, f"{rate.latest:,}")
    return table


def on_target(console: Console, rates: Sequence[Rate]) -> bool:
    """Whether enough mutants fall at enough seeds in each profile; says so."""
    reached = True
    for profile in STAGES:
        share = sum(rate.killed[profile] for rate in rates) / sum(rate.seeds for rate in rates)
        low = [rate.mutant for rate in rates if rate.share(profile) < LEAST]
        console.print(f"[bold]profile {profile}: {share:.2%} of all trials killed[/] (target {TARGET:.1%})")
        if low:
            console.print(f"[bold red]below {LEAST:.0%}:[/] {', '.join(low)}")
        reached = reached and share >= TARGET and not low
    return reached
