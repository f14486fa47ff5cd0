"""What a check leaves on disk: JSON and JUnit reports, and replay files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite

from rollproof.properties.errors import InputError, reading
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.strategies.codec import dump, load
from rollproof.spec.invariant import Invariant
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Accepted, Answer, Crashed, Refused, Request

REPLAY_FORMAT: Final = "rollproof-replay-1"
REPORT_FORMAT: Final = "rollproof-report-1"


@frozen
class Replay:
    """A replay file: which invariant failed for whom, on which request."""

    implementation: str
    invariant: Invariant
    request: Request


class ReplayError(InputError):
    """A replay file that cannot be read; the message names file and problem."""


def write_replays(report: Report, folder: Path) -> dict[str, str]:
    """One file per finding; the answer maps an invariant's or deviation's id to its file."""
    named = [(finding.invariant.id, finding) for finding in report.falsified]
    named += list(report.deviations.items())
    return {
        name: write_replay(report.implementation, finding, replay_path(folder, report.implementation, name))
        for name, finding in named
    }


def write_replay(implementation: str, finding: Finding, path: Path) -> str:
    """One finding's file; the answer is its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": REPLAY_FORMAT,
        "implementation": implementation,
        "invariant": finding.invariant.id,
        "request": dump(finding.request),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return str(path)


def replay_path(folder: Path, implementation: str, name: str) -> Path:
    """Where the replay file of an invariant's or a deviation's finding stands."""
    return folder / f"{safe(implementation)}-{safe(name)}.json"


def safe(name: str) -> str:
    """A name that is a file name everywhere."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def read_replay(path: Path) -> Replay:
    """A replay file's content. Raises ``ReplayError``."""
    with reading(path, "a replay file", ReplayError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != REPLAY_FORMAT:
            raise ReplayError(f"{path}: format {content['format']!r}, expected {REPLAY_FORMAT!r}")
        return Replay(content["implementation"], BY_ID[content["invariant"]], load(content["request"]))


def answer_text(answer: Answer) -> str:
    """An answer as text, for files."""
    match answer:
        case Accepted(value):
            return f"accepted: {value!r}"
        case Refused(reason):
            return f"refused: {reason}"
        case Crashed(error, message):
            return f"{error} escaped: {message}"


def finding_content(finding: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    return {
        "invariant": finding.invariant.id,
        "section": finding.invariant.section,
        "complaint": finding.complaint,
        "stream": finding.stream,
        "after": finding.after,
        "expected": answer_text(finding.expected),
        "actual": answer_text(finding.actual),
        "request": dump(finding.request),
    }


def report_content(report: Report) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "format": REPORT_FORMAT,
        "implementation": report.implementation,
        "held": report.held,
        "profile": report.profile,
        "seed": report.seed,
        "areas": [area.value for area in report.areas],
        "requests": report.requests,
        "left_out": report.left_out,
        "seconds": round(report.seconds, 3),
        "invariants": [
            {
                "id": name,
                "sentence": BY_ID[name].sentence,
                "section": BY_ID[name].section,
                "examples": tally.examples,
                "held": tally.finding is None,
                "finding": None if tally.finding is None else finding_content(tally.finding),
            }
            for name, tally in report.invariants.items()
        ],
        "codes": [
            {"area": area.value, "code": code, "driven": tally.driven, "right": tally.right, "excused": tally.excused}
            for (area, code), tally in report.codes.items()
        ],
        "streams": [
            {"area": area.value, "name": name, "requests": tally.requests, "seconds": round(tally.seconds, 3)}
            for (area, name), tally in report.streams.items()
        ],
        "deviations": [
            {
                "id": name,
                "sentence": sentence,
                "times": report.deviation_counts.get(name, 0),
                "finding": finding_content(report.deviations[name]) if name in report.deviations else None,
            }
            for name, sentence in report.declared.items()
        ],
    }


def write_reports(reports: list[Report], folder: Path) -> None:
    """``report.json``, ``report.html``, ``report.sarif`` and ``junit.xml`` over all checked implementations.

    Their replay files are expected in ``replays``, below ``folder``.
    """
    from rollproof.properties.gate.html import html_page
    from rollproof.properties.gate.sarif import sarif_log

    folder.mkdir(parents=True, exist_ok=True)
    content = [report_content(report) for report in reports]
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    replays = folder / "replays"
    (folder / "report.html").write_text(html_page(reports, replays), encoding="utf-8")
    (folder / "report.sarif").write_text(json.dumps(sarif_log(reports, replays), indent=1) + "\n", encoding="utf-8")
    write_junit(reports, folder / "junit.xml")


def write_junit(reports: list[Report], path: Path) -> None:
    """One suite per implementation, one case per invariant."""
    xml = JUnitXml("rollproof")
    for report in reports:
        suite = TestSuite(report.implementation)
        for name, tally in report.invariants.items():
            case = TestCase(f"{name} {BY_ID[name].sentence}", f"{report.implementation}.{BY_ID[name].area.value}")
            if tally.finding is not None:
                failure = Failure(printable(tally.finding.complaint), BY_ID[name].section)
                found = finding_content(tally.finding)
                failure.text = json.dumps({key: found[key] for key in ("expected", "actual", "request")}, indent=1)
                case.result = [failure]
            elif tally.examples == 0:
                case.result = [Skipped("no example ran")]
            suite.add_testcase(case)
        xml.add_testsuite(suite)
    xml.write(str(path), pretty=True)


def printable(text: str) -> str:
    """Text without the control characters and surrogates that XML cannot hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)
