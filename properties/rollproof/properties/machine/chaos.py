"""Data planes that kill the process they are in, or fail at random: the tests of a real finalizer."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from rollproof.properties.machine.faults import FAULTS, Armed, Crash, Fault, FaultyPlane, Operation


@define(eq=False)
class DyingPlane:
    """Ends the process at its first ``operation``: before it, half-way or after it, as the ``fault`` says.

    The file ``marker`` then holds the process's id, and no process dies any more. With ``hangs`` it waits there
    forever, for somebody to kill it.
    """

    inner: Any
    operation: Operation
    marker: str
    hangs: bool = False
    fault: Fault = Fault.CRASH_BEFORE

    def _act(self, operation: Operation, act: Callable[[Any], Any]) -> Any:
        if operation != self.operation or Path(self.marker).exists():
            return act(self.inner)
        faulty = FaultyPlane(self.inner)
        faulty.arm([Armed(operation, 0, self.fault, 1)])
        try:
            return act(faulty)
        except Crash:
            written = Path(f"{self.marker}.{os.getpid()}")
            written.write_text(f"{os.getpid()}")
            written.replace(self.marker)
        while self.hangs:
            time.sleep(1)
        os._exit(1)

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows."""
        return self._act("get", lambda plane: plane.get_samples(sample_ids, partition_id, select_fields))

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows."""
        self._act("put", lambda plane: plane.put_samples(sample_ids, partition_id, fields, tags))

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows."""
        self._act("clear", lambda plane: plane.clear_samples(sample_ids, partition_id))

    def tags(self, partition_id: str) -> Any:
        """Return the tags of a partition's rows."""
        return self.inner.tags(partition_id)


@define(eq=False)
class JournalPlane:
    """Adds a line to ``file`` for every put that begins: with the put's partition and how many rows it has."""

    inner: Any
    file: str

    def __reduce__(self) -> tuple[type[JournalPlane], tuple[Any, str]]:
        return type(self), (self.inner, self.file)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows."""
        with Path(self.file).open("a", encoding="utf-8") as file:
            file.write(f"{len(sample_ids)} into {partition_id}\n")
        self.inner.put_samples(sample_ids, partition_id, fields, tags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


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
        """Read rows."""
        return self._weathered("get", lambda: self._faulty.get_samples(sample_ids, partition_id, select_fields))

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Write rows."""
        self._weathered("put", lambda: self._faulty.put_samples(sample_ids, partition_id, fields, tags))

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows."""
        self._weathered("clear", lambda: self._faulty.clear_samples(sample_ids, partition_id))

    def tags(self, partition_id: str) -> Any:
        """Return the tags of a partition's rows."""
        return self.inner.tags(partition_id)
