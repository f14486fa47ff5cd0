"""Errors that a user can cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

EXTRAS: Final = {
    "torch": ("blake3", "numpy", "safetensors", "tensordict", "torch"),
    "tq": ("omegaconf", "transfer_queue"),
    "ray": ("ray",),
    "cuda": ("triton",),
    "fast": ("pybase64",),
    "prove": ("crosshair", "z3"),
}
"""The extras of this distribution, and the modules that a plain installation lacks without them."""


class InputError(ValueError):
    """Something that a user gave cannot be used. The message says what, and what was expected.

    A command that meets it ends with this one line and exit code 2.
    """


class LeftOut(InputError):
    """A request that cannot be put to an implementation here, so nothing is known about it; the message says why."""


def extra_hint(error: BaseException) -> str | None:
    """Return what to install where an import failed for want of an extra; None for any other error."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return f"needs {module}: pip install 'rollproof[{extra}]'" if extra else None


def message_of(error: BaseException) -> str:
    """Return an exception's message; where its ``__str__`` raises, a sentence that names that."""
    try:
        return str(error)
    except Exception as other:
        return f"no message: {type(error).__name__}.__str__ raised {type(other).__name__}"


@contextmanager
def reading(path: Path, what: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """Raise a ``kind`` that names ``path`` and ``what`` for whatever goes wrong while the one is read as the other."""
    try:
        yield
    except kind:
        raise
    except OSError as error:
        raise kind(f"{path}: {error.strerror}") from error
    except Exception as error:
        raise kind(f"{path}: not {what} ({type(error).__name__}: {message_of(error)})") from error
