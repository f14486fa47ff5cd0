"""Which rejection codes a request drives, and whether an answer has them right."""

from __future__ import annotations

from collections.abc import Iterable

from rollproof.spec.rejections import Code, Stage
from rollproof.spec.requests import Accepted, Answer, Area, Refused, RolloutAnswer
from rollproof.spec.rules.rollout import same_reason

REBUILD_PREFIX = "rebuild_failed:"

STAGES: dict[Area, frozenset[Stage]] = {
    Area.RECEIPT: frozenset({Stage.RECEIPT}),
    Area.LINEAGE: frozenset({Stage.REBUILD}),
    Area.ROLLOUT: frozenset({Stage.RECEIPT, Stage.ROLLOUT, Stage.REWARD}),
}
"""The stages whose codes an area's answers can name."""


def reachable(area: Area) -> list[str]:
    """Every reason that some input of ``area`` must be answered with, in the catalogue's order."""
    codes = [code for code in Code if code.value.shadowed_by is None]
    names = [code.code for code in codes if code.stage in STAGES.get(area, ())]
    if area is Area.RECEIPT:
        names.remove(Code.MISSING_RECEIPT.code)
    if area is Area.ROLLOUT:
        names.remove(Code.REBUILD_FAILED.code)
        rebuild = (code for code in codes if code.stage is Stage.REBUILD)
        names += [f"{REBUILD_PREFIX}{code.code}" for code in rebuild if code.value.hidden_in_rollout_by is None]
    return names


def reason_of(answer: Answer) -> str | None:
    """The rejection reason in an answer, or None where nothing was rejected."""
    if isinstance(answer, Refused):
        return answer.reason
    if isinstance(answer, Accepted) and isinstance(answer.value, RolloutAnswer) and answer.value.rollout is not None:
        return answer.value.rollout.rejection_reason
    return None


def driven_code(area: Area, expected: Answer, among: Iterable[str]) -> str | None:
    """The code that the contract's answer names, as it stands in ``reachable``; None for anything else."""
    reason = reason_of(expected)
    if reason is None:
        return None
    code, _, rest = reason.partition(":")
    name = f"{code}:{rest.partition(':')[0]}" if reason.startswith(REBUILD_PREFIX) else code
    return name if name in among else None


def answered_rightly(expected: Answer, actual: Answer) -> bool:
    """Whether both name the same reason, in its normative part."""
    return same_reason(reason_of(expected), reason_of(actual))
