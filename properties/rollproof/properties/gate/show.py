"""How a check is shown in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rollproof.properties.gate.codes import reaches
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.gate.snippet import change_lines, input_title
from rollproof.properties.gate.text import MOST_ITEMS, printable, readable, replay_commands
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import differences
from rollproof.spec.judge.requests import Accepted, Answer, Crashed


def verdict(report: Report, invariant_id: str) -> Text:
    """Return an invariant's verdict in one word."""
    tally = report.invariants[invariant_id]
    if tally.finding is not None:
        advisory = BY_ID[invariant_id].advisory
        return Text("advisory", style="yellow") if advisory else Text("falsified", style="bold red")
    if tally.examples == tally.silent:
        return Text("refused" if tally.silent else "not run", style="yellow")
    deviating = [name for name, finding in report.deviations.items() if finding.invariant.id == invariant_id]
    if deviating:
        return Text(f"held, except for {', '.join(deviating)}", style="yellow")
    return Text("held", style="green")


def invariant_table(report: Report) -> Table:
    """Tabulate invariant, sentence, examples run, verdict."""
    table = Table(title=f"{printable(report.implementation)}: invariants", title_justify="left", expand=True)
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
    """Tabulate rejection codes by area and place; one that was not reached, or answered wrongly, has its own row."""
    table = Table(title=f"{printable(report.implementation)}: rejection codes", title_justify="left")
    for name in ("area", "where", "codes"):
        table.add_column(name)
    for name in ("reached", "fewest times", "wrong"):
        table.add_column(name, justify="right")
    for area in report.areas:
        for place in dict.fromkeys(reach.place for reach in reaches(area)):
            names = [reach.name for reach in reaches(area) if reach.place is place]
            tallies = {name: report.codes[area, name] for name in names if (area, name) in report.codes}
            if not tallies:
                continue
            reached = sum(tally.driven > 0 for tally in tallies.values())
            fewest = min(tally.driven for tally in tallies.values())
            wrong = sum(tally.driven - tally.right for tally in tallies.values())
            table.add_row(area.value, place.value, f"{len(tallies)}", f"{reached}", f"{fewest:,}", f"{wrong:,}")
            for name, tally in tallies.items():
                if tally.right < tally.driven or not tally.driven:
                    style = "red" if tally.driven or tally.missed else "yellow"
                    wrong = tally.driven - tally.right
                    table.add_row("", "", name, f"{tally.driven:,}", "", f"{wrong:,}", style=style)
    return table


def show_answer(answer: Answer) -> Text:
    """Return an answer, printed for reading; a crash stands out."""
    return Text(readable(answer), style="bold" if isinstance(answer, Crashed) else "")


def difference_rows(expected: Answer, actual: Answer) -> list[tuple[str, str, str]] | None:
    """Return where two accepted values differ: path, the contract's, the implementation's; None for other answers."""
    if not (isinstance(expected, Accepted) and isinstance(actual, Accepted)):
        return None
    found = list(differences(expected.value, actual.value))
    if [one.where for one in found] in ([], [""]):
        return None
    return [(printable(one.where), *map(printable, one.texts)) for one in found]  # type: ignore[misc]


def show_answers(expected: Answer, actual: Answer, *, one_of_many: bool = False) -> Table:
    """Return both answers side by side; of two values only what differs, unless other answers are as right."""
    table = Table(expand=True, show_edge=False)
    rows = None if one_of_many else difference_rows(expected, actual)
    if rows is None:
        table.add_column("a right answer" if one_of_many else "the contract", ratio=1)
        table.add_column("the implementation", ratio=1)
        table.add_row(show_answer(expected), show_answer(actual))
        return table
    for name in ("where", "the contract", "the implementation"):
        table.add_column(name, ratio=1)
    for row in rows[:MOST_ITEMS]:
        table.add_row(*map(Text, row))
    if len(rows) > MOST_ITEMS:
        table.add_row(Text(f"and {len(rows) - MOST_ITEMS} more"), "", "")
    return table


def show_finding(finding: Finding, commands: Sequence[str] = ()) -> Panel:
    """Return a disagreement: what is special about its input, where the answers differ, and the contract's section.

    ``commands`` repeat it.
    """
    item = finding.invariant
    lines: list[Any] = [
        Text(item.sentence),
        Text(printable(finding.complaint), style="bold"),
        Text(f"contract section {item.section} · stream {finding.stream} · seen after {finding.after} examples"),
        Text(f"\n{input_title(finding.request)}"),
        *(Text(f"  {line}") for line in change_lines(finding.request)),
        Text(),
        show_answers(finding.expected, finding.actual, one_of_many=item.area in PORTABLE),
    ]
    lines += (Text(f"\n{command}" if command is commands[0] else command, style="cyan") for command in commands)
    kind = "deviation " + finding.deviation if finding.deviation else "falsified"
    return Panel(Group(*lines), title=f"{kind}: {item.id}", title_align="left")


def show_report(console: Console, report: Report, replay_files: dict[str, str]) -> None:
    """Print everything a check found: tables first, then findings, the verdict last."""
    console.print(invariant_table(report))
    if report.codes:
        console.print(code_table(report))
    commands = {name: replay_commands(file, report.implementation) for name, file in replay_files.items()}
    for name, finding in report.deviations.items():
        console.print(show_finding(finding, commands.get(name, ())))
        console.print(f"{name}: {report.declared[name]} ({report.deviation_counts[name]:,} times)")
    for name in report.silent_deviations:
        console.print(f"[yellow]declared deviation {name} did not show:[/] {report.declared[name]}")
    for finding in report.advisories:
        sentence = f"{finding.invariant.sentence} Here: {printable(finding.complaint)}"
        console.print(f"[yellow]advisory {finding.invariant.id}:[/] {sentence} (stream {finding.stream})")
    for finding in report.falsified:
        console.print(show_finding(finding, commands.get(finding.invariant.id, ())))
    console.print(summary(report))


def summary(report: Report) -> Text:
    """Return in one line what was checked and how it ended."""
    undriven = counted(len(report.not_exercised), "rule", " not exercised") if report.exercised else ""
    refused = counted(max((tally.silent for tally in report.invariants.values()), default=0), "input", " refused")
    left_out = counted(report.left_out, "input", " skipped: not supported by this implementation or installation")
    ending = f"{report.ending}{undriven}{refused}{left_out}"
    return Text(
        f"{printable(report.implementation)}: {ending} · {report.requests:,} requests in "
        f"{report.seconds:.1f} s (profile {report.profile}, seed {report.seed})",
        style="bold green" if report.held and report.exercised else "bold red",
    )


def counted(count: int, what: str, rest: str = "") -> str:
    """Return a part of the summary, empty for 0."""
    return f" · {count:,} {what}{'' if count == 1 else 's'}{rest}" if count else ""
