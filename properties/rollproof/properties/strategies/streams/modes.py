"""Groups of every mode as any caller may ask for them: the arguments, configurations and failures of text groups.

What section 8 says of a group holds with routes, media and candidates too: its weights, versions and keys, the order of
its effects, and what is left when an operation fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import evolve, frozen
from hypothesis import strategies as st

from rollproof.properties.strategies.breaks.kinds import IN_ROLLOUTS, try_edits
from rollproof.properties.strategies.breaks.media import MEDIA
from rollproof.properties.strategies.rollouts.draft import Draft
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import History
from rollproof.properties.strategies.rollouts.media import MediaKind, media_histories
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.scalars import draw_bytes
from rollproof.properties.strategies.stream import Stream, StreamsOf
from rollproof.properties.strategies.streams.between import DEFERRED, DIRECT
from rollproof.properties.strategies.streams.group import Course, Histories, Mix, groups, with_vocabulary
from rollproof.properties.strategies.streams.sampler import sampled_histories
from rollproof.spec.constants import AS_STAGED
from rollproof.spec.judge.requests import Area, FinalizeRollout
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import ReassemblerConfig

DIMS: Final[Dims] = (1, 2)
CANDIDATES: Final = 2
KIND: Final = MediaKind()


@frozen
class Mode:
    """A way to finalize groups: the area that it belongs to, its configuration, and rollouts that it suits."""

    name: str
    area: Area
    config: ReassemblerConfig
    alike: Histories
    weight: float = 0.5
    """Of each of its streams of groups."""


def routed(max_calls: int) -> st.SearchStrategy[History]:
    """Draw a rollout with routes on most of its calls."""
    return histories(rollout_id="r", max_calls=max_calls).flatmap(lambda history: with_routes(history, DIMS))


def pictured(max_calls: int) -> st.SearchStrategy[History]:
    """Draw a rollout with images on most of its calls."""
    return media_histories(KIND, rollout_id="r", max_calls=max_calls)


def pictured_and_routed(max_calls: int) -> st.SearchStrategy[History]:
    """Draw a rollout with both."""
    return pictured(max_calls).flatmap(lambda history: with_routes(history, DIMS))


def sampled(max_calls: int) -> st.SearchStrategy[History]:
    """Draw a rollout all calls of which staged candidates."""
    return sampled_histories(CANDIDATES, "r", max_calls=max_calls)


REPLAYED: Final = evolve(DIRECT, routed_dims=DIMS)
MODES: Final = (
    Mode("direct", Area.ROUTES, REPLAYED, routed),
    Mode("deferred", Area.ROUTES, evolve(DEFERRED, routed_dims=DIMS), routed),
    Mode("media", Area.MEDIA, MEDIA, pictured),
    Mode("media and direct", Area.MEDIA, evolve(REPLAYED, capture_media=True), pictured_and_routed),
    Mode("boundary", Area.BOUNDARY, evolve(REPLAYED, route_boundary=AS_STAGED), routed),
    Mode("sampler", Area.SAMPLER, ReassemblerConfig(top_logprobs=CANDIDATES), sampled, 1.0),
)


@st.composite
def rollouts(draw: st.DrawFn, mode: Mode) -> FinalizeRollout:
    """Draw a rollout of a mode, about half of the time with something wrong that has to do with no mode."""
    history = draw(mode.alike(3))
    draft = Draft.of(history)
    decide = draw_bytes(draw)
    draft.config = with_vocabulary(mode.config, [history], decide, Mix.MIXED) if decide.chance(160) else mode.config
    if decide.chance(128):
        try_edits(draft, [decide.choose(decide.choose(IN_ROLLOUTS))], decide)
    return draft.finalize()


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the areas that are a mode of groups."""
    stream = StreamsOf(area)
    for mode in MODES:
        if mode.area is area:
            for mix, course in ((Mix.VALID, Course.ONE), (Mix.MIXED, Course.SEVERAL), (Mix.MIXED, Course.FAULTS)):
                drawn = groups(mix=mix, course=course, max_rollouts=3, base=mode.config, alike=mode.alike)
                yield stream(f"{mode.name}: {mix.value} groups, {course.value}", drawn, mode.weight)
            yield stream(f"{mode.name}: rollouts, some broken", rollouts(mode), 2 * mode.weight)
