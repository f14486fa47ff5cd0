"""The machine of generation cuts holds for our store, and finds each of the ways here to get it wrong."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from rollproof.impl import cuts
from rollproof.impl.cuts import CutStore
from rollproof.properties.machine.cut_machine import CutParts, check_cut_machine
from rollproof.properties.machine.faults import FAULTS


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Clears fail on purpose by the thousand; nobody reads that."""
    caplog.set_level(logging.ERROR, logger="rollproof.impl.cuts")


def test_machine_holds_for_ours():
    parts = CutParts()
    check_cut_machine(parts, runs=150)
    for what in ("acknowledged", "acknowledgement lost", "not acknowledged", "restored", "completed", "died in a cut"):
        assert parts.counts[what], what


@pytest.mark.deep
@pytest.mark.untraced  # tracing would double its minutes
@pytest.mark.parametrize("number", [7, 8])
def test_machine_holds_for_thousands_of_schedules(number):
    parts = CutParts()
    check_cut_machine(parts, runs=2500, number=number)
    struck = {name for name in parts.counts if name.split(": ")[0] in FAULTS}
    assert len(struck) >= 0.9 * sum(map(len, FAULTS.values())), struck
    for what in ("lost", "swapped", "repeated", "dropped", "died while completing", "refused: cut_chunk_missing"):
        assert parts.counts[what], what


# ── stores that get it wrong ────────────────────────────────────────────────────────────────────────────────────────


class AcknowledgesAFailedPut(CutStore):
    def _put(self, writes: Any) -> Any:
        super()._put(writes)


class LeavesFailedRows(CutStore):
    def _clear(self, keys: Any) -> int:
        return 0


class ClearsTheWholePartition(CutStore):
    def _clear(self, keys: Any) -> int:
        return super()._clear(self.dp_client.inner.inner.sample_ids("staging"))


class ClearsFirst(CutStore):
    def complete(self, generation: Any, model_call_id: str, *rest: Any, **more: Any) -> Any:
        self.abandon(generation)
        return super().complete(generation, model_call_id, *rest, **more)


class ForgetsWhatItCouldNotPut(CutStore):
    def cut(self, generation: Any, order: Any, media: Any = None) -> Any:
        answer = super().cut(generation, order, media)
        if isinstance(answer, cuts.DurableFailure):
            del generation.token_ids[generation._durable :]
            del generation.log_probs[generation._durable :]
        return answer


class PutsEverythingTwice(CutStore):
    def cut(self, generation: Any, order: Any, media: Any = None) -> Any:
        answer = super().cut(generation, order, media)
        if generation.keys:
            generation._durable -= 1
            generation._versions.insert(0, (generation._durable + 1, 0))
        return answer


class RestoresOneTokenLess(CutStore):
    def restore(self, *arguments: Any, **more: Any) -> Any:
        restored = super().restore(*arguments, **more)
        restored.generation.token_ids.pop()
        restored.generation.log_probs.pop()
        return restored


BROKEN = (
    AcknowledgesAFailedPut,
    LeavesFailedRows,
    ClearsTheWholePartition,
    ClearsFirst,
    ForgetsWhatItCouldNotPut,
    PutsEverythingTwice,
    RestoresOneTokenLess,
)


@pytest.mark.parametrize("store", BROKEN)
def test_machine_finds_a_store_that_gets_it_wrong(store):
    with pytest.raises(AssertionError):
        check_cut_machine(CutParts(store), runs=400)


def test_machine_finds_a_restore_that_does_not_compare_digests(monkeypatch):
    monkeypatch.setattr(cuts, "check_digests", lambda *_: None)
    with pytest.raises(AssertionError):
        check_cut_machine(CutParts(), runs=600)
