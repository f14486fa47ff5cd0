"""The ledger: what became of every group that was dispatched.

A run that loses groups looks right group by group. The dispatcher knows which ones there were: each of them is
published once, dropped, or pending (nothing recorded, or only attempts that may be repeated); anything else is a
finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import define, field

from rollproof.properties.audit.reading import DROPPED, PENDING, PUBLISHED
from rollproof.properties.audit.state import State
from rollproof.properties.errors import InputError, reading
from rollproof.properties.wire.bounds import LARGEST_FILE


@define
class Balance:
    """Dispatched groups by what became of them, and what is wrong."""

    counts: dict[str, int] = field(factory=lambda: dict.fromkeys((PUBLISHED, DROPPED, PENDING), 0))
    pending: list[str] = field(factory=list)
    findings: list[dict[str, Any]] = field(factory=list)
    """Group id, complaint, and the places of its records."""


def read_ledger(path: Path) -> Counter[str]:
    """Return how often each group id is listed, one a line; empty lines count for nothing. Raises ``InputError``."""
    with reading(path, "a ledger of group ids in UTF-8"):
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InputError(f"{path}: more than {LARGEST_FILE:,} bytes")
        lines = (line.removesuffix("\r") for line in data.decode("utf-8-sig").split("\n"))
        return Counter(line for line in lines if line)


def balance(dispatched: Counter[str], state: State, files: list[Path]) -> Balance:
    """Compare what was dispatched with what was recorded in some files."""
    ends: dict[str, list[tuple[str, str]]] = {}
    for group_id, end, file, line in state.ends(files):
        ends.setdefault(group_id, []).append((end, f"{file}:{line}"))
    found = Balance()
    for group_id, times in dispatched.items():
        recorded = ends.get(group_id, [])
        complaints = list(complaints_about(times, [end for end, _ in recorded]))
        if complaints:
            places = [f"{place} ({end})" for end, place in recorded]
            found.findings += ({"group_id": group_id, "complaint": one, "records": places} for one in complaints)
            continue
        kinds = {end for end, _ in recorded}
        end = PUBLISHED if PUBLISHED in kinds else DROPPED if DROPPED in kinds else PENDING
        found.counts[end] += 1
        if end == PENDING:
            found.pending.append(group_id)
    for group_id in ends.keys() - dispatched.keys():
        places = [f"{place} ({end})" for end, place in ends[group_id]]
        found.findings.append({"group_id": group_id, "complaint": "recorded, but never dispatched", "records": places})
    found.findings.sort(key=lambda finding: str(finding["group_id"]))
    return found


def complaints_about(times: int, ends: list[str]) -> Iterator[str]:
    """Yield what is wrong with a dispatched group."""
    published, dropped = ends.count(PUBLISHED), ends.count(DROPPED)
    if times > 1:
        yield f"dispatched {times} times"
    if published > 1:
        yield f"published {published} times"
    if published and dropped:
        yield "published and dropped"
    if dropped > 1:
        yield f"dropped {dropped} times"
