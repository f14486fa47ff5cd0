"""Every request the gate sends, as named streams.

A chapter is a module of this package with a function ``streams(area)``. Whoever adds one, or brings requests of its
own, registers a function of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Final, TypeAlias

from attrs import field, frozen
from attrs.validators import ge
from hypothesis.strategies import SearchStrategy

from rollproof.spec.requests import Area, Request


@frozen
class Stream:
    """Requests of one kind: where they belong, how to draw them, and what they are there for."""

    name: str
    area: Area
    strategy: SearchStrategy[Request]
    weight: float = field(default=1.0, validator=ge(0))
    """Share of a profile's examples; with 0, one example."""
    codes: tuple[str, ...] = ()
    """The rejection reasons that every request of this stream must be answered with one of."""


Provider: TypeAlias = Callable[[Area], Iterable[Stream]]

CHAPTERS: Final = (
    "strategies.digests",
    "strategies.receipts",
    "strategies.terminals",
    "strategies.lineages",
    "strategies.rollouts",
    "strategies.groups",
    "strategies.route_requests",
    "strategies.media_requests",
    "strategies.retained",
    "captured",
)
"""Modules that have a function ``streams``, in the order in which their streams run."""

_PROVIDERS: Final[list[Provider]] = []
_CACHE: Final[dict[Area, list[Stream]]] = {}


def register_streams(provider: Provider) -> Provider:
    """Add streams: ``provider(area)`` is called once per area. Usable as a decorator."""
    _PROVIDERS.append(provider)
    _CACHE.clear()
    return provider


def request_streams(area: Area) -> list[Stream]:
    """All streams of one area: the chapters' first, then registered ones."""
    if area not in _CACHE:
        chapters = [import_module(f"rollproof.properties.{name}").streams for name in CHAPTERS]
        streams = [stream for provider in (*chapters, *_PROVIDERS) for stream in provider(area)]
        names = [stream.name for stream in streams]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"area {area}: streams called {', '.join(sorted(repeated))} more than once")
        _CACHE[area] = streams
    return list(_CACHE[area])
