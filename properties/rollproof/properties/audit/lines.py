"""The lines of an audit file, plain or gzipped, from any position on, in batches of bounded size."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

from attrs import frozen

from rollproof.properties.errors import InputError

BATCH_BYTES: Final = 1 << 20
BATCH_LINES: Final = 64

LONGEST_LINE: Final = 256 << 20
"""A file without line feeds must not end up in memory."""

ENDING_BYTES: Final = 64
"""Enough of a file's content to know it again."""

GZIP_MAGIC: Final = b"\x1f\x8b"


@frozen
class Batch:
    """Some consecutive lines of a file, and the position where reading continues after them."""

    first: int
    """The number of the first line, from 1."""
    lines: tuple[bytes, ...]
    end: int
    """The position behind the last line, uncompressed."""
    read: int
    """Bytes of the file read so far, as it is on disk."""
    error: str | None = None
    """Why the line behind the last one cannot be read; nothing can be read after it."""


def batches(path: Path, position: int = 0, line: int = 0) -> Iterator[Batch]:
    """Yield the lines of ``path`` after ``position``, where ``line`` lines end. Raises ``InputError`` for no file."""
    with opened(path) as (raw, stream):
        error = problem_of(lambda: stream.seek(position))
        while error is None:
            lines: list[bytes] = []
            error = problem_of(partial(take, stream, lines))
            if not lines and error is None:
                return
            position += sum(map(len, lines))
            yield Batch(line + 1, tuple(lines), position, raw.tell(), error)
            line += len(lines)


def take(stream: BinaryIO, lines: list[bytes]) -> None:
    """Append the next lines of a stream, as many as make up a batch. Raises ``ValueError`` for an endless one."""
    size = 0
    while size < BATCH_BYTES and len(lines) < BATCH_LINES:
        data = stream.readline(LONGEST_LINE)
        if len(data) == LONGEST_LINE:
            raise ValueError(f"longer than {LONGEST_LINE:,} bytes")
        if not data:
            return
        lines.append(data)
        size += len(data)


def problem_of(action: Callable[[], object]) -> str | None:
    """Return what is wrong with a file that cannot be read further, or None."""
    try:
        action()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        return f"{error}"
    return None


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open the file as it is on disk, and its content. Raises ``InputError``."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    with raw:
        zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        yield raw, cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if zipped else raw


def ending(path: Path, position: int) -> bytes:
    """Return the bytes before a position: what a state remembers to recognise its file."""
    start = max(0, position - ENDING_BYTES)
    with opened(path) as (_, stream):
        if problem_of(lambda: stream.seek(start)) is not None:
            return b""
        return stream.read(position - start)
