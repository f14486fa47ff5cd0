"""A guard against finalizing a group twice at once in one process.

Each of two calls alone is correct; together, the second reads staging that the first is clearing, and puts placeholders
over its rows. Between processes the caller must hand a group to one finalizer, as ``FinalizerPool`` does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_LOCK: Final = threading.Lock()
_ACTING: Final[dict[tuple[Any, str, str], int]] = {}
"""The thread that acts on a group, by store, partition and group id."""


class GroupInFlight(RuntimeError):
    """The group is being finalized or recovered by another thread. Nothing was read."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        super().__init__(group_id)

    def __str__(self) -> str:
        return f"group {self.group_id} is being finalized by another thread: take the result of that call"


@contextmanager
def acting_on(dp_client: Any, partition: str, group_id: str) -> Iterator[None]:
    """Hold a group while a thread finalizes or recovers it; ``GroupInFlight`` if another thread holds it.

    Clients of one store have a common ``store`` attribute; another client is a store of its own.
    """
    key = (getattr(dp_client, "store", None) or id(dp_client), partition, group_id)
    me = threading.get_ident()
    with _LOCK:
        holder = _ACTING.get(key)
        if holder not in (None, me):
            raise GroupInFlight(group_id)
        _ACTING[key] = me
    try:
        yield
    finally:
        # Recovery runs a group that it already holds: the outer call lets it go.
        if holder is None:
            with _LOCK:
                del _ACTING[key]
