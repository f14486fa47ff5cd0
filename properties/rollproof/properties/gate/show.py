"""What a check looks like in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import fields, has
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.pretty import Pretty
from rich.table import Table
from rich.text import Text

from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.strategies.codec import dump
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Accepted, Answer, Crashed, Refused
from rollproof.spec.tensor import Tensor

LONGEST_INPUT = 2000
"""Characters of an input that are printed; the replay file has all of it."""
SHOWN_WHOLE = 600
"""Answers of so many characters are shown whole, longer ones by what differs."""
MOST_DIFFERENCES = 12
READABLE = ("bool", "int16", "int32", "int64", "float32")
"""Dtypes whose tensors are shown by their elements."""


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


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a record, by the path to it; fields that play no part in comparisons are left out."""
    if has(type(value)) and not isinstance(value, Tensor):
        for one in fields(type(value)):
            if one.eq:
                yield from leaves(getattr(value, one.name), f"{path}.{one.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key in value:
            yield from leaves(value[key], f"{path}[{key!r}]")
    elif isinstance(value, tuple) and any(has(type(item)) for item in value):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value.values() if isinstance(value, Tensor) and value.dtype in READABLE else value


def differences(expected: Answer, actual: Answer) -> list[tuple[str, str, str]] | None:
    """Where two large values differ: path, the contract's, the implementation's. None where showing all is clearer."""
    both = isinstance(expected, Accepted) and isinstance(actual, Accepted)
    if not both or max(len(repr(expected)), len(repr(actual))) <= SHOWN_WHOLE:
        return None
    sides = [dict(leaves(answer)) for answer in (expected, actual)]
    paths = [path for path in {**sides[0], **sides[1]} if repr(sides[0].get(path)) != repr(sides[1].get(path))]
    cells = ([f"{side[path]!r:.300}" if path in side else "(absent)" for side in sides] for path in paths)
    return [(path.removeprefix("value"), left, right) for path, (left, right) in zip(paths, cells, strict=True)]


def show_answers(expected: Answer, actual: Answer) -> Table:
    """Both answers side by side; of large ones only what differs."""
    table = Table(expand=True, show_edge=False)
    rows = differences(expected, actual)
    if rows is None:
        table.add_column("the contract", ratio=1)
        table.add_column("the implementation", ratio=1)
        table.add_row(show_answer(expected), show_answer(actual))
        return table
    for name in ("where", "the contract", "the implementation"):
        table.add_column(name, ratio=1)
    for row in rows[:MOST_DIFFERENCES]:
        table.add_row(*map(Text, row))
    if len(rows) > MOST_DIFFERENCES:
        table.add_row(Text(f"and {len(rows) - MOST_DIFFERENCES} more"), "", "")
    return table


def show_finding(finding: Finding, replay_file: str | None) -> Panel:
    """A disagreement: the smallest input, both answers side by side, and where the contract says so."""
    item = finding.invariant
    text = json.dumps(dump(finding.request), ensure_ascii=True)
    shown = text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]}… ({len(text):,} characters)"
    lines: list[Any] = [
        Text(item.sentence),
        Text(finding.complaint, style="bold"),
        Text(f"contract section {item.section} · stream {finding.stream} · seen after {finding.after} examples"),
        Text(f"\nsmallest input: {type(finding.request).__name__}"),
        Text(shown),
        show_answers(finding.expected, finding.actual),
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
    undriven = counted(len(report.undriven), "code", " not driven")
    left_out = counted(report.left_out, "input", " left out: it cannot be asked them")
    deviations = counted(len(report.deviations), "declared deviation")
    falsified = ", ".join(finding.invariant.id for finding in report.falsified)
    ending = f"falsified: {falsified}" if falsified else "all invariants held"
    return Text(
        f"{report.implementation}: {ending}{deviations}{undriven}{left_out} · {report.requests:,} requests "
        f"in {report.seconds:.1f} s (profile {report.profile}, seed {report.seed})",
        style="bold red" if falsified else "bold green",
    )


def counted(count: int, what: str, rest: str = "") -> str:
    """A part of the summary, empty for 0."""
    return f" · {count:,} {what}{'' if count == 1 else 's'}{rest}" if count else ""
