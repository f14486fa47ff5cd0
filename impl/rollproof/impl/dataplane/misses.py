"""What an exception of a data plane says about the requested rows (D26).

Ours say that rows are missing by ``MissingRows``. Other planes have no error of their own for it: NeMo RL's in-memory
client raises ``KeyError`` with the row's id, or with a sentence that names the column and the row; TransferQueue's
functions raise a ``ValueError`` with one of two fixed sentences, or ``StorageKeyNotFoundError``. An outage may have the
same types. What it cannot easily have is the same content, twice: so such an exception is a *claim*, which counts only
once a further read repeats it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from rollproof.impl.dataplane import MissingRows

QUEUE_MISSES: Final = (
    "keys or partition were not found!",
    "Some fields are not ready in all the requested keys!",
)
"""The two sentences by which TransferQueue's ``kv_batch_get`` says that rows are not there, or not yet written."""


class Claim(Enum):
    """The claim that an exception makes."""

    MISSING = auto()
    """The plane's own word that rows are missing: it needs no confirmation."""
    ROW = auto()
    """A requested row is not there."""
    COLUMN = auto()
    """A requested column is not there, in some row."""


def claim_of(error: Exception, sample_ids: Sequence[str], columns: Sequence[str]) -> Claim | None:
    """Return what ``error`` claims about these rows and columns; None for an outage.

    Ray's error counts as the one that it wraps. A subclass of ``KeyError`` or ``ValueError`` has a meaning of its own,
    and is an outage.
    """
    own = _own(error)
    if isinstance(own, MissingRows):
        return Claim.MISSING
    storage_error = getattr(sys.modules.get("transfer_queue"), "StorageKeyNotFoundError", None)
    if storage_error is not None and type(own) is storage_error:
        return Claim.ROW
    if type(own) is ValueError and own.args in [(sentence,) for sentence in QUEUE_MISSES]:
        return Claim.ROW
    if type(own) is not KeyError or len(own.args) != 1:
        return None
    if _names(own.args[0], columns):
        return Claim.COLUMN
    return Claim.ROW if _names(own.args[0], sample_ids) else None


def missing_names(error: BaseException | None, names: Sequence[str]) -> set[str]:
    """Return which of these rows or columns an exception says are missing; none where it does not say."""
    own = _own(error)
    if isinstance(own, MissingRows):
        return set(own.sample_ids) & set(names)
    if type(own) is not KeyError or len(own.args) != 1:
        return set()
    return {name for name in names if _names(own.args[0], [name])}


def _own(error: BaseException | None) -> Any:
    """Return the plane's own exception: Ray wraps it."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Exception) else error


def _names(said: Any, names: Sequence[str]) -> bool:
    """Return whether an exception's argument is one of the names, or a sentence with one of them in quotes."""
    return type(said) is str and (said in names or any(repr(name) in said for name in names))
