"""Every request the gate sends, as named streams: one module per area, and histories captured from a peer."""

from __future__ import annotations

from functools import cache, partial
from typing import Final

from attrs import evolve

from rollproof.properties.nemo_gym import captured
from rollproof.properties.strategies.stream import Stream
from rollproof.properties.strategies.streams import (
    advantage,
    align,
    between,
    cuts,
    digest,
    finish,
    group,
    group_arguments,
    lineage,
    media,
    media_rows,
    merge,
    modes,
    narrow,
    narrow_media,
    narrow_routes,
    receipt,
    retained,
    rollout,
    route_boundary,
    routes,
    sampler,
    terminal,
)
from rollproof.spec.judge.requests import Area, ExecutePlan, FinalizeGroups, FinalizeRollout, ReplayGroup, Request

CHAPTERS: Final = (
    digest,
    receipt,
    terminal,
    lineage,
    rollout,
    group,
    group_arguments,
    modes,
    routes,
    media,
    between,
    finish,
    retained,
    route_boundary,
    sampler,
    captured,
    merge,
    align,
    advantage,
    media_rows,
    cuts,
    narrow,
    narrow_routes,
    narrow_media,
)
"""Modules with a function ``streams(area)``, in the order in which their streams run."""


@cache
def request_streams(area: Area) -> tuple[Stream, ...]:
    """Return all streams of one area. Raises ``ValueError`` where two share a name."""
    streams = tuple(stream for chapter in CHAPTERS for stream in chapter.streams(area))
    names = [stream.name for stream in streams]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"area {area}: streams called {', '.join(sorted(repeated))} more than once")
    return streams


def with_boundary(stream: Stream, choice: str) -> Stream:
    """Return a stream for an implementation that always makes this choice about boundary tokens (decision D28)."""
    as_chosen = partial(with_choice, choice=choice)
    return evolve(stream, strategy=stream.strategy.map(as_chosen), every=tuple(map(as_chosen, stream.every)))


def with_choice(request: Request, choice: str) -> Request:
    """Return a request as it is put to such an implementation; without router replay it is the same."""
    if isinstance(request, ExecutePlan):
        return evolve(request, route_boundary=choice)
    if isinstance(request, FinalizeRollout | FinalizeGroups | ReplayGroup) and request.config.router_replay_enabled:
        return evolve(request, config=evolve(request.config, route_boundary=choice))
    return request
