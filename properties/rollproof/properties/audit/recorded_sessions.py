"""Sessions as a trainer recorded them, one a line, judged by section 14: calls in, rows out.

A line is a JSON object with ``calls`` and ``rows``, in the words of the wire's ``merge_calls``; with ``captures`` and
``num_experts`` its rows have routes and are judged as those of ``align_routes``. Everything else may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import define, field, fields

from rollproof.properties.adapters.functions import WrongShape, as_record
from rollproof.properties.audit.lines import batches
from rollproof.properties.wire.bounds import parse_json
from rollproof.spec.judge.catalogue import of_area
from rollproof.spec.judge.portable import AlignRoutes, MergeCalls
from rollproof.spec.judge.requests import KIND_OF, Accepted, Refused, Request

LEFT_OUT: Final[Mapping[str, Any]] = {"reward": 0.0, "max_len": None, "pad_id": 0, "eos_ids": [], "incremental": False}
"""What a line need not say."""
NOT_ASKED: Final = Refused("recorded")
"""In place of the spec's answer, which no invariant of section 14 looks at."""
KEPT: Final = 20
"""Complaints that are kept for each invariant."""


@define
class Sessions:
    """What was found in some files: lines read, and complaints by invariant, each with its place."""

    policies: frozenset[str]
    lines: int = 0
    rows: int = 0
    wrong: int = 0
    counts: dict[str, int] = field(factory=dict)
    """Lines by the invariant, or the advisory, that they break."""
    complaints: dict[str, list[str]] = field(factory=dict)
    unreadable: list[str] = field(factory=list)

    def read(self, path: Path) -> None:
        """Judge every line of a file, plain or gzipped. Raises ``InputError`` where it cannot be opened."""
        for batch in batches(path):
            for number, line in enumerate(batch.lines, batch.first):
                if line.strip():
                    self.judge(f"{path}:{number}", line)
            if batch.error is not None:
                self.unreadable.append(f"{path}: {batch.error}")

    def judge(self, place: str, line: bytes) -> None:
        """Judge one line."""
        self.lines += 1
        try:
            request, value = read_session(line)
        except ValueError as error:
            self.unreadable.append(f"{place}: {error}")
            return
        self.rows += len(value.rows if isinstance(request, MergeCalls) else value)
        broken = list(broken_by(request, Accepted(value, self.policies)))
        self.wrong += any(not advisory for _, _, advisory in broken)
        for name, complaint, _ in broken:
            self.counts[name] = self.counts.get(name, 0) + 1
            kept = self.complaints.setdefault(name, [])
            if len(kept) < KEPT:
                kept.append(f"{place}: {complaint}")


def broken_by(request: Request, answer: Accepted) -> Iterator[tuple[str, str, bool]]:
    """Yield the invariants that an answer breaks: id, what is wrong, and whether it is an advisory."""
    for item in of_area(KIND_OF[type(request)].area):
        if item.covers(request) and (complaint := item.check(request, NOT_ASKED, answer)) is not None:
            yield item.id, complaint, item.advisory


def read_session(line: bytes) -> tuple[MergeCalls | AlignRoutes, Any]:
    """Return the request and the answer in a line. Raises ``ValueError``."""
    content = parse_json(line)
    if type(content) is not dict:
        raise ValueError(f"got a {type(content).__name__}, expected an object with calls and rows")
    kind = AlignRoutes if "captures" in content else MergeCalls
    names = [one.name for one in fields(kind)]
    missing = [name for name in (*names, "rows") if name not in content and name not in LEFT_OUT]
    if missing:
        raise ValueError(f"no {missing[0]!r}")
    try:
        request = as_record(kind, {name: content.get(name, LEFT_OUT.get(name)) for name in names})
        rows = {"rows": content["rows"], "dropped": content.get("dropped", [])}
        value = as_record(KIND_OF[kind].answer, rows if kind is MergeCalls else content["rows"])
    except WrongShape as error:
        raise ValueError(str(error)) from None
    if isinstance(request, AlignRoutes) and len(request.captures) != len(request.calls):
        raise ValueError(f"captures: got {len(request.captures)}, expected {len(request.calls)}, one per call")
    return request, value
