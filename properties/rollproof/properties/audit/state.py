"""What an audit has found so far, on disk: so that memory stays constant, and an interrupted audit can go on.

One SQLite file holds per audited file how far it was read and what was counted, every finding, and a hash of every
group that was published for good. All of a batch is written in one transaction.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from attrs import asdict, define, field

from rollproof.properties.errors import InputError

VERSION: Final = "rollproof-audit-state-1"

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS about (version TEXT);
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, position INTEGER, ending BLOB, tally TEXT);
CREATE TABLE IF NOT EXISTS findings (path TEXT, line INTEGER, content TEXT);
CREATE TABLE IF NOT EXISTS published (hash INTEGER PRIMARY KEY, path TEXT, line INTEGER) WITHOUT ROWID;
"""


@define
class Tally:
    """What was counted in one file."""

    lines: int = 0
    groups: int = 0
    single_rollouts: int = 0
    rows: int = 0
    placeholders: int = 0
    held: int = 0
    falsified: int = 0
    unreadable: int = 0
    invariants: dict[str, int] = field(factory=dict)
    """Falsified invariants: id to number of lines."""

    def add(self, other: Tally) -> None:
        """Count what another file had."""
        for name, value in asdict(other).items():
            if name != "invariants":
                setattr(self, name, getattr(self, name) + value)
        for name, count in other.invariants.items():
            self.invariants[name] = self.invariants.get(name, 0) + count


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
                for table in ("files", "findings", "published"):
                    self._database.execute(f"DELETE FROM {table}")
        except (sqlite3.Error, OSError) as error:
            raise InputError(f"{path}: no audit state can be kept there ({error}); choose one with --state") from error

    def close(self, *, remove: bool) -> None:
        """Done; an audit that came to its end needs no state."""
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
        """How far a file was read, the bytes before that, and what was counted."""
        row = self._database.execute(
            "SELECT position, ending, tally FROM files WHERE path = ?", (key(file),)
        ).fetchone()
        return (0, b"", Tally()) if row is None else (row[0], row[1], Tally(**json.loads(row[2])))

    def advance(self, file: Path, position: int, ending: bytes, tally: Tally) -> None:
        """Note how far a file was read."""
        values = (key(file), position, ending, json.dumps(asdict(tally)))
        self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", values)

    def keep(self, file: Path, line: int, content: dict[str, Any]) -> None:
        """One finding."""
        self._database.execute("INSERT INTO findings VALUES (?, ?, ?)", (key(file), line, json.dumps(content)))

    def findings(self, files: list[Path]) -> Iterator[dict[str, Any]]:
        """The findings about some files, in order."""
        for file in dict.fromkeys(files):
            rows = self._database.execute("SELECT content FROM findings WHERE path = ? ORDER BY line", (key(file),))
            for (content,) in rows:
                yield {"file": str(file), **json.loads(content)}

    def publish(self, partition: str, group_id: str, file: Path, line: int) -> tuple[str, int] | None:
        """Note that a group was published for good; where that was before, if it was."""
        digest = hashlib.sha256(json.dumps([partition, group_id]).encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        found = self._database.execute("SELECT path, line FROM published WHERE hash = ?", (number,))
        before: tuple[str, int] | None = found.fetchone()
        if before is None:
            self._database.execute("INSERT INTO published VALUES (?, ?, ?)", (number, key(file), line))
        return before


def key(file: Path) -> str:
    """The name of a file in the state."""
    return str(file.resolve())
