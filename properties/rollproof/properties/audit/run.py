"""An audit of files of any length: lines stream through worker processes in batches, verdicts come back in order.

Memory is bounded by the batches in flight. Verdicts do not depend on the number of processes, nor on where they run.
"""

from __future__ import annotations

import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from attrs import asdict, define, field, frozen

from rollproof.properties.audit import COMPLETION, CUT, GROUP, RESTORE, ROLLOUT
from rollproof.properties.audit.judge import ADVISORY, Verdict, judge
from rollproof.properties.audit.lines import ENDING_BYTES, Batch, batches, ending
from rollproof.properties.audit.reading import PUBLISHED, read_line
from rollproof.properties.audit.reading_cuts import CutRecord
from rollproof.properties.audit.state import State, Tally, count_in
from rollproof.properties.audit.stored import LineError
from rollproof.properties.cluster import Cluster, workers
from rollproof.properties.errors import InputError
from rollproof.properties.processes import never, nothing
from rollproof.spec.advisories import SHARED_PROMPT, Advisory

RERUN: Final = "RERUN"
RECUT: Final = "RECUT"
CONTINUED: Final = "CONTINUED"
"""The rules that the audit itself adds to the catalogue, about several lines."""
OWN_RULES: Final = {
    RERUN: ("8", "A group whose rows are published and whose clear was attempted is not finalized again."),
    RECUT: ("11", "The final row of a call that was cut is put once."),
    CONTINUED: ("11", "What a cut or a completion continues is what was acknowledged, or restored, under its keys."),
}
"""The section and the sentence of each."""

MOST_UNREADABLE: Final = 100
"""Lines of one file; after so many it is something else."""

COMMIT_SECONDS: Final = 1.0

Verdicts: TypeAlias = list[Verdict | str | None]
"""Per line: its verdict, or why there is none; None for an empty line."""

Progress: TypeAlias = Callable[[Path, int], None]
"""Called with a file and the bytes of it that were read by now."""


@frozen
class Work:
    """A batch of lines as a worker gets it."""

    file: Path
    lines: tuple[bytes, ...]
    skip: frozenset[str]

    def verdicts(self) -> Verdicts:
        """Judge every line, in order."""
        return [self._verdict(line) for line in self.lines]

    def _verdict(self, line: bytes) -> Verdict | str | None:
        if not line.strip():
            return None
        try:
            return judge(read_line(line, self.file), self.skip)
        except LineError as error:
            return str(error)


Submit: TypeAlias = Callable[[Work], Callable[[], Verdicts]]
"""Hands a batch over; the result gives its verdicts."""


@define
class Audit:
    """One audit; ``run`` fills the state."""

    files: Sequence[Path]
    state: State
    place: int | Cluster = 1
    """A number of processes on this machine, or workers elsewhere."""
    skip: frozenset[str] = frozenset()
    progress: Progress = lambda _file, _read: None
    limits: Mapping[str, int] = field(factory=dict)
    """Advisories that are failures from a count on."""
    dispatched: Counter[str] | None = None
    """The ledger: how often each group was dispatched."""
    seconds: float = 0.0
    cut_off: dict[Path, tuple[int, str]] = field(factory=dict)
    """Files that end in the middle of a line, or cannot be read any further: the line's number, and what is wrong.

    The state does not know about it: by the next time, the line may be complete.
    """
    _committed: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Read every file from where the state says to its end."""
        started = self._committed = time.monotonic()
        self.state.begin()
        try:
            with judged_at(self.place, self.files) as submit:
                for file in dict.fromkeys(self.files):
                    self._run_file(file, submit)
        finally:
            self.state.commit()
            self.seconds = time.monotonic() - started

    def _run_file(self, file: Path, submit: Submit) -> None:
        position, before, tally = self.state.progress(file)
        if position and ending(file, position) != before:
            raise InputError(f"{file}: not the file that {self.state.path} is about; start again without --resume")
        for batch, verdicts in self._judged(file, position, tally.lines, submit):
            lines, end = batch.lines, batch.end
            if batch.error is not None:
                self.cut_off[file] = (batch.first + len(lines), batch.error)
            elif lines and not lines[-1].endswith(b"\n") and isinstance(verdicts[-1], str):
                self.cut_off[file] = (batch.first + len(lines) - 1, f"the file ends within the line ({verdicts[-1]})")
                end -= len(lines[-1])
                lines = lines[:-1]
            for number, verdict in enumerate(verdicts[: len(lines)], batch.first):
                self._count(file, number, verdict, tally)
            tally.lines += len(lines)
            before = (before + b"".join(lines))[-ENDING_BYTES:]
            self.state.advance(file, end, before, tally)
            self.progress(file, batch.read)
            if time.monotonic() - self._committed > COMMIT_SECONDS:
                self.state.commit()
                self.state.begin()
                self._committed = time.monotonic()
            if tally.unreadable >= MOST_UNREADABLE:
                self.cut_off[file] = (tally.lines + 1, f"not read further: {tally.unreadable} lines are unreadable")
                return

    def _judged(self, file: Path, position: int, line: int, submit: Submit) -> Iterator[tuple[Batch, Verdicts]]:
        """Yield batches with their verdicts, in order; a few are always under way."""
        ahead = 2 * (self.place.size if isinstance(self.place, Cluster) else self.place)
        waiting: deque[tuple[Batch, Callable[[], Verdicts]]] = deque()
        for batch in batches(file, position, line):
            waiting.append((batch, submit(Work(file, batch.lines, self.skip))))
            if len(waiting) > ahead:
                first, result = waiting.popleft()
                yield first, result()
        while waiting:
            first, result = waiting.popleft()
            yield first, result()

    def _count(self, file: Path, line: int, verdict: Verdict | str | None, tally: Tally) -> None:
        """Add one line to the tally, and keep what was found."""
        if verdict is None:
            return
        if isinstance(verdict, str):
            tally.unreadable += 1
            self.state.keep(file, line, {"line": line, "unreadable": verdict})
            return
        broken = list(verdict.broken)
        if verdict.final:
            earlier = self.state.publish(verdict.partition, verdict.group_id, file, line)
            if earlier is not None and RERUN not in self.skip:
                broken.append((RERUN, f"published before: line {earlier[1]} of {earlier[0]}"))
        for one in (*verdict.advisories, *self._shared_prompt(verdict)):
            tally.advise(f"{ADVISORY}{one.name}", one.count)
            content = {"line": line, "group_id": verdict.group_id, "partition": verdict.partition, **asdict(one)}
            self.state.advise(file, line, content)
        if verdict.cut is not None:
            broken += self._across(verdict, verdict.cut, file, line)
            tally.unjudged += verdict.cut.unjudged
        if verdict.is_group:
            self.state.end(verdict.partition, verdict.group_id, verdict.end, file, line)
        tally.groups += verdict.is_group
        tally.single_rollouts += verdict.kind == ROLLOUT
        tally.cuts += len(verdict.cut.calls) if verdict.cut is not None and verdict.kind == CUT else 0
        tally.restores += verdict.kind == RESTORE
        tally.completions += verdict.kind == COMPLETION
        tally.rows += verdict.rows
        tally.placeholders += verdict.placeholders
        tally.held += not broken
        tally.falsified += bool(broken)
        count_in(tally.invariants, dict.fromkeys(dict(broken), 1))
        count_in(tally.uncommitted, verdict.uncommitted)
        if broken:
            self.state.keep(file, line, falsified_content(line, verdict, broken))

    def _across(self, verdict: Verdict, cut: CutRecord, file: Path, line: int) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with a line about cuts beside others, and record what it promises (section 11)."""
        partition = verdict.partition
        for keys, digest in cut.continued:
            promised = self.state.promised(partition, keys)
            if promised and digest not in promised and CONTINUED not in self.skip:
                yield CONTINUED, f"continues {digest} under {keys[-1]!r}, and acknowledged was {', '.join(promised)}"
        for call, (keys, digest) in cut.promised:
            self.state.promise(partition, call, keys, digest)
        if cut.ended is not None:
            self.state.end_cut_call(partition, cut.calls[0], cut.ended)
        if cut.final_key is not None:
            earlier = self.state.publish(partition, cut.final_key, file, line)
            if earlier is not None and RECUT not in self.skip:
                yield RECUT, f"{cut.final_key!r} was put before: line {earlier[1]} of {earlier[0]}"

    def _shared_prompt(self, verdict: Verdict) -> Iterator[Advisory]:
        """Yield the advisory of a published group whose prompt another one had before (decision D39)."""
        if verdict.prompt is None or verdict.end != PUBLISHED:
            return
        rollout_id, prompt = verdict.prompt
        if self.state.prompt(verdict.partition, prompt, verdict.group_id):
            yield Advisory(SHARED_PROMPT, rollout_id, None, 1)


SUBJECTS: Final = {GROUP: "group_id", ROLLOUT: "rollout_id", **dict.fromkeys((CUT, RESTORE, COMPLETION), "call")}
"""What a finding is about, by the kind of its line."""


def falsified_content(line: int, verdict: Verdict, broken: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return a falsified line as JSON."""
    return {
        "line": line,
        SUBJECTS[verdict.kind]: verdict.group_id,
        "partition": verdict.partition,
        "invariants": [{"id": name, "complaint": complaint} for name, complaint in broken],
        "differences": [
            {name: value for name, value in asdict(one).items() if value is not None} for one in verdict.differences
        ],
    }


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def judged_at(place: int | Cluster, files: Sequence[Path]) -> Iterator[Submit]:
    """Choose where a batch is judged: in this process, when its turn comes, in one of several, or on a cluster."""
    if place == 1:
        yield lambda work: work.verdicts
        return
    begin = partial(check_files, files) if isinstance(place, Cluster) else nothing
    most = place.size if isinstance(place, Cluster) else place
    with workers(place, begin, never, most, preload=(__name__,)) as others:
        yield lambda work: others.submit(work.verdicts)


def check_files(files: Sequence[Path], _: Any) -> None:
    """Check the files on another machine: the lines are sent, but their shards are beside the files."""
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: not there on {platform.node()}; expected files that all machines share")
