"""``RolloutReassembler``: receipts and staged rows in, published training rows out (sections 5, 6 and 8).

The constructor and the methods are those of NeMo RL's class of this name, so that a user can swap the import. What it
does to the data plane has an order that makes a crash survivable: all reads, one put of all N rows, then, unless
routes are deferred, one clear of the staged rows that these rollouts own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from rollproof.impl.arguments import (
    as_choice,
    as_count,
    as_flag,
    as_log_prob,
    as_name,
    as_optional_count,
    as_optional_dims,
    as_plane,
    as_token_ids,
)
from rollproof.impl.group import (
    Publication,
    argument_error,
    build,
    cleanup_keys,
    describe,
    drop,
    route_plans,
    sample_ids,
)
from rollproof.impl.group_reads import READ_ALONE, GroupRows, read_group
from rollproof.impl.in_flight import GroupInFlight, acting_on
from rollproof.impl.in_place import GroupMemory
from rollproof.impl.media import fit_into_group
from rollproof.impl.metrics import Stopwatch, handed_through
from rollproof.impl.outcomes import Dims, FinalizedGroup, FinalizedRollout, RolloutOutcome, batch_meta
from rollproof.impl.rollout import finalize_rollout
from rollproof.impl.staging import StagingSource, call_plane
from rollproof.spec.constants import ROUTE_BOUNDARY_CHOICES, ROUTED_EXPERTS, TASK_NAME
from rollproof.spec.records import GroupRequest, ReassemblerConfig

__all__ = ["CleanupError", "FinalizedGroup", "FinalizedRollout", "GroupInFlight", "PublishError", "RolloutReassembler"]


class PublishError(RuntimeError):
    """The rows could not be put.

    Staging is whole, but some rows may be there: ``Recovery`` must complete or undo it.
    """

    published = False

    def __init__(self, partition: str, sample_ids: Sequence[str]) -> None:
        self.partition, self.sample_ids = partition, list(sample_ids)
        super().__init__(partition, self.sample_ids)

    def __str__(self) -> str:
        return f"publishing to partition {self.partition!r} failed: {', '.join(self.sample_ids)}"


class CleanupError(RuntimeError):
    """Staged rows could not be cleared. The group's rows, if it has any, are published: do not finalize it again."""

    def __init__(self, partition: str, keys: Sequence[str], published: bool = True) -> None:
        self.partition, self.keys, self.published = partition, list(keys), published
        super().__init__(partition, self.keys, published)

    def __str__(self) -> str:
        state = "the rows are published" if self.published else "the group was dropped"
        return f"clearing partition {self.partition!r} failed, {state}; still staged: {', '.join(self.keys)}"


def _routes_unknown(outcomes: Sequence[RolloutOutcome]) -> str:
    """Return why a group in direct router replay cannot be published, and what to check (D40)."""
    rejected = {
        outcome.rollout.rollout_id: outcome.rollout.rejection_reason
        for outcome in outcomes
        if outcome.staged_routes and not outcome.rollout.valid
    }
    check = (
        "check that the engine returns routed experts and that the staging sink keeps them"
        if not rejected
        else f"{len(rejected)} rejected rollouts staged some, the first for {next(iter(rejected.values()))}"
    )
    return (
        f"router replay is on, but no accepted rollout so far had {ROUTED_EXPERTS}, so the (layers, top-k) of routes "
        f"is unknown: {check}, or pass routed_dims"
    )


class RolloutReassembler:
    """Finalizes rollouts of one staging partition into one training partition.

    ``dp_client`` has the methods of ``rollproof.impl.dataplane.DataPlane``, on a local object or a Ray actor handle.
    The keyword arguments after ``capture_media`` are ours and optional: ``routed_dims`` (layers, top-k) and
    ``num_experts`` of the model, where they are known; ``vocab_size`` rejects token ids outside it;
    ``allow_repeated_experts`` accepts routes that name one expert twice for one token and layer (D20);
    ``patches_per_embedding`` is the merge factor of images (D37); ``publish_group_key`` adds the column ``group_key``,
    for baselines by group (D39). ``route_boundary`` repairs route boundaries, and says what becomes of those that no
    call repairs: "as_staged", "sentinel" or "required" (D28); without it, calls that announce one are refused.
    ``top_logprobs`` k > 0 reads, checks and publishes the sampler columns of k candidates per token (section 12).
    ``least_plausible_logprob`` and ``stop_token_ids`` concern advisories alone. ``reads`` says what one read of the
    base columns covers: ``"rollout"``, or ``"group"``, with media, which publishes the same rows with one
    read where nothing is wrong, two where rows are missing, and more where the plane does not say which, or rows are
    bad.

    Finalizing a group blocks. Groups may be finalized from several threads; what an accepted rollout teaches about
    (layers, top-k) is kept for all later ones (D10).
    """

    def __init__(
        self,
        dp_client: Any,
        *,
        partition_id: str,
        staging_partition: str,
        pad_token_id: int,
        max_seq_len: int,
        router_replay_enabled: bool = False,
        defer_routed_experts_to_policy: bool = False,
        capture_media: bool = False,
        routed_dims: Dims | None = None,
        num_experts: int | None = None,
        vocab_size: int | None = None,
        allow_repeated_experts: bool = False,
        patches_per_embedding: int | None = None,
        publish_group_key: bool = False,
        least_plausible_logprob: float = -60.0,
        stop_token_ids: Any = (),
        route_boundary: str | None = None,
        top_logprobs: int = 0,
        reads: str = "rollout",
    ) -> None:
        if reads not in ("rollout", "group"):
            raise ValueError(f"reads: got {reads!r}, expected 'rollout' or 'group'")
        self._config = ReassemblerConfig(
            partition_id=as_name("partition_id", partition_id),
            staging_partition=as_name("staging_partition", staging_partition),
            pad_token_id=as_count("pad_token_id", pad_token_id, 0),
            max_seq_len=as_count("max_seq_len", max_seq_len),
            router_replay_enabled=as_flag("router_replay_enabled", router_replay_enabled),
            defer_routed_experts_to_policy=as_flag("defer_routed_experts_to_policy", defer_routed_experts_to_policy),
            capture_media=as_flag("capture_media", capture_media),
            routed_dims=as_optional_dims("routed_dims", routed_dims),
            num_experts=as_optional_count("num_experts", num_experts),
            vocab_size=as_optional_count("vocab_size", vocab_size),
            allow_repeated_experts=as_flag("allow_repeated_experts", allow_repeated_experts),
            patches_per_embedding=as_optional_count("patches_per_embedding", patches_per_embedding),
            publish_group_key=as_flag("publish_group_key", publish_group_key),
            least_plausible_logprob=as_log_prob("least_plausible_logprob", least_plausible_logprob),
            stop_token_ids=as_token_ids("stop_token_ids", stop_token_ids),
            top_logprobs=as_count("top_logprobs", top_logprobs, 0),
            route_boundary=(
                None if route_boundary is None else as_choice("route_boundary", route_boundary, ROUTE_BOUNDARY_CHOICES)
            ),
        )
        if partition_id == staging_partition:
            raise ValueError(f"staging_partition: got {staging_partition!r}, expected another than partition_id")
        self._dp_client = as_plane("dp_client", dp_client)
        self._reads = reads
        self._source = StagingSource(dp_client, staging_partition)
        self._dims = self._config.routed_dims
        self._learning = threading.Lock()
        """Held while (layers, top-k) is unknown, so that one rollout teaches it to all threads."""

    def finalize_rollout(self, rollout_id: str, receipt: dict[str, Any] | None, *, reward: float) -> FinalizedRollout:
        """Verify one receipt against its staged rows and lay out its terminal chain (section 5).

        Whatever the receipt or a staged row holds, the answer is a valid row or a rejected one. Only an error of the
        data plane propagates, as it is.
        """
        return self._finalize(rollout_id, receipt, reward, []).rollout.result()

    def finalize_group(
        self,
        group_id: str,
        rollout_ids: list[str],
        receipts: list[dict[str, Any] | None],
        rewards: list[float],
        *,
        mask_sample: list[bool],
        fallback_weight_version: int,
        prompt_idx: int,
        loss_multiplier: float = 1.0,
        canonical_sample_ids: list[str] | None = None,
        current_weight_version: int | None = None,
        group_labels: Any = None,
        result_stats: Any = None,
    ) -> FinalizedGroup:
        """Publish one prompt group as exactly N rows (section 8), or drop it where nothing could be published.

        ``current_weight_version`` is the newest that there is: an advisory counts calls that claim a newer one.
        ``group_labels`` and ``result_stats`` change no row: ``rollproof.impl.metrics.handed_through`` reports them.

        Raises ``ValueError`` for contradicting arguments (D13), before any read; the data plane's own error where a
        read fails, before any write; ``RuntimeError`` where router replay cannot know the shape of routes;
        ``PublishError`` before and ``CleanupError`` after the put; ``GroupInFlight``, before
        any read, where another thread has the group. An interrupt of the put or the clear has a note about it.
        """
        request = GroupRequest(
            group_id=group_id,
            rollout_ids=tuple(rollout_ids),
            receipts=tuple(receipts),
            rewards=tuple(rewards),
            mask_sample=tuple(mask_sample),
            fallback_weight_version=fallback_weight_version,
            prompt_idx=prompt_idx,
            loss_multiplier=loss_multiplier,
            canonical_sample_ids=None if canonical_sample_ids is None else tuple(canonical_sample_ids),
            current_weight_version=current_weight_version,
        )
        wrong = argument_error(request)
        if wrong is not None:
            raise ValueError(f"group {group_id}: {wrong}")
        with acting_on(self._dp_client, self._config.partition_id, group_id):
            clock = Stopwatch()
            outcomes: list[RolloutOutcome] = []
            rows: GroupRows | None = None
            memory: GroupMemory | None = None
            if self._reads == "group":
                rows = read_group(self._config, self._source, rollout_ids, receipts)
                memory = GroupMemory.of(rows.rows, len(rollout_ids))
            for rollout_id, receipt, reward in zip(rollout_ids, receipts, rewards, strict=True):
                outcomes.append(self._finalize(rollout_id, receipt, reward, outcomes, rows, memory))
            clock.lap()
            return self._publish(request, outcomes, handed_through(group_labels, result_stats), clock, memory)

    def _finalize(
        self,
        rollout_id: str,
        receipt: Any,
        reward: Any,
        earlier: Sequence[RolloutOutcome],
        rows: GroupRows | None = None,
        memory: GroupMemory | None = None,
    ) -> RolloutOutcome:
        """Finalize one rollout, after the ``earlier`` ones of its group, whose base ``rows`` may have been read."""
        place = None if memory is None else memory.after(earlier)
        unlearned = self._config.direct_routes and self._dims is None
        with self._learning if unlearned else nullcontext():
            dims = self._dims
            source = self._source if rows is None else rows
            parsed = None if rows is None else rows.receipts.get(rollout_id)
            asked = rollout_id, receipt, reward, dims, place, parsed
            outcome = finalize_rollout(self._config, source, *asked)
            if rows is not None and rows.position and outcome.rollout.code in READ_ALONE:
                outcome = finalize_rollout(self._config, rows.alone(), *asked)
            if self._config.capture_media:
                outcome = fit_into_group(outcome, earlier, dims)
            if unlearned and self._dims is None:
                self._dims = outcome.dims
        return outcome

    def _publish(
        self,
        request: GroupRequest,
        outcomes: Sequence[RolloutOutcome],
        extra: dict[str, float],
        clock: Stopwatch,
        memory: GroupMemory | None = None,
    ) -> FinalizedGroup:
        """Publish, or drop the group. The result is made before the first write: nothing after it can fail (D27)."""
        config, dims = self._config, self._dims
        owned = cleanup_keys(outcomes)
        deferred = config.defer_routed_experts_to_policy
        plans = route_plans(config, outcomes) if deferred else []
        result = describe(config, request, outcomes, plans, extra)
        if config.direct_routes and dims is None:
            if result.valid_row_count:
                raise RuntimeError(f"group {request.group_id}: {_routes_unknown(outcomes)}")
            dropped = drop(result)
            self._clear_staging(owned, published=False)
            return dropped
        rows = build(config, request, outcomes, plans, dims, memory)
        ids = sample_ids(request)
        meta = batch_meta(
            partition_id=config.partition_id,
            task_name=TASK_NAME,
            sample_ids=ids,
            fields=[str(name) for name, _ in rows.fields.items()],
            sequence_lengths=rows.lengths,
            extra_info={},
            tags=[dict(tag) for tag in rows.tags],
        )
        published = replace(result, meta=meta, staging_keys=owned if deferred else [])
        clock.lap()
        self._put(ids, rows)
        with suppress(Exception):
            clock.lap()
        if not deferred:
            self._clear_staging(owned)
            with suppress(Exception):
                clock.lap()
        with suppress(Exception):
            published.metrics.update(clock.times)
        return published

    def _put(self, ids: list[str], rows: Publication) -> None:
        partition = self._config.partition_id
        try:
            call_plane(
                self._dp_client,
                "put_samples",
                sample_ids=ids,
                partition_id=partition,
                fields=rows.fields,
                tags=rows.tags,
            )
        except Exception as error:
            raise PublishError(partition, ids) from error
        except BaseException as interrupt:
            interrupt.add_note(f"{PublishError(partition, ids)}: the group is for Recovery")
            raise

    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        partition = self._config.staging_partition
        if not keys:
            return
        try:
            call_plane(self._dp_client, "clear_samples", sample_ids=keys, partition_id=partition)
        except Exception as error:
            raise CleanupError(partition, keys, published) from error
        except BaseException as interrupt:
            interrupt.add_note(f"{CleanupError(partition, keys, published)}: the group is for Recovery")
            raise
