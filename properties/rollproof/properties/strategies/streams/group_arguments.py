"""Groups whose caller's arguments contradict each other, or are numbers of numpy and torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.properties.strategies.scalars import ARRAY_REWARDS, draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.properties.strategies.streams.group import Mix, groups, small_group
from rollproof.spec.constants import INT63_LIMIT
from rollproof.spec.judge.requests import Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Staging
from rollproof.spec.records import GroupRequest, ReassemblerConfig

NO_WEIGHTS: Final = (-1.0, math.nan, math.inf, -math.inf, 1e39, -0.5, 10**400)
NO_VERSIONS: Final[tuple[Any, ...]] = (-1, INT63_LIMIT, True, False, 1.0, 1.5, "4", None)


def contradictions(request: GroupRequest) -> Iterator[GroupRequest]:
    """Yield every way in which the caller's arguments can contradict each other (decision D13)."""
    ids = tuple(f"{request.group_id}_g{index}" for index in range(len(request.rollout_ids)))
    for name in ("receipts", "rewards", "mask_sample", "rollout_ids"):
        values = getattr(request, name)
        yield evolve(request, **{name: values + values[:1]})
        yield evolve(request, **{name: values[:-1]})
    yield evolve(request, rollout_ids=(), receipts=(), rewards=(), mask_sample=(), canonical_sample_ids=None)
    if len(ids) > 1:
        repeated = (*request.rollout_ids[:-1], request.rollout_ids[0])
        yield evolve(request, rollout_ids=repeated, canonical_sample_ids=None)
        yield evolve(request, rollout_ids=repeated, canonical_sample_ids=ids)
    for weight in NO_WEIGHTS:
        yield evolve(request, loss_multiplier=weight)
    for version in NO_VERSIONS:  # decision D40
        yield evolve(request, fallback_weight_version=version)
    for version in NO_VERSIONS[:-1]:
        yield evolve(request, current_weight_version=version)
    for others in other_samples(ids):
        yield evolve(request, canonical_sample_ids=others)
    yield evolve(request, rollout_ids=tuple(f"{name}x" for name in ids), canonical_sample_ids=None)


def other_samples(ids: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield canonical sample ids that are changed, reordered, dropped or respelled (decision D23)."""
    spelled = (f"{ids[0]}\n", f"{ids[0][:-1]}00", f"{ids[0][:-1]}\N{ARABIC-INDIC DIGIT ZERO}")
    others = (ids[:-1], (*ids, "more"), ids[::-1], (), *((first, *ids[1:]) for first in ("other", *spelled)))
    yield from dict.fromkeys(other for other in others if other != ids)


@st.composite
def contradictory_groups(draw: DrawFn) -> FinalizeGroups:
    """Draw groups whose arguments contradict each other; now and then the sound group follows."""
    request = draw(groups(max_rollouts=4))
    decide = draw_bytes(draw)
    wrong = decide.choose(list(contradictions(request.steps[0].request)))
    step = evolve(request.steps[0], request=wrong)
    return evolve(request, steps=(step, *request.steps) if decide.chance(64) else (step,))


def every_contradiction() -> Iterator[FinalizeGroups]:
    """Yield every contradiction in small groups."""
    for count, group_id in ((1, "g"), (2, "g"), (3, "g7"), (2, "é"), (4, "g_g")):
        sound, staging = small_group(group_id, count)
        for request in contradictions(sound):
            yield FinalizeGroups(ReassemblerConfig(), (GroupStep(request),), staging)


@st.composite
def rewarded_by_arrays(draw: DrawFn) -> FinalizeGroups:
    """Draw sound groups whose rewards are arrays, tensors and their scalars."""
    request = draw(groups(mix=Mix.VALID, max_rollouts=4))
    decide, (step,) = draw_bytes(draw), request.steps
    given = tuple(decide.choose(ARRAY_REWARDS) for _ in step.request.rewards)
    return evolve(request, steps=(evolve(step, request=evolve(step.request, rewards=given)),))


def weighed_by_arrays() -> Iterator[FinalizeGroups]:
    """Yield the worked example as a group, with every array and tensor as its loss multiplier."""
    history = WORKED_EXAMPLE.renamed("g_g0")
    for weight in ARRAY_REWARDS:
        group = GroupRequest("g", ("g_g0",), (history.raw_receipt(),), (1.0,), (False,), 0, 0, weight)
        yield FinalizeGroups(ReassemblerConfig(), (GroupStep(group),), Staging(history.rows()))


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area group."""
    if area is not Area.GROUP:
        return
    yield Stream("caller", area, contradictory_groups(), 0.5)
    yield listed("every contradiction", area, every_contradiction())
    yield Stream("rewards of arrays", area, rewarded_by_arrays(), 0.5)
    yield listed("loss multipliers of arrays", area, weighed_by_arrays())
