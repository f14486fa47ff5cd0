"""A check as SARIF 2.1.0, for pages that show the results of code scanning.

One rule per invariant, one result per finding. Declared deviations are results too, as suppressed notes. All
implementations go into one run, because such pages take one run per tool and category.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rollproof.properties.errors import InputError
from rollproof.properties.gate.load import load_implementation
from rollproof.properties.gate.results import Finding, Report
from rollproof.properties.gate.text import answer_text, printable, repeated, replay_path
from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import Invariant, shortened

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT: Final = "%SRCROOT%"
"""The base of relative paths: the folder in which the check ran."""
LONGEST_ANSWER: Final = 600
"""Characters of an answer in a message; the replay file repeats the whole."""


def sarif_log(reports: Sequence[Report], replays: Path) -> dict[str, Any]:
    """Return every finding of some reports as a SARIF log; ``replays`` is the folder of their replay files."""
    names = list(dict.fromkeys(name for report in reports for name in report.invariants))
    results = [result(report, finding, names, replays) for report in reports for finding in findings(report)]
    driver = {
        "name": "rollproof",
        "semanticVersion": version("rollproof"),
        "rules": [rule(BY_ID[name]) for name in names],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "workingDirectory": {"uri": folder_uri(Path.cwd())}}],
        "originalUriBaseIds": {ROOT: {"uri": folder_uri(Path.cwd())}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def findings(report: Report) -> list[Finding]:
    """Return what does not hold, then what was declared not to."""
    return [*report.falsified, *report.deviations.values()]


def rule(item: Invariant) -> dict[str, Any]:
    """Return an invariant as a rule."""
    text = f"{item.sentence} Contract section {item.section}; see: rollproof rules {item.id}"
    return {
        "id": item.id,
        "name": item.id.replace("-", ""),
        "shortDescription": {"text": item.sentence},
        "fullDescription": {"text": item.sentence},
        "help": {
            "text": text,
            "markdown": f"{item.sentence}\n\nContract section {item.section}; see `rollproof rules {item.id}`.",
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": [f"area/{item.area}", f"section/{item.section}"], "precision": "very-high"},
    }


def result(report: Report, finding: Finding, names: list[str], replays: Path) -> dict[str, Any]:
    """Return a finding as a result. Its fingerprint stays while the same rule fails for the same implementation."""
    identity = "\0".join([report.implementation, finding.invariant_id, finding.deviation or ""])
    fingerprint = hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()
    replay = replay_path(replays, report.implementation, finding.deviation or finding.invariant_id)
    place = adapter_location(report.implementation)
    lines = [
        f"{report.implementation}: {finding.invariant.sentence}",
        finding.complaint,
        f"The contract: {shortened(answer_text(finding.expected), LONGEST_ANSWER)}",
        f"The implementation: {shortened(answer_text(finding.actual), LONGEST_ANSWER)}",
        f"To repeat it: {repeated('rollproof replay', replay, report.implementation)}",
    ]
    content: dict[str, Any] = {
        "ruleId": finding.invariant_id,
        "ruleIndex": names.index(finding.invariant_id),
        "level": "error",
        "message": {"text": printable("\n".join(lines))},
        "locations": [physical(*place) if place else physical(replay)],
        "partialFingerprints": {"rollproof/v1": fingerprint},
        "properties": {"implementation": printable(report.implementation), "stream": finding.stream},
    }
    if place:
        content["relatedLocations"] = [{"id": 1, "message": {"text": "smallest input"}, **physical(replay)}]
    if finding.deviation is not None and not report.strict:
        reason = f"declared deviation {finding.deviation}: {report.declared[finding.deviation]}"
        content |= {"level": "note", "suppressions": [{"kind": "inSource", "justification": printable(reason)}]}
    return content


def adapter_location(name: str) -> tuple[Path, int] | None:
    """Return file and line of the adapter called ``name``; None where it has no source below the working directory."""
    try:
        kind = type(load_implementation(name))
        path = Path(inspect.getsourcefile(kind) or "").resolve()
        line = inspect.getsourcelines(kind)[1]
    except (InputError, OSError, TypeError):
        return None
    return (path, line) if path.is_relative_to(Path.cwd()) else None


def physical(path: Path, line: int = 1) -> dict[str, Any]:
    """Return a place in a file: relative to the working directory where the file is below it."""
    whole = path.resolve()
    here = Path.cwd().resolve()
    where = (
        {"uri": quote(whole.relative_to(here).as_posix()), "uriBaseId": ROOT}
        if whole.is_relative_to(here)
        else {"uri": whole.as_uri()}
    )
    return {"physicalLocation": {"artifactLocation": where, "region": {"startLine": line}}}


def folder_uri(path: Path) -> str:
    """Return a folder as a URI that others can be relative to."""
    return f"{path.resolve().as_uri()}/"
