"""The contract's own answer to any request: the functions of the chapters, by kind of request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.spec.assembly import execute
from rollproof.spec.bundles import chain_media, staged_media
from rollproof.spec.completion import check_completion
from rollproof.spec.constants import MEDIA_SPANS, ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.envelope import decode_routes, encode_routes
from rollproof.spec.group import finalize_group
from rollproof.spec.lineage import linearize
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plan import classify_span, decode_plan, encode_plan
from rollproof.spec.plane import Outage
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.rejections import Rejected
from rollproof.spec.requests import (
    Accepted,
    Answer,
    CallDigest,
    ChainDigest,
    ChainMedia,
    CheckCompletion,
    ClassifySpan,
    CutGeneration,
    DecodePlan,
    DecodeRoutes,
    EncodePlan,
    EncodeRoutes,
    ExecutePlan,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    GroupReplay,
    Linearize,
    LinearizeGrowth,
    MediaDigest,
    ParseReceipt,
    PrefixDigest,
    Refused,
    ReplayGroup,
    Request,
    Restore,
    Restored,
    RolloutAnswer,
    SameMedia,
    SelectTerminal,
    StagedMedia,
    StageMedia,
)
from rollproof.spec.retained import CallMedia, cut_extras, media_digest, restore
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.routes import execute_published_plan
from rollproof.spec.terminal import select_terminal
from rollproof.spec.views import named_values


def answer(request: Request) -> Answer:
    """What the contract requires in answer to ``request``."""
    try:
        return Accepted(_HANDLERS[type(request)](request))
    except Rejected as rejected:
        return Refused(rejected.reason)
    except ValueError as error:
        return Refused(f"refused: {error}")


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


def _replay_group(request: ReplayGroup) -> GroupReplay:
    direct = finalize_group(evolve(request.config, routed_dims=request.dims), request.request, request.staging)
    config = evolve(request.config, routed_dims=request.dims, defer_routed_experts_to_policy=True)
    deferred = finalize_group(config, request.request, request.staging)
    return GroupReplay(
        direct=tuple(row.columns[ROUTED_EXPERTS] for row in direct.rows or ()),
        deferred=tuple(
            execute_published_plan(
                row.tags[ROUTE_PLAN_TAG],
                request.staging.rows,
                request.dims,
                row.columns["input_ids"].count,
                num_experts=config.num_experts,
                allow_repeated_experts=config.allow_repeated_experts,
            )
            for row in deferred.rows or ()
        ),
    )


def _cut_generation(request: CutGeneration) -> tuple[StagedMedia, ...]:
    media = None if request.bundle is None else CallMedia(request.spans, request.bundle)
    prefix = StagedMedia(cut_extras(request.extras, media, request.scheme), staged_media(None, request.pixel_dtype))
    extras = request.extras if media is None else {**(request.extras or {}), MEDIA_SPANS: request.spans}
    final = StagedMedia(extras, staged_media(request.bundle, request.pixel_dtype))
    return (*(prefix for _ in range(request.cuts)), final)


def _restore(request: Restore) -> Restored:
    fresh = CallMedia(request.spans, named_values(request.tensors))
    restored = restore(request.row, fresh)
    if restored is None:
        return Restored(with_media=False)
    return Restored(with_media=True, fresh=same_objects(restored.tensors, fresh.tensors))


def same_objects(left: Mapping[Any, Any] | None, right: Mapping[Any, Any] | None) -> bool:
    """Whether two mappings hold the very same values under the same names."""
    if left is None or right is None:
        return left is right
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


_HANDLERS: Final[dict[type, Callable[[Any], Any]]] = {
    PrefixDigest: lambda request: prefix_digest(request.token_ids),
    ChainDigest: lambda request: chain_digest(request.parent_chain_hash, request.token_ids),
    ExtrasDigest: lambda request: extras_digest(request.extras),
    CallDigest: lambda request: call_digest(request.call),
    ParseReceipt: lambda request: parse_receipt(request.value),
    SelectTerminal: lambda request: select_terminal(request.records),
    DecodeRoutes: lambda request: decode_routes(request.payload),
    EncodeRoutes: lambda request: encode_routes(request.routes),
    ClassifySpan: lambda request: (
        classify_span(request.carry_len, request.generation_len, request.staged_route_len).value
    ),
    DecodePlan: lambda request: decode_plan(request.value),
    EncodePlan: lambda request: encode_plan(request.plan),
    ExecutePlan: lambda request: execute(
        request.plan,
        request.fragments,
        request.dims,
        request.canonical_len,
        num_experts=request.num_experts,
        allow_repeated_experts=request.allow_repeated_experts,
    ),
    ReplayGroup: lambda request: _replay_group(request),
    Linearize: lambda request: linearize(request.receipt, request.calls),
    LinearizeGrowth: lambda request: (request.few, request.many),
    FinalizeRollout: _finalize_rollout,
    FinalizeGroups: _finalize_groups,
    ChainMedia: lambda request: chain_media(request.parts),
    StageMedia: lambda request: staged_media(request.bundle, request.pixel_dtype),
    MediaDigest: lambda request: media_digest(named_values(request.tensors), request.scheme),
    SameMedia: lambda request: media_digest(named_values(request.left)) == media_digest(named_values(request.right)),
    CutGeneration: _cut_generation,
    Restore: _restore,
    CheckCompletion: lambda request: tuple(
        (violation.code.code, violation.subject)
        for violation in check_completion(
            request.cuts, request.completions, request.rows, request.live_keys, request.successor_keys
        )
    ),
}
