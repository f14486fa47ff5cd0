"""What a run of the fuzzer says: one line or a small table while it runs, everything at the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rollproof.properties.fuzz.campaign import Campaign, names_of
from rollproof.properties.fuzz.files import write_limits
from rollproof.properties.fuzz.show import show_limit
from rollproof.properties.gate.files import safe, write_replay
from rollproof.properties.gate.show import code_table, show_finding


def figures(campaign: Campaign) -> dict[str, str]:
    """What is counted, by name."""
    codes = campaign.report.codes
    reached = sum(tally.driven > 0 for tally in codes.values())
    rate = (campaign.done + campaign.replayed) / campaign.seconds if campaign.seconds else 0.0
    slowest = campaign.slowest
    return {
        "examples": f"{campaign.done:,} in {campaign.rounds:,} rounds, {campaign.replayed:,} replayed",
        "per second": f"{rate:,.1f}",
        "arcs": f"{campaign.arcs:,}",
        "corpus": f"{len(campaign.corpus):,} inputs",
        "codes": f"{reached} reached, {len(codes) - reached} not yet",
        "disagreements": f"{len(campaign.findings):,} kinds, {campaign.times.total():,} times",
        "declared": f"{len(campaign.report.deviations)} deviations",
        "crashes": f"{campaign.crashes:,}",
        "slowest": "none" if slowest is None else f"{1000 * slowest.seconds:.1f} ms for {slowest.size:,} bytes",
        "beyond a limit": f"{len(campaign.beyond):,} kinds",
    }


def view(campaign: Campaign, *, table: bool) -> RenderableType:
    """How far it is: a table for a terminal, a line elsewhere."""
    named = figures(campaign)
    if not table:
        return Text(f"{campaign.name}: " + " · ".join(f"{name} {value}" for name, value in named.items()))
    grid = Table(title=f"fuzzing {campaign.name}, {campaign.seconds:.0f} s", title_justify="left", show_header=False)
    for name, value in named.items():
        grid.add_row(name, value)
    return grid


def show_campaign(console: Console, campaign: Campaign, replays: Path) -> None:
    """Everything that was found, written to ``replays`` and printed."""
    console.print(code_table(campaign.report))
    unreached = [f"{area}: {code}" for area, code in campaign.report.undriven]
    if unreached:
        console.print(f"codes never reached: {', '.join(unreached)}", soft_wrap=True)
    for name, finding in campaign.report.deviations.items():
        times = campaign.report.deviation_counts[name]
        console.print(
            f"declared deviation {name}: {times:,} times, first by {finding.invariant_id} in {finding.stream}",
            soft_wrap=True,
        )
    findings = list(campaign.findings.values())
    for key, finding, name in zip(campaign.findings, findings, names_of(findings), strict=True):
        file = write_replay(campaign.name, finding, replays / f"{safe(campaign.name)}-fuzz-{name}.json")
        console.print(show_finding(finding, file))
        console.print(f"{name}: {key[1]} expected, {key[2]} answered, {campaign.times[key]:,} times", soft_wrap=True)
    for limit, file in zip(campaign.beyond, write_limits(campaign.name, campaign.beyond, replays), strict=True):
        console.print(show_limit(limit, file))
    console.print(view(campaign, table=True))
    console.print(summary(campaign), soft_wrap=True)


def summary(campaign: Campaign) -> Text:
    """One line: how it ended."""
    parts = []
    if campaign.findings:
        invariants = dict.fromkeys(finding.invariant_id for finding in campaign.findings.values())
        parts.append(f"falsified: {', '.join(invariants)}")
    if campaign.beyond:
        parts.append(f"{len(campaign.beyond)} kinds of input beyond a limit")
    ending = " · ".join(parts) or "nothing found"
    return Text(
        f"{campaign.name}: {ending} · {campaign.done:,} examples in {campaign.seconds:.1f} s (seed {campaign.seed})",
        style="bold green" if campaign.held else "bold red",
    )
