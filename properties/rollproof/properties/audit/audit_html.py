"""An audit as one self-contained HTML page: no script, no font, no image, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from rollproof.properties.audit.audit_summary import audit_balance, difference_line, sentence, subject, summary, tallies
from rollproof.properties.audit.judge import ADVISORY
from rollproof.properties.audit.run import Audit
from rollproof.properties.audit.state import Tally
from rollproof.properties.audit.thresholds import exceeded
from rollproof.properties.gate.text import printable

STYLE: Final = Markup(
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}"
    "table{border-collapse:collapse;margin:.5rem 0 2rem}"
    "td,th{border:1px solid #bbb;padding:.2rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}"
)


def write_html(path: Path, audit: Audit) -> None:
    """Write the page, row by row: there may be as many findings as there are groups."""
    with path.open("w", encoding="utf-8") as out:
        out.writelines(map(printable, pieces(audit)))


def pieces(audit: Audit) -> Iterator[str]:
    """Yield the page in parts."""
    files, total = tallies(audit), Tally()
    for tally in files.values():
        total.add(tally)
    yield f"<!doctype html>\n<html lang=en><meta charset=utf-8><title>rollproof audit</title><style>{STYLE}</style>\n"
    yield Markup("<h1>rollproof audit</h1>\n<p>{}</p>\n").format(summary(audit, total).plain)
    counts = (
        (file, one.lines, one.groups, one.rows, one.placeholders, one.held, one.falsified, one.unreadable)
        for file, one in files.items()
    )
    heads = ("file", "lines", "groups", "rows", "placeholders", "as required", "wrong", "unreadable")
    yield from table("Recorded groups", heads, counts)
    broken = ((name, sentence(name), count) for name, count in total.invariants.items())
    yield from table("Falsified invariants", ("invariant", "must hold", "lines"), broken)
    yield from table("Findings", ("place", "about", "what is wrong"), findings(audit, list(files)))
    over = exceeded(audit.limits, total.advisories)
    odd = ((name, count, "failure" if name in over else "") for name, count in sorted(total.advisories.items()))
    yield from table("Advisories", ("advisory", "count", ""), odd)
    columns = ("group_id", "rollout_id", "call", "name", "count")
    places = (
        (f"{one['file']}:{one['line']}", *(one[name] or "" for name in columns))
        for one in audit.state.advisories(list(files))
    )
    yield from table("Where they are", ("place", "group", "rollout", "call", ADVISORY, "count"), places)
    yield from table("Uncommitted: no digest covers them", ("column", "rows"), total.uncommitted.items())
    counts_of_cuts = ((name, getattr(total, name)) for name in ("cuts", "restores", "completions", "unjudged"))
    recorded = ((name, count) for name, count in counts_of_cuts if count)
    yield from table("Generation cuts", ("recorded", "count"), recorded)
    yield from table("Calls with an acknowledged cut", ("end", "calls"), audit.state.cut_calls().items())
    balanced = audit_balance(audit)
    if balanced is not None:
        yield from table("Ledger", ("dispatched groups", "count"), balanced.counts.items())
        wrong = ((one["group_id"], one["complaint"], ", ".join(one["records"])) for one in balanced.findings)
        yield from table("Against the ledger", ("group", "what is wrong", "records"), wrong)
        yield from table("Pending", ("group",), ((group_id,) for group_id in balanced.pending))
    yield "</html>\n"


def findings(audit: Audit, files: list[Path]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the findings."""
    for one in audit.state.findings(files):
        place = f"{one['file']}:{one['line']}"
        if "unreadable" in one:
            yield place, "", one["unreadable"]
            continue
        complaints = [f"{broken['id']} {broken['complaint']}" for broken in one["invariants"]]
        yield place, subject(one), lines(complaints, map(difference_line, one["differences"]))
    for file, (line, error) in audit.cut_off.items():
        yield f"{file}:{line}", "", error


def lines(*texts: Iterable[str]) -> Markup:
    """Return strings, one a line."""
    return Markup("<br>").join(text for some in texts for text in some)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yield a table in parts; nothing where it has no rows."""
    begun = False
    for row in rows:
        if not begun:
            yield Markup("<h2>{}</h2>\n<table><tr>{}</tr>\n").format(title, cells("th", heads))
            begun = True
        yield Markup("<tr>{}</tr>\n").format(cells("td", row))
    if begun:
        yield "</table>\n"


def cells(tag: str, values: Iterable[Any]) -> Markup:
    """Return the cells of a row."""
    shown = (f"{value:,}" if type(value) is int else value for value in values)
    return Markup("").join(Markup("<{0}>{1}</{0}>").format(Markup(tag), escape(value)) for value in shown)
