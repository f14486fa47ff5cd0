"""Which rejection codes a request drives, and whether an answer has them right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.requests import Accepted, Answer, Area, Refused, RolloutAnswer
from rollproof.spec.rules.rollout import same_reason

CARRIERS: Final = {
    Area.ROLLOUT: (Code.REBUILD_FAILED, Stage.REBUILD),
    Area.ROUTES: (Code.ROUTE_ASSEMBLY, Stage.ASSEMBLY),
}
"""Codes whose subject is a code of another stage, and the area that drives them."""

STAGES: Final[dict[Area, frozenset[Stage]]] = {
    Area.RECEIPT: frozenset({Stage.RECEIPT}),
    Area.LINEAGE: frozenset({Stage.REBUILD}),
    Area.ROLLOUT: frozenset({Stage.RECEIPT, Stage.ROLLOUT, Stage.REWARD}),
    Area.ROUTES: frozenset({Stage.CODEC, Stage.ASSEMBLY, Stage.ROUTES}),
    Area.MEDIA: frozenset({Stage.MEDIA, Stage.GROUP}),
    Area.RETAINED: frozenset({Stage.RETAINED, Stage.COMPLETION}),
}
"""The stages whose codes an area's answers can name."""


def reachable(area: Area) -> list[str]:
    """Every reason that some input of ``area`` must be answered with, in the catalogue's order."""
    codes = [code for code in Code if code.value.shadowed_by is None]
    names = [code.code for code in codes if code.stage in STAGES.get(area, ())]
    if area is Area.RECEIPT:
        names.remove(Code.MISSING_RECEIPT.code)
    if area in CARRIERS:
        carrier, stage = CARRIERS[area]
        names.remove(carrier.code)
        carried = (code for code in codes if code.stage is stage and code.value.hidden_in_rollout_by is None)
        names += [f"{carrier.code}:{code.code}" for code in carried]
    return names


def reason_of(answer: Answer) -> str | None:
    """The rejection reason in an answer, or None where nothing was rejected."""
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
    """The code with which a group rejected a rollout that was valid by itself: its metrics say so."""
    metrics = {} if outcome.group is None else outcome.group.metrics
    codes = (code.code for code in Code if code.stage is Stage.GROUP)
    return next((code for code in codes if f"finalize/capture_failure_reason_{code}_count" in metrics), None)


def driven_code(expected: Answer, among: Iterable[str]) -> str | None:
    """The code that the contract's answer names, as it stands in ``reachable``; None for anything else."""
    reason = reason_of(expected)
    if reason is None:
        return None
    code, _, rest = reason.partition(":")
    carries = code in {carrier.code for carrier, _ in CARRIERS.values()}
    name = f"{code}:{rest.partition(':')[0]}" if carries else code
    return name if name in among else None


def answered_rightly(expected: Answer, actual: Answer) -> bool:
    """Whether both name the same reason, in its normative part."""
    return same_reason(reason_of(expected), reason_of(actual))
