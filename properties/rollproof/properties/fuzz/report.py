"""What a run of the fuzzer prints: one line or a small table while it runs, everything at the end."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rollproof.properties.fuzz.campaign import Campaign, names_of
from rollproof.properties.fuzz.campaign_summary import print_limit
from rollproof.properties.fuzz.reproducers import write_limits
from rollproof.properties.gate.files import write_replay
from rollproof.properties.gate.show import code_table, show_finding
from rollproof.properties.gate.text import repeated, replay_commands, safe


def figures(campaign: Campaign) -> dict[str, str]:
    """Return what is counted, by name."""
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
    """Return the progress: a table for a terminal, a line elsewhere."""
    named = figures(campaign)
    if not table:
        return Text(f"{campaign.name}: " + " · ".join(f"{name} {value}" for name, value in named.items()))
    grid = Table(title=f"fuzzing {campaign.name}, {campaign.seconds:.0f} s", title_justify="left", show_header=False)
    for name, value in named.items():
        grid.add_row(name, value)
    return grid


def show_campaign(console: Console, campaign: Campaign, replays: Path) -> None:
    """Write everything that was found to ``replays``, and print it."""
    if campaign.report.codes:
        console.print(code_table(campaign.report))
    for name, finding in campaign.report.deviations.items():
        times = campaign.report.deviation_counts[name]
        console.print(
            f"declared deviation {name}: {times:,} times, first by {finding.invariant_id} in {finding.stream}",
            soft_wrap=True,
        )
    findings = list(campaign.findings.values())
    for key, finding, name in zip(campaign.findings, findings, names_of(findings), strict=True):
        file = write_replay(campaign.name, finding, replays / f"{safe(campaign.name)}-fuzz-{name}.json")
        console.print(show_finding(finding, replay_commands(file, campaign.name)))
        console.print(f"{name}: {key[1]} expected, {key[2]} answered, {campaign.times[key]:,} times", soft_wrap=True)
    for limit, file in zip(campaign.beyond, write_limits(campaign.name, campaign.beyond, replays), strict=True):
        print_limit(console, limit, repeated("rollproof fuzz --measure", file, campaign.name))
    console.print(view(campaign, table=True))
    console.print(summary(campaign), soft_wrap=True)


def summary(campaign: Campaign) -> Text:
    """Return the outcome in one line."""
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
