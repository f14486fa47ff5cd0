"""Requests kept on disk between runs, because drawing them takes a third of a run.

A seed gives the same requests until the contract, the streams or Hypothesis change. So a folder of requests is named
after their sources, and the ones of other sources are removed. The files are pickles: whoever can write to them can run
code here.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from attrs import frozen

import rollproof.properties
import rollproof.spec
from rollproof.properties.strategies.stream import Stream
from rollproof.spec.judge.requests import Request

PACKAGES: Final = (rollproof.spec, rollproof.properties)
"""Packages whose sources decide what is drawn."""

LIBRARIES: Final = ("attrs", "hypothesis")
"""Libraries whose versions do, too."""


@cache
def sources() -> str:
    """Return a digest of all that decides what a seed gives."""
    state = hashlib.sha256(repr((platform.python_version(), [version(name) for name in LIBRARIES])).encode())
    for package in PACKAGES:
        for root in map(Path, package.__path__):
            for path in sorted(root.rglob("*.py")):
                state.update(repr((package.__name__, path.relative_to(root).as_posix())).encode())
                state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


@frozen
class KeptRequests:
    """A folder of requests."""

    folder: Path

    def read(self, stream: Stream, *key: object) -> Sequence[Request] | None:
        """Return the requests of a stream that were kept under a key; None where they cannot be read."""
        try:
            kept: Any = pickle.loads(self._path(stream, key).read_bytes())
        except Exception:
            return None
        return kept if isinstance(kept, tuple) else None

    def write(self, requests: Sequence[Request], stream: Stream, *key: object) -> None:
        """Keep the requests of a stream; all at once, since other processes may read or write the same ones."""
        path = self._path(stream, key)
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._remove_others(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(pickle.dumps(tuple(requests), pickle.HIGHEST_PROTOCOL))
        Path(file.name).replace(path)

    def _remove_others(self, current: Path) -> None:
        """Remove the requests of other sources."""
        for other in self.folder.iterdir():
            if re.fullmatch("requests-[0-9a-f]{16}", other.name) and other != current:
                shutil.rmtree(other, ignore_errors=True)

    def _path(self, stream: Stream, key: Sequence[object]) -> Path:
        name = hashlib.sha256(repr((stream.area.value, stream.name, *key)).encode()).hexdigest()[:16]
        return self.folder / f"requests-{sources()}" / f"{name}.pickle"
