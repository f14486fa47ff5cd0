"""The files that a check writes: JSON and JUnit reports, and replay files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from rollproof.properties.errors import InputError, reading
from rollproof.properties.gate.codes import reaches
from rollproof.properties.gate.html import html_page
from rollproof.properties.gate.load import is_installed
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.gate.sarif import sarif_log
from rollproof.properties.gate.snippet import program_text
from rollproof.properties.gate.text import answer_text, printable, replay_path
from rollproof.properties.wire.bounds import read_json
from rollproof.properties.wire.codec import dump, load
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.requests import Request

REPLAY_FORMAT: Final = "rollproof-replay-1"
REPORT_FORMAT: Final = "rollproof-report-1"


@frozen
class Replay:
    """A replay file: which invariant failed for which implementation, on which request."""

    implementation: Any
    """As the file has it: not to be loaded before ``named_in_file`` has seen it."""
    invariant: Invariant
    request: Request


class ReplayError(InputError):
    """A replay file that cannot be read; the message names file and problem."""


def write_replays(report: Report, folder: Path) -> dict[str, str]:
    """Write one file per finding; return the file by invariant's or deviation's id."""
    named = [(finding.invariant.id, finding) for finding in report.falsified]
    named += list(report.deviations.items())
    return {
        name: write_replay(report.implementation, finding, replay_path(folder, report.implementation, name))
        for name, finding in named
    }


def write_replay(implementation: str, finding: Finding, path: Path) -> str:
    """Write a finding's replay file, and beside it the finding as a program; return the replay file's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "format": REPLAY_FORMAT,
        "implementation": implementation if is_installed(implementation) else None,
        "invariant": finding.invariant.id,
        "request": dump(finding.request),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".py").write_text(program_text(finding, implementation), encoding="utf-8")
    return str(path)


def read_replay(path: Path) -> Replay:
    """Return a replay file's content. Raises ``ReplayError``."""
    with reading(path, "a replay file", ReplayError):
        content = read_json(path)
        if content["format"] != REPLAY_FORMAT:
            raise ReplayError(f"{path}: format {content['format']!r}, expected {REPLAY_FORMAT!r}")
        return Replay(content.get("implementation"), BY_ID[content["invariant"]], load(content["request"]))


def finding_content(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON."""
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
    """Return a report as JSON."""
    return {
        "format": REPORT_FORMAT,
        "implementation": report.implementation,
        "held": report.held,
        "exercised": report.exercised,
        "not_exercised": report.not_exercised,
        "strict": report.strict,
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
                "held": tally.finding is None or BY_ID[name].advisory,
                "finding": None if tally.finding is None else finding_content(tally.finding),
            }
            for name, tally in report.invariants.items()
        ],
        "codes": [
            {
                "area": area.value,
                "place": reach.place.value,
                "code": reach.code,
                **asdict(report.codes[area, reach.name]),
            }
            for area in report.areas
            for reach in reaches(area)
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
    """Write ``report.json``, ``report.html``, ``report.sarif`` and ``junit.xml`` over all checked implementations.

    Their replay files are expected in ``replays``, below ``folder``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = [report_content(report) for report in reports]
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    replays = folder / "replays"
    (folder / "report.html").write_text(html_page(reports, replays), encoding="utf-8")
    (folder / "report.sarif").write_text(json.dumps(sarif_log(reports, replays), indent=1) + "\n", encoding="utf-8")
    write_junit(reports, folder / "junit.xml")


def write_junit(reports: list[Report], path: Path) -> None:
    """Write one suite per implementation, one case per invariant, and one for what should have been exercised."""
    xml = JUnitXml("rollproof")
    for report in reports:
        suite = TestSuite(printable(report.implementation))
        strictly = report.deviations.values() if report.strict else ()
        for name, tally in report.invariants.items():
            group = printable(f"{report.implementation}.{BY_ID[name].area.value}")
            case = TestCase(f"{name} {BY_ID[name].sentence}", group)
            found_wrong = None if BY_ID[name].advisory else tally.finding
            failed = found_wrong or next((one for one in strictly if one.invariant_id == name), None)
            if failed is not None:
                failure = Failure(printable(failed.complaint), BY_ID[name].section)
                found = finding_content(failed)
                failure.text = json.dumps({key: found[key] for key in ("expected", "actual", "request")}, indent=1)
                case.result = [failure]
            elif tally.examples == 0:
                case.result = [Skipped("no example ran")]
            suite.add_testcase(case)
        exercised = TestCase("everything that is reachable is exercised", printable(report.implementation))
        if report.not_exercised:
            words = ", ".join(report.not_exercised)
            exercised.result = [Skipped(words) if report.exercised else Error(f"not exercised: {words}")]
        suite.add_testcase(exercised)
        xml.add_testsuite(suite)
    xml.write(str(path), pretty=True)
