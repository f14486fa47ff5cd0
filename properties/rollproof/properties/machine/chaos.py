"""Data planes that kill the process they are in, or fail at random: what a real finalizer is put through."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from rollproof.properties.machine.faults import FAULTS, Armed, Crash, FaultyPlane, Operation


@define(eq=False)
class DyingPlane:
    """Ends the process before its first ``operation``; the file ``marker`` says that it has done so already.

    With ``hangs`` it waits there without end.
    """

    inner: Any
    operation: Operation
    marker: str
    hangs: bool = False

    def _die(self, operation: Operation) -> None:
        if operation == self.operation and not Path(self.marker).exists():
            Path(self.marker).touch()
            while self.hangs:
                time.sleep(1)
            os._exit(1)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """A read."""
        self._die("get")
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """A write."""
        self._die("put")
        self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """A removal."""
        self._die("clear")
        self.inner.clear_samples(sample_ids, partition_id)

    def tags(self, partition_id: str) -> Any:
        """The tags of a partition's rows."""
        return self.inner.tags(partition_id)


@define(eq=False)
class StormyPlane:
    """Each operation fails with probability ``rate``, in any of the ways of ``FAULTS``; a crash ends the process."""

    inner: Any
    rate: float
    seed: int | None = None
    _faulty: FaultyPlane = field(init=False)
    _random: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._faulty, self._random = FaultyPlane(self.inner), random.Random(self.seed)

    def __reduce__(self) -> tuple[type[StormyPlane], tuple[Any, float, int | None]]:
        return type(self), (self.inner, self.rate, self.seed)

    def _weathered(self, operation: Operation, act: Callable[[], Any]) -> Any:
        armed = []
        if self._random.random() < self.rate:
            fault = self._random.choice(FAULTS[operation])
            armed = [Armed(operation, 0, fault, self._random.randrange(2**12))]
        self._faulty.arm(armed)
        try:
            return act()
        except Crash:
            os._exit(1)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """A read."""
        return self._weathered("get", lambda: self._faulty.get_samples(sample_ids, partition_id, select_fields))

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """A write."""
        self._weathered("put", lambda: self._faulty.put_samples(sample_ids, partition_id, fields, tags))

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """A removal."""
        self._weathered("clear", lambda: self._faulty.clear_samples(sample_ids, partition_id))

    def tags(self, partition_id: str) -> Any:
        """The tags of a partition's rows."""
        return self.inner.tags(partition_id)
