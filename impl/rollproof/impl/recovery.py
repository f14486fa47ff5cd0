"""Recovery of a group whose finalizer died, or whose call never returned.

How far it came is then unknown: its rows may be published and its staging half cleared, and a second run would
overwrite good rows with placeholders. What the data plane holds decides. It can, because a finalizer's effects have an
order: one put of all rows, then one clear.

| rows there | staged keys there | what it means | what ``recover`` does |
| --- | --- | --- | --- |
| all | any | the put happened | clears what is still staged |
| none | some, or the group owns none | the put did not happen | runs the group |
| some, or all without tags | all | the put broke off; nothing was cleared | removes those rows and runs the group |
| some | not all | rows are lost that were published | ``Undecidable`` |
| none | none of those it owns | published and consumed, or lost | ``Undecidable`` |

Rows of a broken put go first, because a second put may break off too: a row of each would look like a whole group.

Two things must hold. The finalizer is dead: one that still runs could read half-cleared staging. And nobody takes rows
of a group before its result is known, or "none" would also mean "all of them, and consumed".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from rollproof.impl.arguments import as_flag, as_name, as_plane
from rollproof.impl.columns import column_rows
from rollproof.impl.group import sample_ids
from rollproof.impl.in_flight import acting_on
from rollproof.impl.outcomes import FinalizedGroup, batch_meta
from rollproof.impl.reassembler import CleanupError, RolloutReassembler
from rollproof.impl.rollout import owned_keys
from rollproof.impl.staging import StagingSource, call_plane
from rollproof.spec.constants import TASK_NAME
from rollproof.spec.records import GroupRequest
from rollproof.spec.rejections import Code, Rejected

EVIDENCE = ("input_lengths", "token_mask")
"""Columns of published rows from which a group's result is rebuilt."""


class Undecidable(RuntimeError):
    """The remains of a group do not show what happened to it; nothing was changed. ``Recovery.discard`` ends it."""

    def __init__(self, group_id: str, holding: Holding) -> None:
        self.group_id, self.holding = group_id, holding
        super().__init__(group_id, holding)

    def __str__(self) -> str:
        at = self.holding
        return (
            f"group {self.group_id}: {at.rows} of {at.of_rows} rows are published and {at.staged} of {at.of_staged} "
            "staged rows are left: neither finishing nor running it again would be safe"
        )


class Contradiction(RuntimeError):
    """The data plane gave contradictory answers about a group's rows. Nothing was changed: recover again."""

    def __init__(self, partition: str, together: int | None, one_by_one: int, asked: int) -> None:
        self.partition, self.together, self.one_by_one, self.asked = partition, together, one_by_one, asked
        super().__init__(partition, together, one_by_one, asked)

    def __str__(self) -> str:
        together = "some missing" if self.together is None else self.together
        return (
            f"partition {self.partition!r}: of {self.asked} rows, the data plane holds {together} when asked for all "
            f"at once, and {self.one_by_one} when asked one by one"
        )


@frozen
class Holding:
    """How much of a group the data plane holds: published rows, and staged rows that its rollouts own."""

    rows: int
    of_rows: int
    staged: int
    of_staged: int

    @property
    def published(self) -> bool:
        """Whether the group's put happened."""
        return self.rows == self.of_rows

    @property
    def may_run(self) -> bool:
        """Whether a run gives the rows that the first one would have given."""
        if self.rows:
            return not self.published and self.staged == self.of_staged
        return self.staged > 0 or self.of_staged == 0


@frozen(eq=False)
class Recovery:
    """Recovers groups of one training partition and one staging partition.

    ``deferred`` is the reassembler's ``defer_routed_experts_to_policy``: then the policy clears staging.
    """

    dp_client: Any
    partition_id: str
    staging_partition: str
    deferred: bool = False

    def __attrs_post_init__(self) -> None:
        as_plane("dp_client", self.dp_client)
        as_name("partition_id", self.partition_id)
        as_name("staging_partition", self.staging_partition)
        as_flag("deferred", self.deferred)

    def holding(self, request: GroupRequest) -> Holding:
        """Return what the data plane holds of a group.

        Its errors propagate; ``Contradiction`` where its answers differ.
        """
        ids, owned = sample_ids(request), owned_by(request)
        rows = self._count(self.partition_id, ids, EVIDENCE[0])
        if rows == len(ids) and not self._tagged(ids):
            rows = len(ids) - 1  # a put ends with the tags: as if its last row were missing
        staged = 0 if rows == len(ids) else self._count(self.staging_partition, owned, "delta_len")
        return Holding(rows, len(ids), staged, len(owned))

    def recover(self, request: GroupRequest, reassembler: RolloutReassembler) -> FinalizedGroup:
        """Finish a group, or run it, depending on what the data plane holds.

        May be called again after any error. A group that was only finished comes back without metrics and field names.
        Both its weight versions are the oldest one, from the tags of its rows; where the data plane lists no tags, they
        are the request's fallback.
        Raises ``Undecidable``, ``Contradiction``, and whatever ``finalize_group`` raises.
        """
        with acting_on(self.dp_client, self.partition_id, request.group_id):
            holding = self.holding(request)
            if holding.published:
                group = self._rebuilt(request)
                if not self.deferred:
                    self._clear(owned_by(request))
                return group
            if not holding.may_run:
                raise Undecidable(request.group_id, holding)
            ids = sample_ids(request)
            if holding.rows or not self._tagged(ids):
                call_plane(self.dp_client, "clear_samples", sample_ids=ids, partition_id=self.partition_id)
            return run(reassembler, request)

    def discard(self, request: GroupRequest) -> None:
        """Remove what is left of a group that nobody will train: its rows, then its staging."""
        ids, partition = sample_ids(request), self.partition_id
        call_plane(self.dp_client, "clear_samples", sample_ids=ids, partition_id=partition)
        self._clear(owned_by(request), published=False)

    def _count(self, partition: str, keys: Sequence[str], column: str) -> int:
        """Count the rows that are there. Fewer than all is believed once reads row by row say the same.

        What follows from a row that is not there cannot be undone: a group is run, and its rows are put. A plane whose
        answers differ has not said how many there are: ``Contradiction``.
        """
        if not keys:
            return 0
        together = self._there(partition, keys, column)
        if together == len(keys):
            return together
        one_by_one = sum(self._there(partition, [key], column) or 0 for key in keys)
        if one_by_one == len(keys) or (together is not None and together != one_by_one):
            raise Contradiction(partition, together, one_by_one, len(keys))
        return one_by_one

    def _there(self, partition: str, keys: Sequence[str], column: str) -> int | None:
        """Return how many of the rows an answer holds; None where the plane says only that some are missing."""
        try:
            return StagingSource(self.dp_client, partition).count(keys, column)
        except Rejected as rejected:
            if rejected.code is not Code.MISSING_STAGING_ROW:
                raise RuntimeError(f"rows of {partition!r} have no column {column!r}: {rejected}") from rejected
            return 0 if len(keys) == 1 else None

    def _clear(self, keys: list[str], *, published: bool = True) -> None:
        if not keys:
            return
        partition = self.staging_partition
        try:
            call_plane(self.dp_client, "clear_samples", sample_ids=keys, partition_id=partition)
        except Exception as error:
            raise CleanupError(partition, keys, published) from error

    def _rebuilt(self, request: GroupRequest) -> FinalizedGroup:
        """Return the result of a group whose rows are published; ``Contradiction`` where they are not there."""
        ids = sample_ids(request)
        try:
            answer = StagingSource(self.dp_client, self.partition_id).read(ids, EVIDENCE)
        except Rejected as error:
            raise Contradiction(self.partition_id, None, len(ids), len(ids)) from error
        lengths = [int(row) for row in column_rows(answer.get(EVIDENCE[0]), EVIDENCE[0])]
        masks = column_rows(answer.get(EVIDENCE[1]), EVIDENCE[1])
        trained = [int(mask[:length].sum()) for mask, length in zip(masks, lengths, strict=True)]
        tags = self._tags(ids)
        versions = [int(tag["weight_version"]) for tag in tags or ()] or [request.fallback_weight_version]
        return FinalizedGroup(
            meta=batch_meta(
                partition_id=self.partition_id,
                task_name=TASK_NAME,
                sample_ids=ids,
                fields=None,
                sequence_lengths=lengths,
                extra_info={},
                tags=tags,
            ),
            group_min_wv=min(versions),
            group_max_wv=max(versions),
            staging_keys=owned_by(request) if self.deferred else [],
            canonical_output_tokens=sum(trained),
            valid_row_count=sum(count > 0 for count in trained),
            total_row_count=len(ids),
        )

    def _tagged(self, ids: Sequence[str]) -> bool:
        """Return whether no row that is there lacks the tags of a put, as far as the data plane can list them."""
        if not hasattr(self.dp_client, "tags"):
            return True
        listed: Mapping[str, Mapping[str, Any]] = self.dp_client.tags(self.partition_id)
        return all("weight_version" in listed[key] for key in ids if key in listed)

    def _tags(self, ids: Sequence[str]) -> list[dict[str, Any]] | None:
        """Return the rows' tags, where the data plane can list them."""
        if not hasattr(self.dp_client, "tags"):
            return None
        listed: Mapping[str, Mapping[str, Any]] = self.dp_client.tags(self.partition_id)
        return [dict(listed[key]) for key in ids]


def owned_by(request: GroupRequest) -> list[str]:
    """Return every staging key that the group's rollouts own (D14, D34), read off the receipts alone."""
    pairs = zip(request.rollout_ids, request.receipts, strict=True)
    return [key for rollout_id, receipt in pairs for key in owned_keys(rollout_id, receipt)]


def run(reassembler: RolloutReassembler, request: GroupRequest) -> FinalizedGroup:
    """Call ``finalize_group`` with the arguments of a request."""
    canonical, current = request.canonical_sample_ids, request.current_weight_version
    optional = {} if current is None else {"current_weight_version": current}
    return reassembler.finalize_group(
        request.group_id,
        list(request.rollout_ids),
        list(request.receipts),
        list(request.rewards),
        mask_sample=list(request.mask_sample),
        fallback_weight_version=request.fallback_weight_version,
        prompt_idx=request.prompt_idx,
        loss_multiplier=request.loss_multiplier,
        canonical_sample_ids=None if canonical is None else list(canonical),
        **optional,
    )
