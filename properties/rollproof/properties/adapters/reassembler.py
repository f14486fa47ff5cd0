"""Any class with the constructor and methods of NeMo RL's RolloutReassembler, as an implementation.

The adapter runs the class over a recording data plane and translates what it returns. A drop-in needs only to derive
from it and to name the class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from attrs import fields

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.recovery import run
from rollproof.properties.adapters.protocol import Adapter
from rollproof.properties.adapters.recording import RecordingPlane
from rollproof.properties.adapters.tensors import from_torch
from rollproof.properties.errors import LeftOut, message_of
from rollproof.spec.constants import STEP_TIMES
from rollproof.spec.judge.requests import Area, GroupStep, RolloutAnswer
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Clear, Effect, Get
from rollproof.spec.records import (
    FinalizedGroup,
    FinalizedRollout,
    ReassemblerConfig,
    RouteAssemblyPlan,
    RouteSpan,
)
from rollproof.spec.tensor import Tensor

REFERENCE_ARGUMENTS = (
    "partition_id",
    "staging_partition",
    "pad_token_id",
    "max_seq_len",
    "router_replay_enabled",
    "defer_routed_experts_to_policy",
    "capture_media",
)
"""The constructor's keyword arguments on the reference page; ours are passed only where they are set."""


class ReassemblerAdapter(Adapter):
    """Areas ``rollout`` and ``group`` of a reassembler class."""

    areas: ClassVar[frozenset[Area]] = frozenset({Area.ROLLOUT, Area.GROUP})
    reassembler: ClassVar[Callable[..., Any]]
    """The class: called with a data plane and the keyword arguments of the reference page."""
    make_plane: Callable[[], Any] = staticmethod(MemoryDataPlane)
    """A fresh, empty data plane for one request."""
    expect_boundary: ClassVar[str | None] = None
    """What the class always does with boundary tokens that no call repairs (D28), if that is no argument of it.

    With ``"as_staged"`` it is expected to publish what NeMo RL publishes: every request with router replay is asked as
    one with this choice, and the constructor is given none.
    """

    def build(self, plane: RecordingPlane, config: ReassemblerConfig) -> Any:
        """Return one reassembler over ``plane``. Raises ``LeftOut`` for a choice that the class does not have."""
        arguments = {name: getattr(config, name) for name in REFERENCE_ARGUMENTS}
        ours = {field.name: field.default for field in fields(ReassemblerConfig)}.items()
        for name, default in ours:
            if name not in REFERENCE_ARGUMENTS and getattr(config, name) != default:
                arguments[name] = getattr(config, name)
        if self.expect_boundary is not None:
            choice = arguments.pop("route_boundary", self.expect_boundary)
            if choice != self.expect_boundary:
                raise LeftOut(f"route_boundary: got {choice!r}, but {self.name} knows {self.expect_boundary!r} only")
        return type(self).reassembler(plane, **arguments)

    def plane(self, config: ReassemblerConfig, staging: Staging) -> RecordingPlane:
        """Return a recording plane that holds ``staging``."""
        return RecordingPlane.over(self.make_plane(), staging, config.staging_partition, config.pad_token_id)

    def finalize_rollout(
        self, config: ReassemblerConfig, rollout_id: str, receipt: Any, reward: Any, staging: Staging
    ) -> RolloutAnswer:
        """Run the class's ``finalize_rollout``; an injected outage that propagates is the failure READ."""
        plane = self.plane(config, staging)
        try:
            rollout = self.build(plane, config).finalize_rollout(rollout_id, receipt, reward=reward)
        except Exception as error:
            if plane.raised is None or not caused_by(error, plane.raised):
                raise
            return RolloutAnswer(tuple(plane.effects), None, Failure.READ)
        return RolloutAnswer(tuple(plane.effects), spec_rollout(rollout))

    def finalize_groups(
        self, config: ReassemblerConfig, steps: Sequence[GroupStep], staging: Staging
    ) -> tuple[GroupOutcome, ...]:
        """Run the class's ``finalize_group`` once per step, with one instance."""
        plane = self.plane(config, staging)
        reassembler = self.build(plane, config)
        outcomes = []
        for step in steps:
            plane.begin(step.faults)
            outcomes.append(run_step(reassembler, plane, step))
        return tuple(outcomes)


def run_step(reassembler: Any, plane: RecordingPlane, step: GroupStep) -> GroupOutcome:
    """Call ``finalize_group`` once, and return a group, or one of the failures that the contract names."""
    request = step.request
    try:
        group = run(reassembler, request)
    except Exception as error:
        failure = named_failure(error, plane)
        if failure is None:
            raise
        return GroupOutcome(tuple(plane.effects), None, failure)
    return GroupOutcome(tuple(plane.effects), spec_group(group))


def named_failure(error: Exception, plane: RecordingPlane) -> Failure | None:
    """Return which failure of the contract an exception is; None for anything else."""
    if plane.raised is not None:
        if not caused_by(error, plane.raised):
            return None
        last: Effect = plane.effects[-1]
        if isinstance(last, Get):
            return Failure.READ
        if plane.faults.put:
            return Failure.PUT
        named = (last.partition, *last.keys) if isinstance(last, Clear) else ()
        return Failure.CLEAR if named and all(name in message_of(error) for name in named) else None
    if isinstance(error, ValueError) and not plane.effects:
        return Failure.CALLER
    only_reads = all(isinstance(effect, Get) for effect in plane.effects)
    explained = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError | RecursionError)
    return Failure.ROUTES_UNKNOWN if explained and only_reads else None


def caused_by(error: BaseException | None, cause: BaseException) -> bool:
    """Return whether ``error`` is ``cause``, or was raised from it."""
    while error is not None:
        if error is cause:
            return True
        error = error.__cause__
    return False


# ── from the class's records to the spec's ──────────────────────────────────────────────────────────────────────────


def spec_rollout(rollout: Any) -> FinalizedRollout:
    """Return a finalized rollout as a value of the spec."""
    routes = rollout.routed_experts
    return FinalizedRollout(
        rollout_id=rollout.rollout_id,
        valid=rollout.valid,
        rejection_reason=rollout.rejection_reason,
        reward=rollout.reward,
        staging_keys=tuple(rollout.staging_keys),
        token_ids=tuple(rollout.token_ids),
        token_mask=tuple(rollout.token_mask),
        logprobs=tuple(rollout.logprobs),
        prompt_len=rollout.prompt_len,
        min_wv=rollout.min_wv,
        max_wv=rollout.max_wv,
        routed_experts=from_torch(routes) if isinstance(routes, torch.Tensor) else None,
        route_plan=spec_plan(rollout.route_plan),
        media=spec_media(rollout.media),
    )


def spec_plan(plan: Any) -> RouteAssemblyPlan | None:
    """Return a route plan as a value of the spec."""
    if plan is None or isinstance(plan, RouteAssemblyPlan):
        return plan
    spans = tuple(
        RouteSpan(
            span.staging_key,
            span.carry_len,
            span.generation_len,
            span.staged_route_len,
            span.extras_digest_version,
            span.extras_digest,
            getattr(span, "boundary_token_index", None),
            getattr(span, "repair_previous_token", False),
        )
        for span in plan.spans
    )
    return RouteAssemblyPlan(
        plan.staging_partition,
        spans,
        tuple(plan.cleanup_staging_keys),
        plan.expected_token_length,
        plan.schema_version,
    )


def spec_media(media: Mapping[str, Any] | None) -> dict[str, Tensor] | None:
    """Return one rollout's media as tensors of the spec."""
    return None if media is None else {name: from_torch(packed.as_tensor()) for name, packed in media.items()}


def spec_group(group: Any) -> FinalizedGroup:
    """Return a finalized group as a value of the spec, without its step times, which no request determines."""
    meta = group.meta
    return FinalizedGroup(
        sample_ids=() if meta is None else tuple(meta.sample_ids),
        fields=frozenset() if meta is None else frozenset(meta.fields),
        sequence_lengths=() if meta is None else tuple(int(length) for length in meta.sequence_lengths),
        tags=() if meta is None else tuple(dict(tag) for tag in meta.tags),
        group_min_wv=group.group_min_wv,
        group_max_wv=group.group_max_wv,
        staging_keys=tuple(group.staging_keys),
        canonical_output_tokens=group.canonical_output_tokens,
        metrics={name: value for name, value in group.metrics.items() if name not in STEP_TIMES},
        dropped=group.dropped,
        valid_row_count=group.valid_row_count,
        total_row_count=group.total_row_count,
    )
