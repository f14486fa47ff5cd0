"""A named stream of requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen
from attrs.validators import ge
from hypothesis.strategies import SearchStrategy, sampled_from

from rollproof.spec.judge.requests import Area, Request


@frozen
class Stream:
    """Requests of one kind: their area, how to draw them, and their purpose."""

    name: str
    area: Area
    strategy: SearchStrategy[Request]
    weight: float = field(default=1.0, validator=ge(0))
    """Share of a profile's examples; with 0, one example."""
    codes: tuple[str, ...] = ()
    """The rejection reasons that every request of this stream must be answered with one of."""
    every: tuple[Request, ...] = ()
    """Where there are any, a check runs each of these once instead of drawing."""


@frozen
class StreamsOf:
    """Makes the streams of one area, out of strategies for any kinds of request."""

    area: Area

    def __call__(
        self, name: str, strategy: SearchStrategy[Any], weight: float = 1.0, codes: tuple[str, ...] = ()
    ) -> Stream:
        """Return a stream of this area."""
        return Stream(name, self.area, strategy, weight, codes)


def listed(name: str, area: Area, requests: Iterable[Request]) -> Stream:
    """Return a stream that asks each of some requests once, in every profile and at every seed."""
    every = tuple(requests)
    return Stream(name, area, sampled_from(every), every=every)
