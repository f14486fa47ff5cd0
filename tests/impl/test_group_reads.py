"""One read, or two, for the base columns of a whole group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve
from groups import MODES, OPTIONS, REWARDS, staged_group
from hypothesis import Phase, given, settings
from tensordict import TensorDict

from rollproof.impl.dataplane import MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.group_reads import READ_ALONE
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours, OursByGroup
from rollproof.properties.adapters.recording import RecordingPlane
from rollproof.properties.gate.streams import request_streams
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer, answer_to
from rollproof.spec.judge.requests import Accepted, Area, FinalizeGroups, GroupStep
from rollproof.spec.judge.staging import Faults, OnMiss, Staging
from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import Get
from rollproof.spec.records import GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Rejected
from rollproof.spec.staged import decode_row


class Counting(MemoryDataPlane):
    """A data plane that remembers what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[list[str], list[str]]] = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.reads.append((list(sample_ids), list(select_fields)))
        return super().get_samples(sample_ids, partition_id, select_fields)

    @property
    def base_reads(self) -> list[list[str]]:
        return [keys for keys, columns in self.reads if "digest_bytes" in columns]


@pytest.mark.parametrize("mode", MODES)
def test_a_group_without_a_fault_is_one_base_read(make, mode):
    plane = Counting()
    rollout_ids, receipts = staged_group(make, plane, media=True)
    finalizer = make.reassembler(plane, capture_media=True, reads="group", **MODES[mode])
    group = finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS)
    assert group.valid_row_count == 2
    assert plane.base_reads == [["g_g0/c0", "g_g0/c1", "g_g2/c0", "g_g2/c1"]]


WIDE = OPTIONS | {"mask_sample": [True] * 4}
IDS = [f"g_g{index}" for index in range(4)]


@pytest.fixture
def rollouts(make) -> list[Any]:
    return [make.two_calls(rollout_id) for rollout_id in IDS]


@pytest.mark.parametrize("on_miss", OnMiss)
def test_a_lost_row_costs_its_own_rollout_and_one_more_read(make, rollouts, on_miss):
    plane = make.plane_of(*rollouts)
    plane.clear_samples(["g_g1/c1"], "staging")
    recording = RecordingPlane(plane, on_miss, held=set(plane.sample_ids("staging")))
    receipts = [make.receipt_of(calls) for calls in rollouts]
    group = make.reassembler(recording, reads="group").finalize_group("g", IDS, receipts, [1.0] * 4, **WIDE)
    assert group.valid_row_count == 3
    assert group.metrics["finalize/capture_failure_reason_missing_staging_row_count"] == 1.0
    wanted = [f"{rollout_id}/{call}" for rollout_id in IDS for call in ("c0", "c1")]
    there = [key for key in wanted if key != "g_g1/c1"]
    assert [list(effect.keys) for effect in recording.effects if isinstance(effect, Get)] == [wanted, there]


class Erring(Counting):
    """A data plane that raises ``MissingRows`` for any miss, about the rows that ``named`` chooses."""

    def __init__(self, named: Callable[[list[str], list[str]], list[str]]) -> None:
        super().__init__()
        self.named = named

    def get_samples(self, sample_ids, partition_id, select_fields):
        lost = [key for key in sample_ids if key not in self.sample_ids(partition_id)]
        if lost:
            self.reads.append((list(sample_ids), list(select_fields)))
            raise MissingRows(partition_id, self.named(lost, sample_ids))
        return super().get_samples(sample_ids, partition_id, select_fields)


@pytest.mark.parametrize(
    ("named", "reads"),
    [
        (lambda lost, wanted: lost, 2),
        (lambda lost, wanted: lost[:1], 2 + len(IDS)),
        (lambda lost, wanted: wanted, 1 + len(IDS)),
        (lambda lost, wanted: [], 1 + len(IDS)),
        (lambda lost, wanted: ["another/row"], 1 + len(IDS)),
    ],
    ids=["lost", "one of the lost", "all", "none", "another's"],
)
def test_an_error_is_believed_as_far_as_a_second_read_confirms_it(make, rollouts, named, reads):
    plane = Erring(named)
    for calls in rollouts:
        make.put_rows(plane, make.rows_of(calls))
    plane.clear_samples(["g_g1/c1", "g_g3/c0"], "staging")
    receipts = [make.receipt_of(calls) for calls in rollouts]
    group = make.reassembler(plane, reads="group").finalize_group("g", IDS, receipts, [1.0] * 4, **WIDE)
    assert group.valid_row_count == 2
    assert group.metrics["finalize/capture_failure_reason_missing_staging_row_count"] == 2.0
    assert len(plane.base_reads) == reads


@pytest.mark.parametrize("claimed", ["g_g1/c1", "g_g2/c0", "another/row"])
def test_rows_that_lie_about_their_identity_are_not_believed(make, rollouts, claimed):
    """One row is lost, and another says that it is that one, a third, or nobody's: each rollout is then read alone."""
    plane = Counting()
    for calls in rollouts:
        make.put_rows(plane, make.rows_of(calls))
    plane.clear_samples(["g_g1/c1"], "staging")
    names = dict(zip(("rollout_id_utf8", "model_call_id_utf8"), claimed.split("/"), strict=True))
    lies = {name: torch.tensor([list(text.encode())], dtype=torch.uint8) for name, text in names.items()}
    plane.put_samples(["g_g3/c0"], "staging", TensorDict(lies, batch_size=[1]))
    receipts = [make.receipt_of(calls) for calls in rollouts]
    found = make.reassembler(plane, reads="group").finalize_group("g", IDS, receipts, [1.0] * 4, **WIDE)
    assert found.valid_row_count == 2
    assert found.metrics["finalize/capture_failure_reason_missing_staging_row_count"] == 1.0
    assert found.metrics["finalize/capture_failure_reason_staging_key_mismatch_count"] == 1.0


def test_a_damaged_row_costs_its_own_rollout(make):
    rollouts = [make.two_calls(f"g_g{index}") for index in range(3)]
    plane = Counting()
    for calls in rollouts:
        make.put_rows(plane, make.rows_of(calls))
    plane.put_samples(["g_g1/c0"], "staging", TensorDict({"prev_len": torch.tensor([1.5])}, batch_size=[1]))
    finalizer = make.reassembler(plane, reads="group")
    receipts = [make.receipt_of(calls) for calls in rollouts]
    arguments = OPTIONS | {"mask_sample": [True] * 3}
    group = finalizer.finalize_group("g", [f"g_g{index}" for index in range(3)], receipts, [1.0] * 3, **arguments)
    assert group.valid_row_count == 2
    assert group.metrics["finalize/capture_failure_reason_invalid_staging_row_count"] == 1.0
    assert sum(key == "g_g1/c0" for keys in plane.base_reads for key in keys) <= 2


def test_rows_of_a_receipt_that_is_rejected_are_not_read(make):
    plane = Counting()
    rollouts = [make.two_calls(f"g_g{index}") for index in range(2)]
    for calls in rollouts:
        make.put_rows(plane, make.rows_of(calls))
    receipts = [make.receipt_of(rollouts[0]), make.receipt_of(rollouts[1], capture_poisoned=True)]
    arguments = OPTIONS | {"mask_sample": [True] * 2}
    finalizer = make.reassembler(plane, reads="group")
    assert finalizer.finalize_group("g", ["g_g0", "g_g1"], receipts, [1.0] * 2, **arguments).valid_row_count == 1
    assert plane.base_reads == [["g_g0/c0", "g_g0/c1"]]


def test_reads_is_one_of_two_words(make):
    with pytest.raises(ValueError, match="reads: got 'all', expected 'rollout' or 'group'"):
        make.reassembler(MemoryDataPlane(), reads="all")


@pytest.mark.parametrize("examples", [1, pytest.param(12, marks=pytest.mark.deep)])
@pytest.mark.parametrize("area", [Area.GROUP, Area.ROUTES, Area.MEDIA])
def test_reads_by_group_hold_what_reads_by_rollout_hold(area, examples):
    """The same rows on every request of the streams; a fault of a read that was never made counts as none."""
    compared = published = counted = 0
    for stream in request_streams(area):
        for request in drawn(stream.strategy, examples):
            if not isinstance(request, FinalizeGroups):
                continue
            found = ask(OursByGroup(), request)
            required = answer_to(request, found)
            if isinstance(found, Accepted) and tells_what_it_holds(request, found.value[0], required.value[0]):
                assert sum(is_base_read(effect) for effect in found.value[0].effects) <= 2
                counted += 1
            wrong = {item.id: item.check(request, required, found) for item in CATALOGUE if item.covers(request)}
            assert {name: complaint for name, complaint in wrong.items() if complaint} == {}
            compared += 1
            if required == answer(request):
                alone = ask(Ours(), request)
                assert [outcome.rows for outcome in found.value] == [outcome.rows for outcome in alone.value]
                published += any(outcome.rows for outcome in found.value)
    assert compared > 6 * examples
    assert published > 3 * examples
    assert counted > 3 * examples


def tells_what_it_holds(request: FinalizeGroups, outcome: GroupOutcome, required: GroupOutcome) -> bool:
    """Return whether the first group can do with two base reads.

    Every staged row says whose it is, a read that misses some rows is answered with the others, and no rollout is
    rejected for what its rows hold.
    """
    staging, config = request.staging, request.config
    for key, row in staging.rows.items():
        try:
            if decode_row(row, media=config.capture_media, vocab_size=config.vocab_size).key != key:
                return False
        except Rejected:
            return False
    wanted = next((effect.keys for effect in outcome.effects if is_base_read(effect)), ())
    answers = staging.on_miss is OnMiss.EMPTY or (staging.on_miss is OnMiss.FEWER and staging.rows.keys() & set(wanted))
    return bool(answers) and READ_ALONE.isdisjoint(map(code_of, required.rollouts))


def code_of(rollout: Any) -> str:
    return (rollout.rejection_reason or "").partition(":")[0]


def is_base_read(effect: Any) -> bool:
    return isinstance(effect, Get) and "digest_bytes" in effect.columns


def test_a_read_that_was_never_made_cannot_fail(make):
    """Of two rollouts the second read was to fail: one that reads once publishes, one that swallows it is caught."""
    rollouts = [make.two_calls(f"g_g{index}") for index in range(2)]
    rows = {key: row for calls in rollouts for key, row in make.rows_of(calls).items()}
    asked = GroupRequest("g", ("g_g0", "g_g1"), tuple(map(make.receipt_of, rollouts)), (1.0, 1.0), (True, True))
    request = FinalizeGroups(ReassemblerConfig(), (GroupStep(asked, Faults(failing_get=1)),), Staging(rows))
    found = ask(OursByGroup(), request)
    assert answer(request).value[0].failure is Failure.READ
    assert answer_to(request, found).value[0].group.valid_row_count == 2
    assert answer_to(request, ask(Ours(), request)) == answer(request)
    swallowed = found.value[0]
    reads = (*swallowed.effects[:1], *swallowed.effects)
    assert answer_to(request, Accepted((evolve(swallowed, effects=reads),))) == answer(request)


def drawn(strategy: Any, count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(strategy)
    def collect(request: Any) -> None:
        found.append(request)

    collect()
    return found
