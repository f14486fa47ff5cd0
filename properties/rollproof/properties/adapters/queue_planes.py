"""A reassembler over TransferQueue, on a local Ray.

TransferQueue has a property that no client can undo; over it, an implementation declares it beside its own deviations.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any, Final

from attrs import define, field
from hypothesis import HealthCheck, Phase, find, settings
from tensordict import TensorDictBase

from rollproof.impl.dataplane.transfer_queue import ColumnConflict, TransferQueueDataPlane
from rollproof.properties.adapters.protocol import AnswerClass, Deviation
from rollproof.properties.adapters.reassembler import ReassemblerAdapter
from rollproof.properties.errors import InputError
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.strategies.streams import media
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    Area,
    FinalizeGroups,
    FinalizeRollout,
    Request,
    RolloutAnswer,
)
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import PublishedRow, Put

TIMEOUT_S: Final = 60.0

EXAMPLES: Final = 16
"""Requests that are drawn for the one deviation of the queue."""


def on_queue(implementation: Any) -> Any:
    """Return the implementation over the queue. ``InputError`` where it reads from no data plane."""
    if not isinstance(implementation, ReassemblerAdapter):
        raise InputError(f"{implementation.name} does not read from a data plane: --data-plane does not apply")
    found: Any = implementation
    found.deviations = (*implementation.deviations, *forgotten())
    found.make_plane = QueuePartitions(TransferQueueDataPlane(TIMEOUT_S)).fresh
    return found


# ── what the queue forgets ──────────────────────────────────────────────────────────────────────────────────────────


def without_what_it_forgets(request: Request, expected: Answer) -> Iterator[AnswerClass]:
    """Yield answers in which rows in two dtypes lose columns, which rejects rollouts and does nothing else.

    The controller marks a put as done before it compares dtypes, and at the first column whose live rows have another
    one it stops: neither that column nor those after it are noted for the row. Where the rows for which they were
    noted are cleared, the columns are gone from the controller, although the storage unit has them. Which those are
    depends on the order in which the queue's threads reach them, so this is a class of answers.
    """
    if not isinstance(request, FinalizeRollout | FinalizeGroups) or not mixes_dtypes(request):
        return
    if isinstance(expected, Accepted):
        yield lambda actual: isinstance(actual, Accepted) and only_loses(expected.value, actual.value)


def only_loses(contract: Any, own: Any) -> bool:
    """Return whether an answer differs from the contract's in rollouts that are rejected, and in nothing else."""
    if isinstance(own, RolloutAnswer):
        return own.rollout is not None and not own.rollout.valid
    return all(
        step.failure == required.failure and only_rejects(required, step)
        for required, step in zip(contract, own, strict=True)
    )


def mixes_dtypes(request: FinalizeRollout | FinalizeGroups) -> bool:
    """Return whether one column is staged in several dtypes."""
    dtypes = defaultdict(set)
    for row in request.staging.rows.values():
        for name, value in row.items():
            dtypes[name].add(value.dtype)
    return any(len(found) > 1 for found in dtypes.values())


def only_rejects(contract: GroupOutcome, own: GroupOutcome) -> bool:
    """Return whether every row that was published is the contract's, or trains nothing."""
    required = rows_of(contract)
    return all(
        row == required.get(key) or not any(row.columns["sample_mask"].values()) for key, row in rows_of(own).items()
    )


def rows_of(outcome: GroupOutcome) -> Mapping[str, PublishedRow]:
    """Return the published rows by sample id."""
    puts = (effect for effect in outcome.effects if isinstance(effect, Put))
    return {key: row for put in puts for key, row in zip(put.sample_ids, put.rows, strict=True)}


@cache
def forgotten() -> tuple[Deviation, ...]:
    """Return the deviation of every implementation over the queue. Its examples are drawn, because they are long."""
    examples = groups_in_two_dtypes()
    return tuple(
        Deviation(
            "transfer-queue-forgets-columns",
            area,
            "7",
            "A row that another client put in another dtype than the live rows have loses columns once those are "
            "cleared: TransferQueue's controller stops at the mismatch. The rollout is rejected; our client refuses "
            "such a put.",
            without_what_it_forgets,
            examples,
        )
        for area in (Area.ROUTES, Area.MEDIA)
    )


def groups_in_two_dtypes() -> tuple[FinalizeGroups, ...]:
    """Draw the first media requests that train two groups, of rows that are staged in two dtypes.

    Several, because it depends on the order of rows and clears whether a row loses a column that it needs.
    """
    found: list[FinalizeGroups] = []

    def enough(request: Request) -> bool:
        if isinstance(request, FinalizeGroups) and mixes_dtypes(request) and len(found) < EXAMPLES:
            outcomes = getattr(answer(realize_request(request)), "value", ())
            if sum(bool(step.group and step.group.valid_row_count) for step in outcomes) > 1:
                found.append(request)
        return len(found) == EXAMPLES

    (groups,) = (stream.strategy for stream in media.streams(Area.MEDIA) if stream.name == "groups")
    unhurried = settings(max_examples=2000, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    find(groups, enough, settings=settings(unhurried, phases=[Phase.generate]), random=Random(0))
    return tuple(found)


# ── one queue for many requests ─────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class QueuePartitions:
    """Gives each request partitions of its own on one queue, and clears those of the one before."""

    queue: TransferQueueDataPlane
    _serials: Iterator[int] = field(factory=itertools.count, init=False)
    _last: OwnPartitions | None = field(default=None, init=False)

    def fresh(self) -> OwnPartitions:
        """Return an empty data plane; the last one is cleared and must no longer be used."""
        self.clear()
        self._last = OwnPartitions(self.queue, f"request {next(self._serials)}")
        return self._last

    def clear(self) -> None:
        """Remove what the last request left."""
        for partition in self._last.partitions if self._last else ():
            self.queue.clear_samples(None, partition)
        self._last = None


@define(eq=False)
class OwnPartitions:
    """A queue whose partitions' names have a prefix."""

    queue: TransferQueueDataPlane
    prefix: str
    partitions: set[str] = field(factory=set, init=False)

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDictBase | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Write rows, also those that our client refuses: a worker with another client would have staged them."""
        partition = self._own(partition_id)
        try:
            self.queue.put_samples(sample_ids, partition, fields, tags)
        except ColumnConflict:
            import transfer_queue

            transfer_queue.kv_batch_put(sample_ids, partition, fields, tags)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDictBase:
        """Read rows."""
        return self.queue.get_samples(sample_ids, self._own(partition_id), select_fields)

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Remove rows."""
        self.queue.clear_samples(sample_ids, self._own(partition_id))

    def _own(self, partition_id: str) -> str:
        partition = f"{self.prefix}/{partition_id}"
        self.partitions.add(partition)
        return partition
