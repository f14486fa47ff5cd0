"""The contract's own answer to any request: the functions of the chapters, by kind of request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve

from rollproof.spec.advantage import advantages
from rollproof.spec.align import align_routes
from rollproof.spec.assembly import execute
from rollproof.spec.bundles import chain_media, staged_media
from rollproof.spec.chunks import parse_cut_key
from rollproof.spec.completion import check_completion
from rollproof.spec.constants import AS_STAGED, MEDIA_SPANS, ROUTE_PLAN_TAG, ROUTED_EXPERTS
from rollproof.spec.cut_records import DurablePrefix
from rollproof.spec.cut_restore import restore_cut, restored_routes
from rollproof.spec.cuts import Generation, Partition, abandon, complete, cut
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.envelope import decode_routes, encode_routes
from rollproof.spec.group import finalize_group
from rollproof.spec.judge import cuts, portable
from rollproof.spec.judge import requests as asked
from rollproof.spec.judge.requests import Accepted, Answer, Refused, Request
from rollproof.spec.judge.staging import Faults
from rollproof.spec.judge.views import named_values
from rollproof.spec.lineage import linearize
from rollproof.spec.media_rows import media_rows
from rollproof.spec.merge import merge_calls
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plan import classify_span, decode_plan, encode_plan
from rollproof.spec.plane import Get, Outage
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.rejections import Rejected
from rollproof.spec.replay import execute_published_plan
from rollproof.spec.retained import CallMedia, cut_extras, media_digest, restore
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.route_boundary import align_engine_rows
from rollproof.spec.terminal import select_terminal


def answer(request: Request) -> Answer:
    """Return what the contract requires in answer to ``request``."""
    try:
        return Accepted(_HANDLERS[type(request)](request))
    except Rejected as rejected:
        return Refused(rejected.reason)
    except ValueError as error:
        return Refused(f"refused: {error}")


def answer_to(request: Request, found: Answer) -> Answer:
    """Return what the contract requires of an implementation that gave the answer ``found``.

    D15 bounds the number of reads from above: an implementation that makes fewer may not reach the one that was to
    fail, and one that makes more may reach it where the contract's own reads do not. A fault counts as it was met.
    """
    required = answer(request)
    if not isinstance(required, Accepted) or not isinstance(found, Accepted):
        return required
    if isinstance(request, asked.FinalizeRollout):
        faults = _as_met(request.staging.faults, required.value, found.value)
        if faults != request.staging.faults:
            return answer(evolve(request, staging=evolve(request.staging, faults=faults)))
    if isinstance(request, asked.FinalizeGroups):
        for index, (step, outcome) in enumerate(zip(request.steps, found.value, strict=False)):
            faults = _as_met(step.faults, required.value[index], outcome)
            if faults != step.faults:
                steps = (*request.steps[:index], evolve(step, faults=faults), *request.steps[index + 1 :])
                request = evolve(request, steps=steps)
                required = answer(request)
                assert isinstance(required, Accepted)
    return required


def _as_met(faults: Faults, required: Any, found: Any) -> Faults:
    """Return faults in which a read fails where the implementation's failed: none, or the contract's last."""
    if faults.failing_get is None:
        return faults
    failed = [one.failure is Failure.READ for one in (required, found)]
    wanted, made = (sum(isinstance(effect, Get) for effect in one.effects) for one in (required, found))
    if failed == [True, False] and made <= faults.failing_get:
        return evolve(faults, failing_get=None)
    if failed == [False, True] and made >= faults.failing_get and wanted:
        return evolve(faults, failing_get=wanted - 1)
    return faults


def _finalize_rollout(request: asked.FinalizeRollout) -> asked.RolloutAnswer:
    plane = request.staging.plane()
    try:
        outcome = finalize_rollout(request.config, request.rollout_id, request.receipt, request.reward, plane)
    except Outage:
        return asked.RolloutAnswer((), None, Failure.READ)
    return asked.RolloutAnswer(tuple(plane.effects), outcome.rollout)


def _finalize_groups(request: asked.FinalizeGroups) -> tuple[GroupOutcome, ...]:
    staging, dims = request.staging, None
    outcomes: list[GroupOutcome] = []
    for step in request.steps:
        plane = evolve(staging, faults=step.faults).plane()
        outcome = finalize_group(request.config, step.request, plane, dims)
        if outcome.failure is Failure.READ:  # the read that failed had no effect
            outcome = evolve(outcome, effects=outcome.effects[:-1])
        outcomes.append(outcome)
        dims = outcome.dims
        staging = evolve(staging, rows=plane.rows)
    return tuple(outcomes)


def _replay_group(request: asked.ReplayGroup) -> asked.GroupReplay:
    direct = finalize_group(evolve(request.config, routed_dims=request.dims), request.request, request.staging.plane())
    config = evolve(request.config, routed_dims=request.dims, defer_routed_experts_to_policy=True)
    deferred = finalize_group(config, request.request, request.staging.plane())
    return asked.GroupReplay(
        direct=tuple(row.columns[ROUTED_EXPERTS] for row in direct.rows or ()),
        deferred=tuple(
            execute_published_plan(
                row.tags[ROUTE_PLAN_TAG],
                request.staging.rows,
                request.dims,
                row.columns["input_ids"].count,
                num_experts=config.num_experts,
                allow_repeated_experts=config.allow_repeated_experts,
                route_boundary=config.route_boundary or AS_STAGED,
            )
            for row in deferred.rows or ()
        ),
    )


def _cut_generation(request: asked.CutGeneration) -> tuple[asked.StagedMedia, ...]:
    media = None if request.bundle is None else CallMedia(request.spans, request.bundle)
    prefix = asked.StagedMedia(
        cut_extras(request.extras, media, request.scheme), staged_media(None, request.pixel_dtype)
    )
    extras = request.extras if media is None else {**(request.extras or {}), MEDIA_SPANS: request.spans}
    final = asked.StagedMedia(extras, staged_media(request.bundle, request.pixel_dtype))
    return (*(prefix for _ in range(request.cuts)), final)


def _restore(request: asked.Restore) -> asked.Restored:
    fresh = CallMedia(request.spans, named_values(request.tensors))
    restored = restore(request.row, fresh)
    if restored is None:
        return asked.Restored(with_media=False)
    return asked.Restored(with_media=True, fresh=same_objects(restored.tensors, fresh.tensors))


def _play_cuts(request: cuts.PlayCuts) -> cuts.CutHistory:
    plane, partition = cuts.CutPlane(), Partition(pixel_dtype=request.pixel_dtype, scheme=request.scheme)
    media = None if request.bundle is None else CallMedia(request.spans, request.bundle)
    generation, latest = Generation(request.call), None
    answers: list[DurablePrefix | None] = []
    writes = []
    for step in request.steps:
        if step.worker_dies:
            generation = _taken_up(request, latest, step.weight_version, plane, partition)
        generation = generation.with_tokens(step.token_ids, step.log_probs, step.text, step.weight_version)
        plane.failing_put = step.failing_put
        answered, generation = cut(generation, step.order, media, plane, partition)
        answers.append(answered if isinstance(answered, DurablePrefix) else None)
        latest = answers[-1] or latest
        writes.append(plane.take_writes())
    plane.failing_put = False
    if request.tail is None:
        failed = abandon(generation, plane, partition)
    else:
        tail = request.tail
        plane.failing_clear = tail.failing_clear
        generation = generation.with_tokens(tail.token_ids, tail.log_probs, b"", tail.weight_version)
        _, failed = complete(generation, tail.model_call_id, media, plane, partition)
    return cuts.CutHistory(tuple(answers), (*writes, plane.take_writes()), failed)


def _taken_up(
    request: cuts.PlayCuts, latest: DurablePrefix | None, version: int, plane: cuts.CutPlane, partition: Partition
) -> Generation:
    """Return the call as another worker takes it up, anew where nothing was acknowledged or it is not what was."""
    fresh = CallMedia() if request.bundle is None else CallMedia(request.spans, request.bundle)
    if latest is not None:
        try:
            return restore_cut(request.call, latest, fresh, version, plane, partition).generation
        except Rejected:
            pass
    return Generation(request.call)


def _restore_cut(request: cuts.RestoreCut) -> cuts.RestoredCut:
    fresh, plane = CallMedia(request.spans, named_values(request.tensors)), request.staging.plane()
    found = restore_cut(request.call, request.acknowledged, fresh, request.weight_version, plane, Partition())
    media = found.media
    return cuts.RestoredCut(
        found.token_ids,
        found.token_mask,
        found.log_probs,
        found.tokens_left,
        found.weight_version,
        with_media=media is not None,
        fresh=media is None or same_objects(media.tensors, fresh.tensors),
    )


def _merge_twice(request: portable.MergeTwice) -> portable.MergedTwice:
    merged = merge_calls(request.calls, request.max_len)
    return portable.MergedTwice(merged, merged)


def same_objects(left: Mapping[Any, Any] | None, right: Mapping[Any, Any] | None) -> bool:
    """Return whether two mappings hold the very same values under the same names."""
    if left is None or right is None:
        return left is right
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


_HANDLERS: Final[dict[type, Callable[[Any], Any]]] = {
    asked.PrefixDigest: lambda request: prefix_digest(request.token_ids),
    asked.ChainDigest: lambda request: chain_digest(request.parent_chain_hash, request.token_ids),
    asked.ExtrasDigest: lambda request: extras_digest(request.extras),
    asked.CallDigest: lambda request: call_digest(request.call),
    asked.ParseReceipt: lambda request: parse_receipt(request.value),
    asked.SelectTerminal: lambda request: select_terminal(request.records),
    asked.DecodeRoutes: lambda request: decode_routes(request.payload),
    asked.EncodeRoutes: lambda request: encode_routes(request.routes),
    asked.ClassifySpan: lambda request: (
        classify_span(request.carry_len, request.generation_len, request.staged_route_len).value
    ),
    asked.DecodePlan: lambda request: decode_plan(request.value),
    asked.EncodePlan: lambda request: encode_plan(request.plan),
    asked.ExecutePlan: lambda request: execute(
        request.plan,
        request.fragments,
        request.dims,
        request.canonical_len,
        num_experts=request.num_experts,
        allow_repeated_experts=request.allow_repeated_experts,
        route_boundary=request.route_boundary,
    ),
    asked.AlignEngineRows: lambda request: align_engine_rows(
        request.rows, request.start, request.tokens, request.num_experts
    ),
    asked.ReplayGroup: lambda request: _replay_group(request),
    asked.Linearize: lambda request: linearize(request.receipt, request.calls),
    asked.LinearizeGrowth: lambda request: (request.few, request.many),
    asked.FinalizeRollout: _finalize_rollout,
    asked.FinalizeGroups: _finalize_groups,
    asked.ChainMedia: lambda request: chain_media(request.parts),
    asked.StageMedia: lambda request: staged_media(request.bundle, request.pixel_dtype),
    asked.MediaDigest: lambda request: media_digest(named_values(request.tensors), request.scheme),
    asked.SameMedia: lambda request: (
        media_digest(named_values(request.left)) == media_digest(named_values(request.right))
    ),
    asked.CutGeneration: _cut_generation,
    asked.Restore: _restore,
    asked.CheckCompletion: lambda request: tuple(
        (violation.code.code, violation.subject)
        for violation in check_completion(
            request.cuts, request.completions, request.rows, request.live_keys, request.successor_keys
        )
    ),
    portable.MergeCalls: lambda request: merge_calls(request.calls, request.max_len),
    portable.MergeTwice: _merge_twice,
    portable.AlignRoutes: lambda request: align_routes(request.calls, request.captures),
    portable.AdvantageRequest: lambda request: portable.Advantages(
        advantages(request.first), advantages(request.second)
    ),
    cuts.ParseCutKey: lambda request: parse_cut_key(request.key),
    cuts.PlayCuts: _play_cuts,
    cuts.RestoreCut: _restore_cut,
    cuts.RestoredRoutes: lambda request: restored_routes(request.routes, request.start, request.end, request.prefills),
    portable.MediaRows: lambda request: media_rows(
        request.rollouts, request.placeholder_id, request.merge_size, request.max_len
    ),
}
