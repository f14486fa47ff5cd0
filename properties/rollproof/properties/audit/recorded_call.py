"""One call while it is recorded: what it did to the data plane so far, and why it cannot be recorded, if so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from attrs import define, field

from rollproof.impl.dataplane.misses import Claim
from rollproof.properties.adapters.recording import Claimed
from rollproof.properties.audit.columns import Store


@define
class NotedClaim(Claimed):
    """A claim with the effect that the line will have for it."""

    content: dict[str, Any]
    claim: Claim
    error: Exception


@define
class Call:
    """One call in progress: its effects so far, as the line will have them."""

    store: Store
    effects: list[dict[str, Any]] = field(factory=list)
    rollouts: list[dict[str, Any]] = field(factory=list)
    raised: Exception | None = None
    """The last error of the data plane."""
    claims: list[NotedClaim] = field(factory=list)
    """Reads that said that something is missing, as long as they may be repeated to confirm it."""
    broken: Exception | None = None
    """Why this call cannot be recorded."""


CURRENT: Final[ContextVar[Call | None]] = ContextVar("recorded_call", default=None)
"""Operations of other threads and of other users of the client belong to no call."""


@contextmanager
def guarded(call: Call) -> Iterator[None]:
    """Keep what goes wrong while something is recorded, so that it does not disturb the run."""
    try:
        yield
    except Exception as error:
        call.broken = call.broken or error


@contextmanager
def current(call: Call) -> Iterator[None]:
    """Assign the operations on the data plane in this context to ``call``."""
    token = CURRENT.set(call)
    try:
        yield
    finally:
        CURRENT.reset(token)
