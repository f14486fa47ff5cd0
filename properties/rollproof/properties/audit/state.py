"""What an audit has found so far, on disk, so that memory stays constant and an interrupted audit can continue.

One SQLite file holds per audited file how far it was read and what was counted, every finding, and a hash of every
group that was published for good. All of a batch is written in one transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from attrs import asdict, define, field

from rollproof.properties.errors import InputError, reading
from rollproof.properties.wire.bounds import parse_json
from rollproof.spec.advisories import LONGEST

VERSION: Final = "rollproof-audit-state-5"

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (version TEXT);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, position INTEGER, ending BLOB, tally TEXT);
CREATE TABLE IF NOT EXISTS findings (path TEXT, line INTEGER, content TEXT);
CREATE TABLE IF NOT EXISTS advisories (path TEXT, line INTEGER, content TEXT);
CREATE TABLE IF NOT EXISTS ends (partition TEXT, group_id TEXT, end TEXT, path TEXT, line INTEGER);
CREATE TABLE IF NOT EXISTS prompts (hash INTEGER PRIMARY KEY, group_id TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS promises (keys INTEGER, digest TEXT, UNIQUE (keys, digest));
CREATE TABLE IF NOT EXISTS cut_calls (hash INTEGER PRIMARY KEY, end TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS published (hash INTEGER PRIMARY KEY, path TEXT, line INTEGER) WITHOUT ROWID;
"""


@define
class Tally:
    """The counts of one file."""

    lines: int = 0
    groups: int = 0
    single_rollouts: int = 0
    cuts: int = 0
    restores: int = 0
    completions: int = 0
    """Of cut calls; abandoned ones too."""
    unjudged: int = 0
    """Cuts, restores and completions about which nothing can be said."""
    rows: int = 0
    placeholders: int = 0
    held: int = 0
    falsified: int = 0
    unreadable: int = 0
    invariants: dict[str, int] = field(factory=dict)
    """Falsified invariants: id to number of lines."""
    advisories: dict[str, int] = field(factory=dict)
    """Advisories: ``advisory/<name>`` to what they count in all; of runs, the longest."""

    uncommitted: dict[str, int] = field(factory=dict)
    """Columns that no digest covers, to the valid rows that were published with them."""

    def add(self, other: Tally) -> None:
        """Add the counts of another file."""
        for name, value in asdict(other).items():
            if type(value) is int:
                setattr(self, name, getattr(self, name) + value)
        count_in(self.invariants, other.invariants)
        count_in(self.uncommitted, other.uncommitted)
        for name, count in other.advisories.items():
            self.advise(name, count)

    def advise(self, name: str, count: int) -> None:
        """Count an advisory."""
        known = self.advisories.get(name, 0)
        longest = name.removeprefix("advisory/") in LONGEST
        self.advisories[name] = max(known, count) if longest else known + count


def count_in(counts: dict[str, int], further: Mapping[str, int]) -> None:
    """Add some counts to others, by name."""
    for name, count in further.items():
        counts[name] = counts.get(name, 0) + count


class State:
    """The state of one audit, in the file ``path``. Raises ``InputError`` where that cannot be used."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.executescript(f"PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; {_TABLES}")
            versions = self._database.execute("SELECT version FROM about").fetchall()
            if not versions:
                self._database.execute("INSERT INTO about VALUES (?)", (VERSION,))
            elif versions != [(VERSION,)]:
                raise InputError(f"{path}: an audit state of another version, expected {VERSION!r}")
            if not resume:
                for table in (
                    "files",
                    "findings",
                    "published",
                    "prompts",
                    "advisories",
                    "ends",
                    "promises",
                    "cut_calls",
                ):
                    self._database.execute(f"DELETE FROM {table}")
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"{path}: cannot keep an audit state there ({error}); choose one with --state") from error

    def close(self, *, remove: bool) -> None:
        """Close; an audit that is complete needs no state."""
        self._database.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Start a transaction."""
        self._database.execute("BEGIN")

    def commit(self) -> None:
        """End it."""
        self._database.execute("COMMIT")

    def progress(self, file: Path) -> tuple[int, bytes, Tally]:
        """Return how far a file was read, the bytes before that, and what was counted."""
        row = self._database.execute(
            "SELECT position, ending, tally FROM files WHERE path = ?", (key(file),)
        ).fetchone()
        if row is None:
            return 0, b"", Tally()
        position, ending, tally = row
        with reading(self.path, "an audit state"):
            if type(position) is not int or type(ending) is not bytes:
                raise InputError(f"{self.path}: position {position!r} of {file}, expected an integer and bytes")
            return position, ending, Tally(**parse_json(tally))

    def advance(self, file: Path, position: int, ending: bytes, tally: Tally) -> None:
        """Record how far a file was read."""
        values = (key(file), position, ending, json.dumps(asdict(tally)))
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", values)

    def keep(self, file: Path, line: int, content: dict[str, Any]) -> None:
        """Keep one finding."""
        self._keep("findings", file, line, content)

    def advise(self, file: Path, line: int, content: dict[str, Any]) -> None:
        """Keep one advisory."""
        self._keep("advisories", file, line, content)

    def _keep(self, table: str, file: Path, line: int, content: dict[str, Any]) -> None:
        self._database.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (key(file), line, json.dumps(content)))

    def findings(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        """Yield the findings about some files, in order."""
        return self._kept("findings", files)

    def advisories(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        """Yield the advisories about some files, in order."""
        return self._kept("advisories", files)

    def _kept(self, table: str, files: list[Path]) -> Iterator[dict[str, Any]]:
        for file in dict.fromkeys(files):
            rows = self._database.execute(
                f"SELECT content FROM {table} WHERE path = ? ORDER BY line, rowid", (key(file),)
            )
            for (content,) in rows:
                with reading(self.path, "an audit state"):
                    finding = parse_json(content)
                yield {"file": str(file), **finding}

    def end(self, partition: str, group_id: str, end: str, file: Path, line: int) -> None:
        """Record how one call for a group ended."""
        self._database.execute("INSERT INTO ends VALUES (?, ?, ?, ?, ?)", (partition, group_id, end, key(file), line))

    def ends(self, files: list[Path]) -> Iterator[tuple[str, str, str, int]]:
        """Yield (group id, end, file, line) of every recorded call for a group, in the order of files and lines."""
        for file in dict.fromkeys(files):
            rows = self._database.execute(
                "SELECT group_id, end, line FROM ends WHERE path = ? ORDER BY line", (key(file),)
            )
            for group_id, end, line in rows:
                yield group_id, end, str(file), line

    def prompt(self, partition: str, prompt: str, group_id: str) -> bool:
        """Record the prompt of a published group; return whether another group had it before."""
        number = hash_of(partition, prompt)
        found = self._database.execute("SELECT group_id FROM prompts WHERE hash = ?", (number,)).fetchone()
        if found is None:
            self._database.execute("INSERT INTO prompts VALUES (?, ?)", (number, group_id))
        return found is not None and found != (group_id,)

    def publish(self, partition: str, group_id: str, file: Path, line: int) -> tuple[str, int] | None:
        """Record that a group was published for good; return where it was published before, if it was."""
        number = hash_of(partition, group_id)
        found = self._database.execute("SELECT path, line FROM published WHERE hash = ?", (number,))
        before: tuple[str, int] | None = found.fetchone()
        if before is None:
            self._database.execute("INSERT INTO published VALUES (?, ?, ?)", (number, key(file), line))
        return before

    def promise(self, partition: str, call: str, keys: tuple[str, ...], digest: str) -> None:
        """Record an acknowledgement of a call that was cut, or one that it was restored from."""
        self._database.execute("INSERT OR IGNORE INTO promises VALUES (?, ?)", (hash_of(partition, *keys), digest))
        self._database.execute("INSERT OR IGNORE INTO cut_calls VALUES (?, 'open')", (hash_of(partition, call),))

    def promised(self, partition: str, keys: tuple[str, ...]) -> list[str]:
        """Return the digests that were acknowledged under these keys so far."""
        found = self._database.execute("SELECT digest FROM promises WHERE keys = ?", (hash_of(partition, *keys),))
        return [digest for (digest,) in found]

    def end_cut_call(self, partition: str, call: str, end: str) -> None:
        """Record how a call ended, if a cut of it was acknowledged."""
        self._database.execute(
            "UPDATE cut_calls SET end = ? WHERE hash = ? AND end != 'completed'", (end, hash_of(partition, call))
        )

    def cut_calls(self) -> dict[str, int]:
        """Return how many calls of which a cut was acknowledged ended in each way; open where no line says."""
        return dict(self._database.execute("SELECT end, COUNT(*) FROM cut_calls GROUP BY end ORDER BY end"))


def hash_of(*names: str) -> int:
    """Return a key of 64 bits."""
    digest = hashlib.sha256(json.dumps(names).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def key(file: Path) -> str:
    """Return the name of a file in the state."""
    return str(file.resolve())
