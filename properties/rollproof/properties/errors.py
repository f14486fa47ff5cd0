"""What a user can get wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Something that a user gave cannot be used. The message says what, and what was expected.

    A command that meets it ends with this one line and exit code 2.
    """


@contextmanager
def reading(path: Path, what: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Whatever goes wrong while ``path`` is read as ``what`` is a ``kind`` that names both."""
    try:
        yield
    except kind:
        raise
    except OSError as error:
        raise kind(f"{path}: {error.strerror}") from error
    except Exception as error:
        raise kind(f"{path}: not {what} ({type(error).__name__}: {error})") from error
