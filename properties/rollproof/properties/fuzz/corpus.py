"""The inputs that reached something new, stream by stream, kept by Hypothesis' own database.

Hypothesis keeps, beside failing examples, those that no other beats in any observation of ``target``, and tries them
first in the next run. A round labels what reaches something new with a label of its own, so nothing beats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

TARGETED: Final = b".pareto"
"""How Hypothesis' key for such examples ends."""


class RoundDatabase(ExampleDatabase):
    """The examples that one round starts from, and those that it adds.

    Nothing is ever deleted: the round's owner decides.
    """

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        super().__init__()
        self._values = tuple(values)
        self.novel = False
        """Whether the example that has just run reached something new."""
        self.kept: dict[bytes, None] = {}
        """The examples that did, in order."""

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the examples to start from."""
        return self._values if key.endswith(TARGETED) else ()

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example, if it is worth it."""
        if self.novel and key.endswith(TARGETED):
            self.kept[value] = None

    def delete(self, key: bytes, value: bytes) -> None:
        """Keep examples that something beats: they reached something that it did not."""


class Corpus:
    """A folder with the examples of every stream of one implementation; None keeps them in memory alone."""

    def __init__(self, folder: Path | None) -> None:
        self._disk = None if folder is None else DirectoryBasedExampleDatabase(folder)
        self._values: dict[bytes, dict[bytes, None]] = {}

    def of(self, stream: str) -> tuple[bytes, ...]:
        """Return a stream's examples, the same order for the same examples."""
        return tuple(self._stream(stream.encode()))

    def add(self, stream: str, values: Iterable[bytes]) -> None:
        """Keep examples of a stream."""
        known = self._stream(stream.encode())
        for value in values:
            if value not in known:
                known[value] = None
                if self._disk is not None:
                    self._disk.save(stream.encode(), value)

    def replace(self, stream: str, values: Sequence[bytes]) -> None:
        """Keep these examples of a stream and no others."""
        for value in self.of(stream):
            if value not in values and self._disk is not None:
                self._disk.delete(stream.encode(), value)
        self._values[stream.encode()] = {}
        self.add(stream, values)

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def _stream(self, key: bytes) -> dict[bytes, None]:
        if key not in self._values:
            found = [] if self._disk is None else sorted(self._disk.fetch(key))
            self._values[key] = dict.fromkeys(found)
        return self._values[key]
