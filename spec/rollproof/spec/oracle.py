"""The contract's own answer to any request: the functions of the chapters, by kind of request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from attrs import evolve

from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.group import finalize_group
from rollproof.spec.lineage import linearize
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Outage
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.rejections import Rejected
from rollproof.spec.requests import (
    Accepted,
    Answer,
    CallDigest,
    ChainDigest,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    Linearize,
    LinearizeGrowth,
    ParseReceipt,
    PrefixDigest,
    Refused,
    Request,
    RolloutAnswer,
    SelectTerminal,
)
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.terminal import select_terminal


def answer(request: Request) -> Answer:
    """What the contract requires in answer to ``request``."""
    try:
        return Accepted(_HANDLERS[type(request)](request))
    except Rejected as rejected:
        return Refused(rejected.reason)
    except ValueError as error:
        return Refused(f"no digest: {error}")


def _finalize_rollout(request: FinalizeRollout) -> RolloutAnswer:
    try:
        outcome = finalize_rollout(request.config, request.rollout_id, request.receipt, request.reward, request.staging)
    except Outage:
        return RolloutAnswer((), None, Failure.READ)
    return RolloutAnswer(outcome.effects, outcome.rollout)


def _finalize_groups(request: FinalizeGroups) -> tuple[GroupOutcome, ...]:
    staging, dims = request.staging, None
    outcomes: list[GroupOutcome] = []
    for step in request.steps:
        staging = evolve(staging, faults=step.faults)
        outcome = finalize_group(request.config, step.request, staging, dims)
        outcomes.append(outcome)
        dims = outcome.dims
        staging = staging.after(outcome.effects)
    return tuple(outcomes)


_HANDLERS: Final[dict[type, Callable[[Any], Any]]] = {
    PrefixDigest: lambda request: prefix_digest(request.token_ids),
    ChainDigest: lambda request: chain_digest(request.parent_chain_hash, request.token_ids),
    ExtrasDigest: lambda request: extras_digest(request.extras),
    CallDigest: lambda request: call_digest(request.call),
    ParseReceipt: lambda request: parse_receipt(request.value),
    SelectTerminal: lambda request: select_terminal(request.records),
    Linearize: lambda request: linearize(request.receipt, request.calls),
    LinearizeGrowth: lambda request: (request.few, request.many),
    FinalizeRollout: _finalize_rollout,
    FinalizeGroups: _finalize_groups,
}
