"""What a check looks like in a terminal."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.pretty import Pretty
from rich.table import Table
from rich.text import Text
from rollproof.properties.strategies.codec import dump

from rollproof.properties.gate.results import Finding, Report
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Accepted, Answer, Crashed, Refused

LONGEST_INPUT = 2000
"""Characters of an input that are printed; the replay file has all of it."""


def verdict(report: Report, invariant_id: str) -> Text:
    """An invariant's verdict in one word."""
    tally = report.invariants[invariant_id]
    if tally.finding is not None:
        return Text("falsified", style="bold red")
    if tally.examples == 0:
        return Text("not run", style="yellow")
    deviating = [name for name, finding in report.deviations.items() if finding.invariant.id == invariant_id]
    if deviating:
        return Text(f"held but for {', '.join(deviating)}", style="yellow")
    return Text("held", style="green")


def invariant_table(report: Report) -> Table:
    """Invariant, sentence, examples run, verdict."""
    table = Table(title=f"{report.implementation}: invariants", title_justify="left", expand=True)
    table.add_column("invariant", no_wrap=True)
    table.add_column("must hold", ratio=1)
    table.add_column("section", justify="right")
    table.add_column("examples", justify="right")
    table.add_column("verdict")
    for invariant_id, tally in report.invariants.items():
        item = BY_ID[invariant_id]
        table.add_row(item.id, item.sentence, item.section, f"{tally.examples:,}", verdict(report, item.id))
    return table


def code_table(report: Report) -> Table:
    """Rejection codes: driven how often, answered rightly how often."""
    table = Table(title=f"{report.implementation}: rejection codes", title_justify="left")
    table.add_column("area")
    table.add_column("code", no_wrap=True)
    table.add_column("driven", justify="right")
    table.add_column("right", justify="right")
    for (area, code), tally in report.codes.items():
        style = "red" if tally.right < tally.driven else "yellow" if tally.driven == 0 else ""
        table.add_row(area.value, code, f"{tally.driven:,}", f"{tally.right:,}", style=style)
    return table


def show_answer(answer: Answer) -> RenderableType:
    """An answer, printed for reading."""
    match answer:
        case Accepted(value):
            return Pretty(value, max_string=120, max_length=12, max_depth=6)
        case Refused(reason):
            return Text(f"refused: {reason}")
        case Crashed(error, message):
            return Text(f"{error} escaped: {message}", style="bold")


def show_finding(finding: Finding, replay_file: str | None) -> Panel:
    """A disagreement: the smallest input, both answers side by side, and where the contract says so."""
    item = finding.invariant
    text = json.dumps(dump(finding.request), ensure_ascii=True)
    shown = text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]}… ({len(text):,} characters)"
    answers = Table(expand=True, show_edge=False)
    answers.add_column("the contract", ratio=1)
    answers.add_column("the implementation", ratio=1)
    answers.add_row(show_answer(finding.expected), show_answer(finding.actual))
    lines: list[Any] = [
        Text(item.sentence),
        Text(finding.complaint, style="bold"),
        Text(f"contract section {item.section} · stream {finding.stream} · seen after {finding.after} examples"),
        Text(f"\nsmallest input: {type(finding.request).__name__}"),
        Text(shown),
        answers,
    ]
    if replay_file is not None:
        lines.append(Text(f"\nrollproof replay {replay_file}", style="cyan"))
    kind = "deviation " + finding.deviation if finding.deviation else "falsified"
    return Panel(Group(*lines), title=f"{kind}: {item.id}", title_align="left")


def show_report(console: Console, report: Report, replay_files: dict[str, str]) -> None:
    """Everything a check found: tables first, then findings, the verdict last."""
    console.print(invariant_table(report))
    if report.codes:
        console.print(code_table(report))
    for name, finding in report.deviations.items():
        console.print(show_finding(finding, replay_files.get(name)))
        console.print(f"{name}: {report.declared[name]} ({report.deviation_counts[name]:,} times)")
    for name in report.silent_deviations:
        console.print(f"[yellow]declared deviation {name} did not show:[/] {report.declared[name]}")
    for finding in report.falsified:
        console.print(show_finding(finding, replay_files.get(finding.invariant.id)))
    console.print(summary(report))


def summary(report: Report) -> Text:
    """One line: what was checked and how it ended."""
    undriven = f" · {len(report.undriven)} codes not driven" if report.undriven else ""
    deviations = f" · {len(report.deviations)} declared deviations" if report.deviations else ""
    falsified = ", ".join(finding.invariant.id for finding in report.falsified)
    ending = f"falsified: {falsified}" if falsified else "all invariants held"
    return Text(
        f"{report.implementation}: {ending}{deviations}{undriven} · {report.requests:,} requests "
        f"in {report.seconds:.1f} s (profile {report.profile}, seed {report.seed})",
        style="bold red" if falsified else "bold green",
    )
