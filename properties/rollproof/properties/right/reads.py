"""Right variants that read staged rows otherwise: in fewer reads, other columns, another order (decision D15)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final

from attrs import define, field, frozen

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.dataplane.misses import claim_of
from rollproof.impl.group import argument_error
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staging import call_plane
from rollproof.properties.right.variant import Right
from rollproof.spec.constants import MEDIA_TENSOR_COLUMNS
from rollproof.spec.records import GroupRequest

# ── knowing what will be read ───────────────────────────────────────────────────────────────────────────────────────


@frozen
class Read:
    """One batched read."""

    keys: tuple[str, ...]
    partition: str
    columns: tuple[str, ...]


class _Wanted(BaseException):
    """Raised in place of a read: what was to be read."""

    def __init__(self, read: Read) -> None:
        self.read = read


@define
class Ahead:
    """A client whose reads may have been made before, in another way. Writes are the inner client's."""

    inner: Any
    probing: bool = False
    """Whether a read raises ``_Wanted`` instead."""
    known: dict[Read, Any] = field(factory=dict)
    """Answers by read, or the error that the plane raised in place of one."""
    pixels: list[tuple[frozenset[str], MemoryDataPlane]] = field(factory=list)
    """Media that are known already: for which keys, and a local plane that holds them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        """Answer from what is known already, else as the inner client does."""
        read = Read(tuple(sample_ids), partition_id, tuple(select_fields))
        if self.probing:
            raise _Wanted(read)
        answer = self.known.get(read)
        if answer is None and set(read.columns) <= set(MEDIA_TENSOR_COLUMNS):
            for keys, local in self.pixels:
                if keys >= set(read.keys):
                    return local.get_samples(list(read.keys), read.partition, list(read.columns))
        if answer is None:
            answer = self.fetch(read)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fetch(self, read: Read) -> Any:
        """Make a read."""
        return call_plane(
            self.inner,
            "get_samples",
            sample_ids=list(read.keys),
            partition_id=read.partition,
            select_fields=list(read.columns),
        )

    def keep(self, read: Read) -> None:
        """Make a read, and keep its answer or the plane's word that something is not there."""
        try:
            self.known[read] = self.fetch(read)
        except (KeyError, ValueError) as error:
            self.known[read] = error


Reader = Callable[[Ahead, Sequence[Read]], None]
"""Makes the first reads of a group's rollouts in its own way, and keeps their answers."""


def reading(reader: Reader) -> type[RolloutReassembler]:
    """A reassembler that makes its rollouts' base reads ahead, by ``reader``."""

    class ReadingAhead(RolloutReassembler):
        def __init__(self, dp_client: Any, **arguments: Any) -> None:
            self.ahead = Ahead(dp_client)
            super().__init__(self.ahead, **arguments)

        def first_read(self, rollout_id: str, receipt: Any, reward: Any) -> Read | None:
            """Return the first read that finalizing a rollout needs; None for one that is rejected before it."""
            self.ahead.probing = True
            try:
                super().finalize_rollout(rollout_id, receipt, reward=reward)
            except _Wanted as wanted:
                return wanted.read
            finally:
                self.ahead.probing = False
            return None

        def read(self, rollouts: Sequence[tuple[str, Any, Any]]) -> None:
            """Make the first reads of rollouts given by id, receipt and reward."""
            self.ahead.known.clear()
            self.ahead.pixels.clear()
            firsts = [self.first_read(*rollout) for rollout in rollouts]
            reader(self.ahead, list(dict.fromkeys(first for first in firsts if first is not None)))

        def finalize_rollout(self, rollout_id: str, receipt: Any, *, reward: Any) -> Any:
            """Read, then finalize."""
            self.read([(rollout_id, receipt, reward)])
            return super().finalize_rollout(rollout_id, receipt, reward=reward)

        def finalize_group(self, group_id: str, rollout_ids: Any, receipts: Any, rewards: Any, **named: Any) -> Any:
            """Read, then finalize; contradictory arguments read nothing."""
            canonical = named.get("canonical_sample_ids")
            request = GroupRequest(
                group_id,
                tuple(rollout_ids),
                tuple(receipts),
                tuple(rewards),
                tuple(named["mask_sample"]),
                fallback_weight_version=named["fallback_weight_version"],
                loss_multiplier=named.get("loss_multiplier", 1.0),
                canonical_sample_ids=None if canonical is None else tuple(canonical),
                current_weight_version=named.get("current_weight_version"),
            )
            if argument_error(request) is None:
                self.read(list(zip(rollout_ids, receipts, rewards, strict=True)))
            return super().finalize_group(group_id, rollout_ids, receipts, rewards, **named)

    return ReadingAhead


# ── readers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def whole_group(ahead: Ahead, firsts: Sequence[Read]) -> None:
    """One read for all; where it misses something, each rollout reads for itself."""
    if len(firsts) < 2:
        return
    keys = tuple(dict.fromkeys(key for read in firsts for key in read.keys))
    every = Read(keys, firsts[0].partition, firsts[0].columns)
    try:
        answer = ahead.fetch(every)
    except Exception as error:
        if claim_of(error, every.keys, every.columns) is None:
            raise
        return
    if answer.batch_size[0] == len(keys) and set(every.columns) <= set(answer.keys()):
        local = MemoryDataPlane()
        local.put_samples(list(keys), every.partition, answer)
        for read in firsts:
            ahead.known[read] = local.get_samples(list(read.keys), read.partition, list(read.columns))


def in_reverse(ahead: Ahead, firsts: Sequence[Read]) -> None:
    """The last rollout's rows are read first."""
    for read in reversed(firsts):
        ahead.keep(read)


def side_by_side(ahead: Ahead, firsts: Sequence[Read]) -> None:
    """Each rollout's rows are read on a thread, one starting as the one before it has ended."""
    with ThreadPoolExecutor(1) as pool:
        for future in [pool.submit(copy_context().run, ahead.keep, read) for read in firsts]:
            future.result()


def with_media(ahead: Ahead, firsts: Sequence[Read]) -> None:
    """Pixels are read with the base columns, where the partition has them."""
    for read in firsts:
        columns = read.columns
        if "media_present" not in columns:
            continue
        with_pixels = (*columns, *MEDIA_TENSOR_COLUMNS)
        try:
            answer = ahead.fetch(Read(read.keys, read.partition, with_pixels))
        except Exception as error:
            if claim_of(error, read.keys, with_pixels) is None:
                raise
            ahead.keep(read)
            continue
        ahead.known[read] = answer
        if answer.batch_size[0] == len(read.keys) and set(MEDIA_TENSOR_COLUMNS) <= set(answer.keys()):
            local = MemoryDataPlane()
            local.put_samples(list(read.keys), read.partition, answer.select(*MEDIA_TENSOR_COLUMNS))
            ahead.pixels.append((frozenset(read.keys), local))


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def selecting(change: Callable[[list[str]], list[str]]) -> type[RolloutReassembler]:
    """A reassembler that asks for other columns, or for the same in another order."""

    class Selecting(RolloutReassembler):
        def __init__(self, dp_client: Any, **arguments: Any) -> None:
            super().__init__(Selector(dp_client, change), **arguments)

    return Selecting


@frozen
class Selector:
    """A client that changes the columns of every read."""

    inner: Any
    change: Callable[[list[str]], list[str]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get_samples(self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> Any:
        """Read, with other columns."""
        arguments = {"sample_ids": list(sample_ids), "partition_id": partition_id}
        return call_plane(self.inner, "get_samples", **arguments, select_fields=self.change(list(select_fields)))


RIGHT: Final = (
    Right(
        "whole-group-read",
        "One read of the base columns for the whole group, split where it misses something.",
        reading(whole_group),
        "NVIDIA-NeMo/RL 4010, 4072",
    ),
    Right("reads-in-reverse", "The last rollout's rows are read first.", reading(in_reverse)),
    Right("reads-on-a-thread", "Rows are read on a thread of the reassembler's own.", reading(side_by_side)),
    Right("pixels-with-base-columns", "Pixels are read with the base columns.", reading(with_media)),
    Right(
        "columns-in-another-order", "The columns of a read are named in reverse.", selecting(lambda names: names[::-1])
    ),
)
