"""The files that a run writes besides its corpus: inputs beyond a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rollproof.properties.errors import reading
from rollproof.properties.fuzz.limits import LimitFinding
from rollproof.properties.gate.files import ReplayError
from rollproof.properties.gate.load import is_installed
from rollproof.properties.gate.text import safe
from rollproof.properties.wire.bounds import read_json
from rollproof.properties.wire.codec import dump, load
from rollproof.spec.judge.requests import Request

LIMIT_FORMAT: Final = "rollproof-limit-1"


def write_limits(implementation: str, findings: list[LimitFinding], folder: Path) -> list[str]:
    """Write one file per finding; return their paths, in order."""
    paths = []
    for finding in findings:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{safe(implementation)}-{safe('-'.join(part for part in finding.key if part))}.json"
        content = {
            "format": LIMIT_FORMAT,
            "implementation": implementation if is_installed(implementation) else None,
            "limit": finding.limit.value,
            "figure": finding.figure,
            "request": dump(finding.request),
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        paths.append(str(path))
    return paths


def read_limit(path: Path) -> tuple[Any, Request]:
    """Return the implementation that such a file names, unchecked, and its request. Raises ``ReplayError``."""
    with reading(path, "an input beyond a limit", ReplayError):
        content: Any = read_json(path)
        if content["format"] != LIMIT_FORMAT:
            raise ReplayError(f"{path}: format {content['format']!r}, expected {LIMIT_FORMAT!r}")
        return content.get("implementation"), load(content["request"])
