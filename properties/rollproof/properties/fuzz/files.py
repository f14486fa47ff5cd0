"""What a run leaves on disk besides its corpus: inputs beyond a limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from rollproof.properties.errors import reading
from rollproof.properties.fuzz.limits import LimitFinding
from rollproof.properties.gate.files import ReplayError, safe
from rollproof.properties.strategies.codec import dump, load
from rollproof.spec.requests import Request

LIMIT_FORMAT: Final = "rollproof-limit-1"


def write_limits(implementation: str, findings: list[LimitFinding], folder: Path) -> list[str]:
    """One file per finding; their paths, in order."""
    paths = []
    for finding in findings:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{safe(implementation)}-{safe('-'.join(part for part in finding.key if part))}.json"
        content = {
            "format": LIMIT_FORMAT,
            "implementation": implementation,
            "limit": finding.limit.value,
            "figure": finding.figure,
            "request": dump(finding.request),
        }
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        paths.append(str(path))
    return paths


def read_limit(path: Path) -> tuple[str, Request]:
    """The implementation and the request in such a file. Raises ``ReplayError``."""
    with reading(path, "an input beyond a limit", ReplayError):
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != LIMIT_FORMAT:
            raise ReplayError(f"{path}: format {content['format']!r}, expected {LIMIT_FORMAT!r}")
        return content["implementation"], load(content["request"])
