"""A check as one self-contained HTML page: no script, no font, no image, no network.

What is shown is computed here; ``report.html.jinja`` says how it looks.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rollproof.properties.gate.codes import reaches
from rollproof.properties.gate.results import CodeTally, Finding, Report
from rollproof.properties.gate.show import difference_rows, verdict
from rollproof.properties.gate.snippet import change_lines, input_title
from rollproof.properties.gate.text import (
    MOST_ITEMS,
    printable,
    readable,
    replay_commands,
    replay_path,
    safe,
)
from rollproof.spec.judge.area import PORTABLE
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.requests import Area

TEMPLATE: Final = "report.html.jinja"
HEAT_STEPS: Final = 5
"""Shades of the heat map. One more means about four times as often."""
SLOWEST_STREAMS: Final = 10


@frozen
class Cell:
    """One rejection code in the heat map."""

    code: Markup
    driven: int
    heat: int
    """0 where it was not reached, else 1 to ``HEAT_STEPS``."""
    kind: str
    """``right``, ``declared``, ``wrong``, ``missed`` or ``undriven``."""
    words: str


@frozen
class Shown:
    """A finding, ready to print."""

    anchor: str
    title: str
    finding: Finding
    sentence: str
    input: str
    changes: str
    expected_title: str
    expected: str
    actual: str
    differences: list[tuple[str, str, str]] | None
    more: int
    commands: list[str]


@frozen
class AreaTime:
    """The time that one area's streams took."""

    area: Area
    requests: int
    seconds: float
    share: float
    """Of the slowest area's time, in per cent."""


def html_page(reports: Sequence[Report], replays: Path) -> str:
    """Return the page on some reports; ``replays`` is the folder of their replay files."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    sections = [section(index, report, replays) for index, report in enumerate(reports)]
    return environment.get_template(TEMPLATE).render(sections=sections, version=version("rollproof"), steps=HEAT_STEPS)


def section(index: int, report: Report, replays: Path) -> dict[str, Any]:
    """Return one implementation's part of the page."""
    anchor = f"r{index}-{safe(report.implementation)}"
    cells = {
        (area, place): [
            cell(reach.code, report.codes[area, reach.name]) for reach in reaches(area) if reach.place is place
        ]
        for area in report.areas
        for place in dict.fromkeys(reach.place for reach in reaches(area))
    }
    streams = sorted(report.streams.items(), key=lambda item: -item[1].seconds)
    options = [f"--area {area}" for area in report.areas]
    options += [f"--profile {report.profile}", f"--seed {report.seed}"]
    options += [] if report.max_examples is None else [f"--max-examples {report.max_examples}"]
    return {
        "anchor": anchor,
        "report": report,
        "invariants": [
            (BY_ID[name], tally.examples, verdict(report, name).plain, verdict_kind(report, name))
            for name, tally in report.invariants.items()
        ],
        "findings": [show(anchor, report, found, found.invariant_id, replays) for found in report.falsified],
        "deviations": [show(anchor, report, found, name, replays) for name, found in report.deviations.items()],
        "codes": cells,
        "driven": sum(tally.driven > 0 for tally in report.codes.values()),
        "times": area_times(report),
        "streams": [(area, name, tally) for (area, name), tally in streams[:SLOWEST_STREAMS]],
        "run": sum(tally.examples > 0 for tally in report.invariants.values()),
        "command": " ".join(["rollproof check", shlex.quote(report.implementation), *options]),
    }


def verdict_kind(report: Report, name: str) -> str:
    """Return ``held``, ``falsified``, ``declared`` or ``undriven``: which sign and colour a verdict has."""
    tally = report.invariants[name]
    if tally.finding is not None:
        return "declared" if BY_ID[name].advisory else "falsified"
    if tally.examples == tally.silent:
        return "undriven"
    declared = any(finding.invariant_id == name for finding in report.deviations.values())
    return "declared" if declared else "held"


def cell(code: str, tally: CodeTally) -> Cell:
    """Return a rejection code's shade and words."""
    name = escape(code).replace("_", Markup("_<wbr>")).replace(":", Markup(":<wbr>"))
    if tally.driven == 0:
        why = "not offered" if not tally.offered else "skipped" if tally.left_out else "not exercised"
        return Cell(name, 0, 0, "missed" if tally.missed else "undriven", why)
    heat = min(HEAT_STEPS, 1 + int(math.log(tally.driven, 4)))
    wrong = tally.driven - tally.right
    if wrong > tally.excused:
        return Cell(name, tally.driven, heat, "wrong", f"{wrong - tally.excused:,} wrong")
    if wrong:
        return Cell(name, tally.driven, heat, "declared", f"{wrong:,} otherwise, as declared")
    return Cell(name, tally.driven, heat, "right", "all right")


def show(anchor: str, report: Report, finding: Finding, name: str, replays: Path) -> Shown:
    """Return a finding's input and answers, ready to print."""
    relational = finding.invariant.area in PORTABLE
    rows = None if relational else difference_rows(finding.expected, finding.actual)
    return Shown(
        anchor=f"{anchor}-{safe(name)}",
        title=name,
        finding=finding,
        sentence=finding.invariant.sentence if finding.deviation is None else report.declared[name],
        input=input_title(finding.request),
        changes="\n".join(change_lines(finding.request)),
        expected_title="A right answer" if relational else "The contract",
        expected=readable(finding.expected),
        actual=readable(finding.actual),
        differences=None if rows is None else rows[:MOST_ITEMS],
        more=0 if rows is None else max(0, len(rows) - MOST_ITEMS),
        commands=replay_commands(replay_path(replays, report.implementation, name), report.implementation),
    )


def area_times(report: Report) -> list[AreaTime]:
    """Return the time that each area took, in the contract's order."""
    tallies = {area: [tally for (of, _), tally in report.streams.items() if of is area] for area in report.areas}
    seconds = {area: sum(tally.seconds for tally in found) for area, found in tallies.items()}
    most = max(seconds.values(), default=0.0) or 1.0
    return [
        AreaTime(area, sum(tally.requests for tally in found), seconds[area], 100 * seconds[area] / most)
        for area, found in tallies.items()
    ]
