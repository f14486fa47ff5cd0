"""``RolloutReassembler``: receipts and staged rows in, published training rows out (sections 5, 6 and 8).

The constructor and the methods are those of NeMo RL's class of this name, so that a user can swap the import. What it
does to the data plane has an order that makes a crash survivable: all reads, one put of all N rows, then, unless
routes are deferred, one clear of the staged rows that these rollouts own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from rollproof.impl.group import Publication, argument_error, build, cleanup_keys, route_plans, sample_ids, weight_range
from rollproof.impl.media import fit_into_group
from rollproof.impl.metrics import group_metrics
from rollproof.impl.outcomes import Dims, FinalizedGroup, FinalizedRollout, RolloutOutcome, batch_meta
from rollproof.impl.rollout import finalize_rollout
from rollproof.impl.staging import StagingSource, call_plane
from rollproof.spec.constants import TASK_NAME
from rollproof.spec.records import GroupRequest, ReassemblerConfig

__all__ = ["CleanupError", "FinalizedGroup", "FinalizedRollout", "PublishError", "RolloutReassembler"]


class PublishError(RuntimeError):
    """The rows could not be put. Staging is whole, but some rows may be there: it is for ``Recovery`` to go on."""

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


class RolloutReassembler:
    """Finalizes rollouts of one staging partition into one training partition.

    ``dp_client`` has the methods of ``rollproof.impl.dataplane.DataPlane``, on a local object or a Ray actor handle.
    The keyword arguments after ``capture_media`` are ours and optional: ``routed_dims`` (layers, top-k) and
    ``num_experts`` of the model, where they are known; ``vocab_size`` rejects token ids outside it;
    ``allow_repeated_experts`` accepts routes that name one expert twice for one token and layer (D20).

    Finalizing a group blocks. Groups may be finalized from several threads; what an accepted rollout teaches about
    (layers, top-k) is kept for all later ones (D10). Long calls are hashed on a second thread, where torch has more
    than one: ``torch.set_num_threads(1)`` or ``OMP_NUM_THREADS=1`` turns that off.
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
    ) -> None:
        if defer_routed_experts_to_policy and not router_replay_enabled:
            raise ValueError("defer_routed_experts_to_policy needs router_replay_enabled")
        self._dp_client = dp_client
        self._config = ReassemblerConfig(
            partition_id=partition_id,
            staging_partition=staging_partition,
            pad_token_id=pad_token_id,
            max_seq_len=max_seq_len,
            router_replay_enabled=router_replay_enabled,
            defer_routed_experts_to_policy=defer_routed_experts_to_policy,
            capture_media=capture_media,
            routed_dims=routed_dims,
            num_experts=num_experts,
            vocab_size=vocab_size,
            allow_repeated_experts=allow_repeated_experts,
        )
        self._source = StagingSource(dp_client, staging_partition)
        self._dims = routed_dims
        self._learning = threading.Lock()
        """Held while (layers, top-k) is unknown, so that one rollout teaches it to all threads."""

    def finalize_rollout(self, rollout_id: str, receipt: dict[str, Any] | None, *, reward: float) -> FinalizedRollout:
        """Verify one receipt against its staged rows and lay out its terminal chain (section 5).

        Whatever the receipt or a staged row holds, the answer is a valid row or a rejected one. Only an error of the
        data plane propagates, as it is.
        """
        return self._finalize(rollout_id, receipt, reward, []).rollout

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
    ) -> FinalizedGroup:
        """Publish one prompt group as exactly N rows (section 8), or drop it where nothing could be published.

        Raises ``ValueError`` for contradicting arguments (D13), before any read; the data plane's own error where a
        read fails, before any write; ``RuntimeError`` where router replay cannot know the shape of routes;
        ``PublishError`` and ``CleanupError``, which say on which side of the put they are.
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
        )
        wrong = argument_error(request)
        if wrong is not None:
            raise ValueError(f"group {group_id}: {wrong}")
        outcomes: list[RolloutOutcome] = []
        for rollout_id, receipt, reward in zip(rollout_ids, receipts, rewards, strict=True):
            outcomes.append(self._finalize(rollout_id, receipt, reward, outcomes))
        return self._publish(request, outcomes)

    def _finalize(
        self, rollout_id: str, receipt: Any, reward: Any, earlier: Sequence[RolloutOutcome]
    ) -> RolloutOutcome:
        """One rollout, after the ``earlier`` ones of its group."""
        unlearned = self._config.direct_routes and self._dims is None
        with self._learning if unlearned else nullcontext():
            dims = self._dims
            outcome = finalize_rollout(self._config, self._source, rollout_id, receipt, reward, dims)
            if self._config.capture_media:
                outcome = fit_into_group(outcome, earlier, dims)
            if unlearned and self._dims is None:
                self._dims = outcome.dims
        return outcome

    def _publish(self, request: GroupRequest, outcomes: Sequence[RolloutOutcome]) -> FinalizedGroup:
        config, dims = self._config, self._dims
        rollouts = [outcome.rollout for outcome in outcomes]
        valid = [outcome for outcome in outcomes if outcome.rollout.valid]
        owned = cleanup_keys(request, outcomes)
        deferred = config.defer_routed_experts_to_policy
        plans = route_plans(config, outcomes) if deferred else []
        minimum, maximum = weight_range(request, rollouts)
        group = FinalizedGroup(
            meta=None,
            group_min_wv=minimum,
            group_max_wv=maximum,
            staging_keys=owned if deferred else [],
            canonical_output_tokens=sum(int(outcome.row.generation_lens.sum()) for outcome in valid if outcome.row),
            metrics=group_metrics(config, request.receipts, outcomes, plans),
            valid_row_count=len(valid),
            total_row_count=len(rollouts),
        )
        if config.direct_routes and dims is None:
            if valid:
                raise RuntimeError(
                    f"group {request.group_id}: router replay is on, but no rollout so far staged routes, so their "
                    "(layers, top-k) is unknown: check that the engine returns routed experts and that the staging "
                    "sink keeps them, or pass routed_dims"
                )
            return self._drop(group, owned)
        rows = build(config, request, outcomes, plans, dims)
        self._put(sample_ids(request), rows)
        if not deferred:
            self._clear_staging(owned)
        group.meta = batch_meta(
            partition_id=config.partition_id,
            task_name=TASK_NAME,
            sample_ids=sample_ids(request),
            fields=[str(name) for name, _ in rows.fields.items()],
            sequence_lengths=rows.lengths,
            extra_info={},
            tags=[dict(tag) for tag in rows.tags],
        )
        return group

    def _drop(self, group: FinalizedGroup, owned: list[str]) -> FinalizedGroup:
        """No valid row, and no shape for the routes of placeholders: nothing can be published."""
        self._clear_staging(owned, published=False)
        group.dropped, group.drop_reason = True, "no valid rollout, and the (layers, top-k) of routes is unknown"
        group.metrics["finalize/group_dropped"] = 1.0
        group.valid_row_count = group.total_row_count = 0
        return group

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

    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        partition = self._config.staging_partition
        if not keys:
            return
        try:
            call_plane(self._dp_client, "clear_samples", sample_ids=keys, partition_id=partition)
        except Exception as error:
            raise CleanupError(partition, keys, published) from error
