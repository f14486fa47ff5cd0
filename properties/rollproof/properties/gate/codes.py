"""The rejection codes that an implementation must have met before a check says that it holds, area by area.

``ROWS`` is the one table of what is reachable: in which area, at which place, which codes are answers, and to which
kinds of request. The gate counts each of them by itself. A code that only single rollouts met says nothing about
groups: a group may still lose its other rollouts over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from typing import Final

from attrs import frozen

from rollproof.spec.judge import requests as asked
from rollproof.spec.judge.cuts import RestoreCut
from rollproof.spec.judge.requests import Accepted, Answer, Area, Refused, Request, RolloutAnswer
from rollproof.spec.judge.rules.rollout import same_reason
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.shadowed import SHADOWED_BY, of_rollouts


class Place(StrEnum):
    """Where a code is an answer. In groups it is one only between two accepted rollouts, which it must not affect."""

    CALL = "call"
    """Of the function that refuses, without a rollout around it."""
    ROLLOUT = "rollout"
    GROUP = "group"
    DIRECT = "direct group"
    """With router replay by the reassembler."""
    DEFERRED = "deferred group"
    """With router replay by the policy; its failures show only in the replay."""
    REPLAY = "replayed group"


ALONE: Final = (Place.CALL, Place.ROLLOUT)
"""Places of one answer about one thing; the others are groups."""

CARRIERS: Final = {Stage.REBUILD: Code.REBUILD_FAILED, Stage.ASSEMBLY: Code.ROUTE_ASSEMBLY}
"""Stages whose codes are the subject of another code in the answer about a rollout."""

BASE: Final = (Stage.RECEIPT, Stage.ROLLOUT, Stage.REBUILD, Stage.REWARD)
"""The stages that every rollout passes."""


@frozen
class Row:
    """Codes that are reachable in an area at a place, as answers to these kinds of request."""

    area: Area
    place: Place
    kinds: tuple[type[Request], ...]
    codes: tuple[Code, ...]


def called(*stages: Stage) -> tuple[Code, ...]:
    """Return the codes of some stages that a direct call reaches, without any capability."""
    found = (code for code in Code if code.stage in stages and code not in SHADOWED_BY)
    return tuple(code for code in found if code.value.capability is None)


def inside(*stages: Stage) -> tuple[Code, ...]:
    """Return the codes of some stages that a rollout reaches: codes that carry another are not told apart from it."""
    found = (code for code in Code if code.stage in stages and of_rollouts(code) and not code.value.capability)
    return tuple(code for code in found if code not in CARRIERS.values())


SIDECAR_CODES: Final = (
    Code.FRAGMENT_INTEGRITY,
    Code.FRAGMENT_BOUNDARY,
    Code.FRAGMENT_VALUE_RANGE,
    Code.FRAGMENT_PARTIAL_SENTINEL,
    Code.FRAGMENT_DUPLICATE_EXPERT,
)
"""The codes of an execution that a sidecar can cause."""

ROWS: Final = (
    Row(Area.RECEIPT, Place.CALL, (asked.ParseReceipt,), (Code.INVALID_RECEIPT,)),
    Row(Area.LINEAGE, Place.CALL, (asked.Linearize,), called(Stage.REBUILD)),
    Row(Area.ROLLOUT, Place.ROLLOUT, (asked.FinalizeRollout,), inside(*BASE)),
    Row(Area.GROUP, Place.GROUP, (asked.FinalizeGroups,), inside(*BASE)),
    Row(Area.ROUTES, Place.CALL, (asked.ExecutePlan,), called(Stage.ASSEMBLY)),
    Row(Area.ROUTES, Place.CALL, (asked.DecodePlan, asked.EncodePlan), (Code.INVALID_ROUTE_PLAN,)),
    Row(Area.ROUTES, Place.CALL, (asked.DecodeRoutes,), called(Stage.CODEC)),
    Row(Area.ROUTES, Place.ROLLOUT, (asked.FinalizeRollout,), inside(Stage.ROUTES, Stage.ASSEMBLY)),
    Row(Area.ROUTES, Place.DIRECT, (asked.FinalizeGroups,), inside(*BASE, Stage.ROUTES, Stage.ASSEMBLY)),
    Row(Area.ROUTES, Place.DEFERRED, (asked.FinalizeGroups,), inside(*BASE, Stage.ROUTES)),
    Row(Area.ROUTES, Place.REPLAY, (asked.ReplayGroup,), inside(Stage.ASSEMBLY)),
    Row(Area.BOUNDARY, Place.CALL, (asked.ExecutePlan,), SIDECAR_CODES),
    Row(Area.BOUNDARY, Place.CALL, (asked.DecodePlan, asked.EncodePlan), (Code.INVALID_ROUTE_PLAN,)),
    Row(Area.BOUNDARY, Place.CALL, (asked.AlignEngineRows,), (Code.MISALIGNED_ENGINE_ROUTES,)),
    Row(
        Area.BOUNDARY,
        Place.ROLLOUT,
        (asked.FinalizeRollout,),
        (
            Code.UNSUPPORTED_ROUTE_BOUNDARY,
            Code.MISSING_ROUTE_BOUNDARY,
            Code.INVALID_ROUTE_PLAN,
            Code.MISSING_FRAGMENT,
            *SIDECAR_CODES,
        ),
    ),
    Row(
        Area.BOUNDARY,
        Place.DIRECT,
        (asked.FinalizeGroups,),
        (Code.UNSUPPORTED_ROUTE_BOUNDARY, Code.MISSING_ROUTE_BOUNDARY, Code.INVALID_ROUTE_PLAN, Code.FRAGMENT_BOUNDARY),
    ),
    Row(Area.BOUNDARY, Place.REPLAY, (asked.ReplayGroup,), (Code.MISSING_FRAGMENT, *SIDECAR_CODES)),
    Row(Area.SAMPLER, Place.ROLLOUT, (asked.FinalizeRollout,), (Code.TOPK_LENGTH_MISMATCH, Code.TOPK_VALUE_RANGE)),
    Row(Area.SAMPLER, Place.GROUP, (asked.FinalizeGroups,), (Code.TOPK_LENGTH_MISMATCH, Code.TOPK_VALUE_RANGE)),
    Row(Area.MEDIA, Place.ROLLOUT, (asked.FinalizeRollout,), inside(Stage.MEDIA)),
    Row(Area.MEDIA, Place.GROUP, (asked.FinalizeGroups,), inside(Stage.MEDIA, Stage.GROUP)),
    Row(
        Area.RETAINED,
        Place.CALL,
        (asked.MediaDigest, asked.CutGeneration, asked.Restore),
        (Code.MEDIA_CAPTURE_REJECTED,),
    ),
    Row(Area.RETAINED, Place.CALL, (asked.Restore,), (Code.RETAINED_MEDIA_CHANGED,)),
    Row(Area.RETAINED, Place.CALL, (asked.CheckCompletion,), called(Stage.COMPLETION)),
    Row(
        Area.CUTS,
        Place.CALL,
        (RestoreCut,),
        (
            Code.CUT_CHUNK_MISSING,
            Code.INVALID_STAGING_ROW,
            Code.CUT_IDENTITY_MISMATCH,
            Code.CUT_VERSION_ORDER,
            Code.CUT_MASK_ORDER,
            Code.TOKEN_COUNT,
            Code.RETAINED_PREFIX_CHANGED,
            Code.MEDIA_CAPTURE_REJECTED,
            Code.RETAINED_MEDIA_CHANGED,
            Code.CUT_LIMIT_EXCEEDED,
        ),
    ),
)
"""Everything that is reachable. Areas digest and terminal refuse without a code."""


@frozen
class Reach:
    """One code that is reachable in an area at a place."""

    area: Area
    place: Place
    entry: Code

    @property
    def code(self) -> str:
        """The normative part of the reason: the code, below the one that carries it where there is one."""
        return code_at(self.place, self.entry)

    @property
    def name(self) -> str:
        """The code, and in which groups it is met, where it is in groups: unique in its area."""
        return self.code if self.place in ALONE else f"{self.code} in a {self.place}"

    @property
    def kinds(self) -> tuple[type[Request], ...]:
        """The kinds of request that it is an answer to; whoever answers none of them cannot reach it."""
        return next(
            row.kinds for row in ROWS if (row.area, row.place) == (self.area, self.place) and self.entry in row.codes
        )


def code_at(place: Place, code: Code) -> str:
    """Return how a code reads at a place."""
    carried = place not in (Place.CALL, Place.REPLAY) and code.stage in CARRIERS
    return f"{CARRIERS[code.stage].code}:{code.code}" if carried else code.code


@cache
def reaches(area: Area) -> tuple[Reach, ...]:
    """Return all that is reachable in an area, in the order of ``ROWS``."""
    return tuple(Reach(area, row.place, code) for row in ROWS if row.area is area for code in row.codes)


AREAS: Final = tuple(dict.fromkeys(row.area for row in ROWS))
"""The areas with codes."""


def reachable(area: Area) -> list[str]:
    """Return the codes that are reachable alone, and those that only groups have, in the catalogue's order."""
    found = [reach for reach in reaches(area) if reach.place in ALONE or reach.entry.stage is Stage.GROUP]
    order = list(Code)
    return [one.code for one in sorted(found, key=lambda one: (one.code != one.entry.code, order.index(one.entry)))]


# ── the codes of an answer ──────────────────────────────────────────────────────────────────────────────────────────


def met(area: Area, request: Request, expected: Answer) -> set[Reach]:
    """Return what a request of an area reaches: the contract's answer to it has these codes."""
    places = _places(area)
    return {places[found] for found in _met(request, expected) if found in places}


@cache
def _places(area: Area) -> dict[tuple[Place, str], Reach]:
    return {(reach.place, reach.code): reach for reach in reaches(area)}


def _met(request: Request, expected: Answer) -> Iterator[tuple[Place, str]]:
    value = expected.value if isinstance(expected, Accepted) else None
    if isinstance(request, asked.ReplayGroup) and isinstance(value, asked.GroupReplay):
        yield from ((Place.REPLAY, code) for code in between([row.failure for row in value.deferred]))
    elif isinstance(request, asked.FinalizeGroups) and isinstance(value, tuple):
        for outcome in value:
            reasons = [] if outcome.group is None else [one.rejection_reason for one in outcome.rollouts]
            yield from ((place_of(request.config), code) for code in between(reasons))
    elif (reason := reason_of(expected)) is not None:
        yield Place.ROLLOUT if isinstance(request, asked.FinalizeRollout) else Place.CALL, normative(reason)


def between(reasons: Sequence[str | None]) -> Iterator[str]:
    """Yield the codes of what was rejected after something that was accepted, and before something else that was."""
    accepted = [index for index, reason in enumerate(reasons) if reason is None]
    for index, reason in enumerate(reasons):
        if reason is not None and accepted and accepted[0] < index < accepted[-1]:
            yield normative(reason)


def place_of(config: ReassemblerConfig) -> Place:
    """Return the place that the groups of a reassembler are."""
    if not config.router_replay_enabled:
        return Place.GROUP
    return Place.DEFERRED if config.defer_routed_experts_to_policy else Place.DIRECT


def normative(reason: str) -> str:
    """Return a reason's code, with its subject where that is a code too."""
    code, _, rest = reason.partition(":")
    carries = code in {carrier.code for carrier in CARRIERS.values()}
    return f"{code}:{rest.partition(':')[0]}" if carries else code


def reason_of(answer: Answer) -> str | None:
    """Return the rejection reason in an answer, or None where nothing was rejected."""
    if isinstance(answer, Refused):
        return answer.reason
    value = answer.value if isinstance(answer, Accepted) else None
    if isinstance(value, RolloutAnswer) and value.rollout is not None:
        return value.rollout.rejection_reason
    first = value[0] if isinstance(value, tuple) and value else None
    if isinstance(first, GroupOutcome):
        return group_reason(first)
    return first[0] if isinstance(first, tuple) else None


def group_reason(outcome: GroupOutcome) -> str | None:
    """Return the code with which a group rejected a rollout that was valid on its own: its metrics say so."""
    metrics = {} if outcome.group is None else outcome.group.metrics
    codes = (code.code for code in Code if code.stage is Stage.GROUP)
    return next((code for code in codes if f"finalize/capture_failure_reason_{code}_count" in metrics), None)


def driven_code(expected: Answer, among: Iterable[str]) -> str | None:
    """Return the code that the contract's answer names, as in ``reachable``; None for anything else."""
    reason = reason_of(expected)
    return None if reason is None or (code := normative(reason)) not in among else code


def same_code(expected: Answer, actual: Answer) -> bool:
    """Return whether both name the same reason, in its normative part."""
    return same_reason(reason_of(expected), reason_of(actual))
