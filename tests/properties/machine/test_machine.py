"""The state machine holds for our finalizer and recovery, and finds each of the ways here to get them wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from planted import SwallowsErrors

from rollproof.impl import reassembler as reassembler_module
from rollproof.impl import recovery as recovery_module
from rollproof.impl import staged
from rollproof.impl.columns import Ragged
from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.impl.recovery import Recovery, owned_by, run
from rollproof.properties.machine.faults import FAULTS
from rollproof.properties.machine.machine import Parts, check_each_fault, check_machine
from rollproof.properties.machine.watch import Violation


def test_each_fault_and_each_lie_after_it_costs_ours_nothing():
    parts = Parts()
    check_each_fault(parts)
    struck = {name for name in parts.counts if ": " in name}
    assert len(struck) == sum(map(len, FAULTS.values())), struck


def test_machine_holds_for_ours():
    parts = Parts()
    check_machine(parts, runs=80, steps=12)
    struck = {name for name in parts.counts if ": " in name}
    assert len(struck) >= 0.7 * sum(map(len, FAULTS.values())), struck
    for change in ("staged to done", "staged to unknown", "unknown to done", "unknown to gone", "unknown to unknown"):
        assert parts.counts[change], change


@pytest.mark.deep
@pytest.mark.untraced  # tracing would double its minutes
@pytest.mark.parametrize("number", [7, 8])
def test_machine_holds_for_thousands_of_schedules(number):
    parts = Parts()
    check_machine(parts, runs=2500, steps=15, number=number)
    struck = {name for name in parts.counts if ": " in name}
    assert len(struck) == sum(map(len, FAULTS.values())), struck


# ── reassemblers that get it wrong ──────────────────────────────────────────────────────────────────────────────────


class LeavesTheLastKey(RolloutReassembler):
    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        super()._clear_staging(keys[:-1], published=published)


class ClearsEverybodys(RolloutReassembler):
    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        super()._clear_staging([*keys, *self._dp_client.inner.inner.sample_ids("staging")], published=published)


class ClearsFirst(RolloutReassembler):
    def _put(self, ids: list[str], rows: Any) -> None:
        super()._clear_staging(self._dp_client.inner.acting.owned and sorted(self._dp_client.inner.acting.owned))
        super()._put(ids, rows)


class SwallowsAFailedPut(RolloutReassembler):
    def _put(self, ids: list[str], rows: Any) -> None:
        try:
            super()._put(ids, rows)
        except PublishError:
            return


class SaysPublishedOfAFailedPut(RolloutReassembler):
    def _put(self, ids: list[str], rows: Any) -> None:
        try:
            super()._put(ids, rows)
        except PublishError as error:
            raise CleanupError("staging", ids) from error.__cause__


class SwallowsAFailedClear(RolloutReassembler):
    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        try:
            super()._clear_staging(keys, published=published)
        except CleanupError:
            return


class PutsRowByRow(RolloutReassembler):
    """And gives up silently at the first row that fails."""

    def _put(self, ids: list[str], rows: Any) -> None:
        for index, key in enumerate(ids):
            one = type(rows)(rows.fields[index : index + 1], rows.tags[index : index + 1], rows.lengths)
            try:
                super()._put([key], one)
            except PublishError:
                return


# ── recoveries that get it wrong ────────────────────────────────────────────────────────────────────────────────────


class RetriesBlindly(Recovery):
    def recover(self, request, reassembler):
        return run(reassembler, request)


class SwallowsAPartialMiss(Recovery):
    """Takes some of the rows for all of them."""

    def _count(self, partition, keys, column):
        return len(keys) if super()._count(partition, keys, column) else 0

    def _rebuilt(self, request):
        return None


class TrustsOneRead(Recovery):
    """Looks row by row only where the plane does not say how many there are."""

    def _count(self, partition, keys, column):
        there = self._there(partition, keys, column) if keys else 0
        return super()._count(partition, keys, column) if there is None else there


class TakesOutagesForNoRows(Recovery):
    def _count(self, partition, keys, column):
        try:
            return super()._count(partition, keys, column)
        except (KeyError, ValueError):
            return 0


class ClearsBeforeItLooks(Recovery):
    def recover(self, request, reassembler):
        self._clear(owned_by(request))
        return super().recover(request, reassembler)


class LeavesStaging(Recovery):
    def _clear(self, keys, *, published=True):
        if not published:
            super()._clear(keys, published=published)


# ── and both, without something that they rely on ───────────────────────────────────────────────────────────────────


@contextmanager
def without_copies() -> Iterator[None]:
    """Token columns are views of the data plane's answer."""

    def view(answer: Any, name: str, dtype: Any) -> Ragged:
        column = answer.get(name)
        return Ragged(column.values().numpy(), np.asarray(column.offsets()))

    kept, staged.read_ragged = staged.read_ragged, view
    try:
        yield
    finally:
        staged.read_ragged = kept


@contextmanager
def without_a_register() -> Iterator[None]:
    """Nobody notes which groups are being finalized."""
    modules: tuple[Any, ...] = (reassembler_module, recovery_module)
    kept = [module.acting_on for module in modules]
    for module in modules:
        module.acting_on = lambda *_: nullcontext()
    try:
        yield
    finally:
        for module, function in zip(modules, kept, strict=True):
            module.acting_on = function


BROKEN: dict[str, tuple[Parts, AbstractContextManager[None]]] = {
    "leaves a key": (Parts(reassembler=LeavesTheLastKey), nullcontext()),
    "clears everybody's keys": (Parts(reassembler=ClearsEverybodys), nullcontext()),
    "clears before its put": (Parts(reassembler=ClearsFirst), nullcontext()),
    "swallows a failed put": (Parts(reassembler=SwallowsAFailedPut), nullcontext()),
    "says published of a failed put": (Parts(reassembler=SaysPublishedOfAFailedPut), nullcontext()),
    "swallows a failed clear": (Parts(reassembler=SwallowsAFailedClear), nullcontext()),
    "puts row by row": (Parts(reassembler=PutsRowByRow), nullcontext()),
    "takes ValueError for a miss": (Parts(reassembler=SwallowsErrors), nullcontext()),
    "retries blindly": (Parts(recovery=RetriesBlindly), nullcontext()),
    "swallows a partial miss": (Parts(recovery=SwallowsAPartialMiss), nullcontext()),
    "trusts one read": (Parts(recovery=TrustsOneRead), nullcontext()),
    "takes an outage for no rows": (Parts(recovery=TakesOutagesForNoRows), nullcontext()),
    "clears before it looks": (Parts(recovery=ClearsBeforeItLooks), nullcontext()),
    "leaves staging": (Parts(recovery=LeavesStaging), nullcontext()),
    "copies nothing": (Parts(), without_copies()),
    "lets two finalizers at one group": (Parts(), without_a_register()),
}


RARE = ("trusts one read", "takes ValueError for a miss", "takes an outage for no rows")
"""Seen by few drawn schedules, and by those that make each fault once."""


SLOW = ("swallows a failed put", "retries blindly", "swallows a partial miss", "trusts one read", "leaves staging")
"""Found only after seconds of drawing, like others of their class, which are found at once."""


def planted(fault: str) -> Any:
    """Return a fault as a parameter; slow ones are deep."""
    return pytest.param(fault, id=fault.replace(" ", "-"), marks=[pytest.mark.deep] * (fault in SLOW))


@pytest.mark.parametrize("fault", map(planted, BROKEN))
def test_machine_finds_planted_faults(fault):
    parts, broken = BROKEN[fault]
    with broken, pytest.raises((AssertionError, Violation)):
        check_each_fault(parts) if fault in RARE else check_machine(parts, runs=400, steps=12)
