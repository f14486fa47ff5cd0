"""The state machine holds for our finalizer and recovery, and finds each of three ways to get them wrong."""

from __future__ import annotations

import pytest

from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.recovery import Recovery, run
from rollproof.properties.machine.faults import FAULTS
from rollproof.properties.machine.machine import Parts, check_machine
from rollproof.properties.machine.watch import Violation


def test_it_holds():
    parts = Parts()
    check_machine(parts, runs=120, steps=12)
    struck = {name for name in parts.counts if ": " in name}
    assert len(struck) >= 0.7 * sum(map(len, FAULTS.values())), struck
    for change in ("staged to done", "staged to unknown", "unknown to done", "unknown to gone", "unknown to unknown"):
        assert parts.counts[change], change


class LeavesTheLastKey(RolloutReassembler):
    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        super()._clear_staging(keys[:-1], published=published)


class ClearsEverybodys(RolloutReassembler):
    def _clear_staging(self, keys: list[str], *, published: bool = True) -> None:
        super()._clear_staging([*keys, *self._dp_client.inner.inner.sample_ids("staging")], published=published)


class RetriesBlindly(Recovery):
    def recover(self, request, reassembler):
        return run(reassembler, request)


class SwallowsAPartialMiss(Recovery):
    """Takes some of the rows for all of them."""

    def _count(self, partition, keys, columns):
        return len(keys) if super()._count(partition, keys, columns) else 0

    def _rebuilt(self, request):
        return None


BROKEN = {
    "leaves a key": (Parts(reassembler=LeavesTheLastKey), AssertionError, "still staged"),
    "clears everybody's keys": (Parts(reassembler=ClearsEverybodys), Violation, "clears rows of others"),
    "retries blindly": (Parts(recovery=RetriesBlindly), Violation, "published again with other bytes"),
    "swallows a partial miss": (Parts(recovery=SwallowsAPartialMiss), AssertionError, "without|clears its staging"),
}


@pytest.mark.parametrize("fault", BROKEN, ids=lambda name: name.replace(" ", "-"))
def test_it_finds(fault):
    parts, kind, message = BROKEN[fault]
    with pytest.raises(kind, match=message):
        check_machine(parts, runs=400, steps=12)
