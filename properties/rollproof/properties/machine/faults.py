"""A data plane that fails when it is told to: it refuses, times out, breaks off, or answers with what it does not hold.

It wraps a real one. A fault is armed for the n-th operation of a kind and strikes once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal

import torch
from attrs import define, field, frozen
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.spec.constants import TOPK_COLUMNS

Operation = Literal["get", "put", "clear"]
Row = dict[str, torch.Tensor]


class Crash(BaseException):
    """The finalizer's process dies here: nothing of it continues, no ``except Exception`` catches it."""


class Fault(StrEnum):
    """What goes wrong with one operation."""

    REFUSE = "refuse"
    """An error; nothing happened."""
    ODD_ERROR = "odd-error"
    """An error of a type by which other planes say that a row is missing; nothing happened."""
    TIME_OUT = "time-out"
    """It happened, and the answer is a TimeoutError."""
    CRASH_BEFORE = "crash-before"
    CRASH_AFTER = "crash-after"
    HALF = "half"
    """A put or clear of some of the rows, then an error."""
    CRASH_HALF = "crash-half"
    """A put or clear of some of the rows, then a crash."""
    MISS = "miss"
    """A read without one of the rows, although it is there."""
    REORDER = "reorder"
    DUPLICATE = "duplicate"
    """A read with one row twice: in addition, or in place of another."""
    TRUNCATE = "truncate"
    """A read with one vector cut by its last element."""
    FLIP = "flip"
    """A read with one bit of one column changed, of those that a digest covers: in others nobody can notice it."""
    EMPTY = "empty"
    """A read without any row, although all are there."""
    DENY = "deny"
    """``MissingRows``, although all rows are there."""
    CLAIM = "claim"
    """A bare ``KeyError`` with the key of a row that is there, once."""
    LOSE = "lose"
    """A read after which one of its rows is no longer there."""


ANYWHERE: Final = (Fault.REFUSE, Fault.ODD_ERROR, Fault.TIME_OUT, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
BREAKING_OFF: Final = (Fault.HALF, Fault.CRASH_HALF)
ABOUT_ROWS: Final = (Fault.MISS, Fault.EMPTY, Fault.DENY, Fault.CLAIM, Fault.DUPLICATE)
"""Lies about which rows there are: recovery's reads are told these, too, but not the same one twice."""
LYING: Final = (*ABOUT_ROWS, Fault.REORDER, Fault.TRUNCATE, Fault.FLIP, Fault.LOSE)
FAULTS: Final[dict[Operation, tuple[Fault, ...]]] = {
    "get": (*ANYWHERE, *LYING),
    "put": (*ANYWHERE, *BREAKING_OFF),
    "clear": (*ANYWHERE, *BREAKING_OFF),
}
"""What can go wrong with each operation."""


EVIDENCE_COLUMNS: Final = 2
"""A read of at most so many columns asks whether rows are there, or for lengths."""


def odd_error(choice: int) -> Exception:
    """Return an error that is a KeyError, a ValueError or a LookupError, and says nothing about rows."""
    errors: tuple[Exception, ...] = (
        ValueError("I/O operation on closed file"),
        KeyError("controller"),
        json.JSONDecodeError("Expecting value", "", 0),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        IndexError("list index out of range"),
        KeyError(choice),
    )
    return errors[choice % len(errors)]


@frozen
class Armed:
    """A fault that waits for the operation after ``skip`` others of its kind; ``choice`` selects what it affects."""

    operation: Operation
    skip: int
    fault: Fault
    choice: int


@define(eq=False)
class FaultyPlane:
    """``inner``, with faults. The memory of an answer is used again as soon as the next operation begins."""

    inner: Any
    lose: Callable[[list[str], str], None] | None = None
    """How storage loses rows; by default they are cleared."""
    armed: list[Armed] = field(factory=list)
    struck: list[Armed] = field(factory=list)
    """The faults that have struck since the last ``arm``."""
    raised: Exception | None = None
    """The last error that a fault raised."""
    intruder: Callable[[], None] | None = None
    """What happens once in the middle of the next removal."""
    _counts: dict[Operation, int] = field(factory=dict)
    _lied_about_rows: bool = False
    _lent: list[torch.Tensor] = field(factory=list)

    def arm(self, faults: list[Armed]) -> None:
        """Forget the faults that did not strike, and wait for these."""
        self.armed, self.struck, self.raised, self._counts = list(faults), [], None, {}
        self._lied_about_rows, self.intruder = False, None

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        """Read rows."""
        self._spoil()
        answer = self._read(sample_ids, partition_id, select_fields)
        for name in select_fields:
            column = answer.get(name, None)
            if isinstance(column, torch.Tensor):
                self._lent.append(column.values() if column.is_nested else column)
        return answer

    def _spoil(self) -> None:
        for lent in self._lent:
            lent.fill_(1)
        self._lent = []

    def _read(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        armed = self._strikes("get")

        def read() -> Any:
            return self.inner.get_samples(sample_ids, partition_id, select_fields)

        if armed is None:
            return read()
        if armed.fault in LYING and len(select_fields) <= EVIDENCE_COLUMNS:
            if armed.fault not in ABOUT_ROWS or self._lied_about_rows:
                return read()
            self._lied_about_rows = True
        if armed.fault not in LYING:
            return self._around(armed, read)
        if armed.fault is Fault.LOSE:
            answer = read()
            lost = [sample_ids[armed.choice % len(sample_ids)]]
            (self.inner.clear_samples if self.lose is None else self.lose)(lost, partition_id)
            return answer
        if armed.fault is Fault.DENY:
            raise MissingRows(partition_id, sample_ids)
        if armed.fault is Fault.CLAIM:
            self._claim(sample_ids[armed.choice % len(sample_ids)], partition_id, sample_ids, select_fields)
        if armed.fault is Fault.EMPTY:
            return TensorDict({}, batch_size=[0])
        return self._lied(armed, sample_ids, partition_id, select_fields)

    def put_samples(self, sample_ids: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> None:
        """Publish rows."""

        def put(count: int) -> None:
            rows = {name: column_rows(column)[:count] for name, column in fields.items()}
            scratch = MemoryDataPlane()
            for index, key in enumerate(sample_ids[:count]):
                scratch.put_samples([key], "", _one({name: row[index] for name, row in rows.items()}))
            some = scratch.get_samples(sample_ids[:count], "", list(rows))
            self.inner.put_samples(sample_ids[:count], partition_id, some, tags[:count])

        self._write("put", sample_ids, put, lambda: self.inner.put_samples(sample_ids, partition_id, fields, tags))

    def clear_samples(self, sample_ids: list[str], partition_id: str) -> None:
        """Remove rows."""

        def every() -> None:
            intruder, self.intruder = self.intruder, None
            if intruder is not None:
                self.inner.clear_samples(sample_ids[: len(sample_ids) // 2], partition_id)
                intruder()
            self.inner.clear_samples(sample_ids, partition_id)

        self._write(
            "clear", sample_ids, lambda count: self.inner.clear_samples(sample_ids[:count], partition_id), every
        )

    # ── striking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _strikes(self, operation: Operation) -> Armed | None:
        count = self._counts.get(operation, 0)
        self._counts[operation] = count + 1
        for armed in self.armed:
            if armed.operation == operation and armed.skip == count:
                self.struck.append(armed)
                return armed
        return None

    def _claim(self, key: str, partition_id: str, sample_ids: list[str], select_fields: list[str]) -> None:
        """Say that a row is missing. That is a fault only where all rows of the read are there."""
        try:
            there = self.inner.get_samples(sample_ids, partition_id, select_fields).batch_size[0]
        except MissingRows:
            there = 0
        if there < len(sample_ids):
            raise KeyError(key)
        self._fail(KeyError(key))

    def _fail(self, error: Exception) -> None:
        self.raised = error
        raise error

    def _around(self, armed: Armed, act: Callable[[], Any]) -> Any:
        """Raise an error or crash before or after an operation."""
        if armed.fault is Fault.REFUSE:
            self._fail(ConnectionError("injected refusal"))
        if armed.fault is Fault.ODD_ERROR:
            self._fail(odd_error(armed.choice))
        if armed.fault is Fault.CRASH_BEFORE:
            raise Crash
        act()
        if armed.fault is Fault.CRASH_AFTER:
            raise Crash
        return self._fail(TimeoutError("injected time-out"))

    def _write(
        self, operation: Operation, ids: list[str], some: Callable[[int], None], every: Callable[[], None]
    ) -> None:
        self._spoil()
        armed = self._strikes(operation)
        if armed is None:
            every()
        elif armed.fault not in BREAKING_OFF:
            self._around(armed, every)
        else:
            if count := armed.choice % max(1, len(ids)):
                some(count)
            if armed.fault is Fault.CRASH_HALF:
                raise Crash
            self._fail(ConnectionError("injected break-off"))

    def _lied(self, armed: Armed, keys: list[str], partition: str, columns: list[str]) -> Any:
        """Answer a read with rows that were changed on the way."""
        rows: list[Row] = []
        for key in keys:
            try:
                found = self.inner.get_samples([key], partition, columns)
            except MissingRows:
                continue
            rows.append({name: column_rows(column)[0] for name, column in found.items()})
        if rows:
            rows = changed(rows, armed)
        if not rows:
            return TensorDict({}, batch_size=[0])
        scratch = MemoryDataPlane()
        names = [f"{index}" for index in range(len(rows))]
        for name, row in zip(names, rows, strict=True):
            scratch.put_samples([name], "", _one(row))
        return scratch.get_samples(names, "", columns)


def _one(row: Row) -> TensorDict:
    return TensorDict({name: value[None] for name, value in row.items()}, batch_size=[1])


def changed(rows: list[Row], armed: Armed) -> list[Row]:
    """Return the rows of a read after a lie; ``armed.choice`` selects row, column and bit."""
    row = armed.choice % len(rows)
    rest = armed.choice // len(rows)
    match armed.fault:
        case Fault.MISS:
            return rows[:row] + rows[row + 1 :]
        case Fault.REORDER:
            return rows[row:][::-1] + rows[:row]
        case Fault.DUPLICATE:
            return [*rows, rows[row]] if rest % 2 else [rows[row], *rows[:row], *rows[row + 1 :]][: len(rows)]
    flips = armed.fault is Fault.FLIP
    names = sorted(name for name, value in rows[row].items() if (name not in TOPK_COLUMNS if flips else value.dim()))
    name = names[rest % len(names)]
    value = rows[row][name]
    if armed.fault is Fault.TRUNCATE:
        return [*rows[:row], {**rows[row], name: value[:-1]}, *rows[row + 1 :]]
    return [*rows[:row], {**rows[row], name: flipped(value, rest // len(names))}, *rows[row + 1 :]]


def flipped(value: torch.Tensor, bit: int) -> torch.Tensor:
    """Return a copy with one bit changed, counted through the bytes of the value; a bool is negated."""
    if not value.numel():
        return value
    if value.dtype is torch.bool:
        other = value.clone().reshape(-1)
        other[bit % len(other)] ^= True
        return other.reshape(value.shape)
    raw = value.contiguous().clone().reshape(-1).view(torch.uint8)
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    return raw.view(value.dtype).reshape(value.shape)
