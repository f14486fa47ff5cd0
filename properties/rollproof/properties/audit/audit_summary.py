"""How an audit is shown in a terminal and in a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import asdict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollproof.properties.audit.judge import ADVISORY
from rollproof.properties.audit.ledger import Balance, balance
from rollproof.properties.audit.run import OWN_RULES, SUBJECTS, Audit
from rollproof.properties.audit.state import Tally
from rollproof.properties.audit.thresholds import exceeded
from rollproof.spec.judge.catalogue import BY_ID

REPORT_FORMAT: Final = "rollproof-audit-report-1"

MOST_FINDINGS: Final = 10
"""Printed; the report has all of them."""
MOST_LINES: Final = 6
"""Differences of one finding that are printed."""


def sentence(invariant_id: str) -> str:
    """Return what must hold."""
    return OWN_RULES[invariant_id][1] if invariant_id in OWN_RULES else BY_ID[invariant_id].sentence


def tallies(audit: Audit) -> dict[Path, Tally]:
    """Return what was counted, by file; a line that is cut off counts as unreadable."""
    found = {}
    for file in dict.fromkeys(audit.files):
        tally = audit.state.progress(file)[2]
        tally.unreadable += file in audit.cut_off
        found[file] = tally
    return found


def show_audit(console: Console, audit: Audit) -> Tally:
    """Print tables, findings, and the verdict last, and return what was counted in all."""
    files, total = tallies(audit), Tally()
    table = Table(title="recorded groups", title_justify="left")
    for name in ("file", "lines", "groups", "rows", "placeholders", "as required", "wrong", "unreadable"):
        table.add_column(name, justify="left" if name == "file" else "right", overflow="fold")
    for file, tally in files.items():
        total.add(tally)
        counts = (tally.lines, tally.groups, tally.rows, tally.placeholders, tally.held, tally.falsified)
        style = "yellow" if tally.unreadable else "red" if tally.falsified else ""
        table.add_row(str(file), *(f"{count:,}" for count in (*counts, tally.unreadable)), style=style)
    console.print(table)
    if total.invariants:
        console.print(invariant_table(total))
    for index, finding in enumerate(audit.state.findings(list(files))):
        if index == MOST_FINDINGS:
            rest = total.falsified + total.unreadable - len(audit.cut_off) - MOST_FINDINGS
            console.print(f"and {rest:,} more; --report FILE has all of them")
            break
        console.print(show_finding(finding), soft_wrap=True)
    for file, (line, error) in audit.cut_off.items():
        console.print(Text(f"{file}:{line}: {error}", style="yellow"), soft_wrap=True)
    if total.advisories:
        show_advisories(console, audit, total)
    for name, count in total.uncommitted.items():
        console.print(f"uncommitted: no digest covers {name} of {count:,} rows", soft_wrap=True)
    if cut_calls := audit.state.cut_calls():
        ends = ", ".join(f"{count:,} {end}" for end, count in cut_calls.items())
        console.print(f"calls with an acknowledged cut: {ends}", soft_wrap=True)
    balanced = audit_balance(audit)
    if balanced is not None:
        show_balance(console, balanced)
    console.print(summary(audit, total))
    for name, count in exceeded(audit.limits, total.advisories).items():
        limit = audit.limits[name]
        console.print(Text(f"{name}: {count:,}, and --fail-on allows fewer than {limit:,}", style="bold red"))
    return total


def failed(audit: Audit, total: Tally) -> bool:
    """Return whether something is not as required: a line, an advisory that reached its limit, or the ledger."""
    balanced = audit_balance(audit)
    return bool(total.falsified or exceeded(audit.limits, total.advisories) or (balanced and balanced.findings))


def audit_balance(audit: Audit) -> Balance | None:
    """Return the ledger's balance, where there is a ledger."""
    return None if audit.dispatched is None else balance(audit.dispatched, audit.state, list(audit.files))


def show_advisories(console: Console, audit: Audit, total: Tally) -> None:
    """Print what looks odd, and the first places of it."""
    table = Table(title="advisories: not wrong, but odd", title_justify="left")
    table.add_column("advisory")
    table.add_column("count", justify="right")
    for name, count in sorted(total.advisories.items()):
        table.add_row(name, f"{count:,}")
    console.print(table)
    for index, one in enumerate(audit.state.advisories(list(audit.files))):
        if index == MOST_FINDINGS:
            console.print("and more; --report FILE has all of them")
            break
        console.print(Text(advisory_line(one), style="yellow"), soft_wrap=True)


def advisory_line(one: Mapping[str, Any]) -> str:
    """Return one oddity as a line."""
    call = "" if one["call"] is None else f", call {one['call']}"
    place = f"{one['file']}:{one['line']}: group {one['group_id']}, rollout {one['rollout_id']}{call}"
    return f"{place}: {ADVISORY}{one['name']} {one['count']:,}"


def show_balance(console: Console, balanced: Balance) -> None:
    """Print what became of the dispatched groups."""
    counts = ", ".join(f"{count:,} {end}" for end, count in balanced.counts.items())
    console.print(f"ledger: {counts}, {len(balanced.findings):,} findings", soft_wrap=True)
    for finding in balanced.findings[:MOST_FINDINGS]:
        places = ": " + ", ".join(finding["records"]) if finding["records"] else ""
        console.print(Text(f"group {finding['group_id']}: {finding['complaint']}{places}", style="red"), soft_wrap=True)
    if len(balanced.findings) > MOST_FINDINGS:
        console.print(f"and {len(balanced.findings) - MOST_FINDINGS:,} more; --report FILE has all of them")


def invariant_table(total: Tally) -> Table:
    """Return the falsified invariants as a table."""
    table = Table(title="falsified invariants", title_justify="left", expand=True)
    table.add_column("invariant", no_wrap=True)
    table.add_column("must hold", ratio=1)
    table.add_column("section", justify="right")
    table.add_column("lines", justify="right")
    for name, count in sorted(total.invariants.items(), key=lambda item: [*BY_ID, *OWN_RULES].index(item[0])):
        section = OWN_RULES[name][0] if name in OWN_RULES else BY_ID[name].section
        table.add_row(name, sentence(name), section, f"{count:,}")
    return table


def show_finding(finding: Mapping[str, Any]) -> Text:
    """Return one finding: where, which invariants, which rows and columns."""
    place = f"{finding['file']}:{finding['line']}"
    if "unreadable" in finding:
        return Text(f"{place}: {finding['unreadable']}", style="yellow")
    text = Text()
    text.append(f"{place}: {subject(finding)}\n", style="bold red")
    for broken in finding["invariants"]:
        text.append(f"  {broken['id']}  ", style="red").append(f"{broken['complaint']:.200}\n")
    for one in finding["differences"][:MOST_LINES]:
        text.append(f"  {difference_line(one)}\n")
    if len(finding["differences"]) > MOST_LINES:
        text.append(f"  and {len(finding['differences']) - MOST_LINES} more differences\n")
    return text


def subject(finding: Mapping[str, Any]) -> str:
    """Return what a finding is about: a group, a rollout, or a call that was cut."""
    name = next(name for name in SUBJECTS.values() if name in finding)
    return f"{name.removesuffix('_id')} {finding[name]}"


def difference_line(one: Mapping[str, Any]) -> str:
    """Return one difference as a line."""
    row = f"row {one['row']} ({one['sample_id']}), " if "row" in one else ""
    position = f"[{one['position']}]" if "position" in one else ""
    return f"{row}{one['what']}{position}: expected {one['expected']}, found {one['found']}"


def summary(audit: Audit, total: Tally) -> Text:
    """Return the outcome in one line."""
    singles = f" and {total.single_rollouts:,} single rollouts" if total.single_rollouts else ""
    unreadable = f" · {total.unreadable:,} unreadable lines" if total.unreadable else ""
    ending = f"{total.falsified:,} are not what the contract requires" if total.falsified else "all as required"
    style = "bold red" if total.falsified else "bold yellow" if total.unreadable else "bold green"
    groups = f"{total.groups:,} groups{singles} of {total.rows:,} rows{cut_counts(total)}"
    return Text(f"{groups}: {ending}{unreadable} · {audit.seconds:.1f} s", style=style)


def cut_counts(total: Tally) -> str:
    """Return what was recorded of generation cuts, behind a comma; nothing where there is nothing."""
    names = {"cuts": total.cuts, "restores": total.restores, "completions": total.completions}
    if not any(names.values()):
        return ""
    unjudged = f" ({total.unjudged:,} not judged)" if total.unjudged else ""
    return ", " + ", ".join(f"{count:,} {name}" for name, count in names.items()) + unjudged


def write_report(path: Path, audit: Audit) -> None:
    """Write everything as JSON. Findings are written one by one: there may be as many as there are groups."""
    files, total = tallies(audit), Tally()
    for tally in files.values():
        total.add(tally)
    head = {
        "format": REPORT_FORMAT,
        "held": total.unreadable == 0 and not failed(audit, total),
        "seconds": round(audit.seconds, 3),
        "skipped": sorted(audit.skip),
        "total": asdict(total),
        "files": [{"file": str(file), **asdict(tally)} for file, tally in files.items()],
        "invariants": [
            {"id": name, "sentence": sentence(name), "lines": count} for name, count in total.invariants.items()
        ],
    }
    if cut_calls := audit.state.cut_calls():
        head["cut_calls"] = cut_calls
    if audit.limits:
        head["exceeded"] = exceeded(audit.limits, total.advisories)
    balanced = audit_balance(audit)
    if balanced is not None:
        head["ledger"] = asdict(balanced)
    with path.open("w", encoding="utf-8") as out:
        out.write(json.dumps(head, indent=1).removesuffix("\n}"))
        out.write(',\n "findings": [')
        separator = "\n  "
        for finding in audit.state.findings(list(files)):
            out.write(separator + json.dumps(finding))
            separator = ",\n  "
        for file, (line, error) in audit.cut_off.items():
            out.write(separator + json.dumps({"file": str(file), "line": line, "unreadable": error}))
            separator = ",\n  "
        out.write('\n ],\n "advisories": [')
        separator = "\n  "
        for one in audit.state.advisories(list(files)):
            out.write(separator + json.dumps(one))
            separator = ",\n  "
        out.write("\n ]\n}\n")
