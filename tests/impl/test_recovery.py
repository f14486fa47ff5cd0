"""What recovery does for everything that a data plane can hold of a group."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from tensordict import TensorDict

from rollproof.impl.dataplane import MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import CleanupError, RolloutReassembler
from rollproof.impl.recovery import Contradiction, Holding, Recovery, Undecidable, owned_by, run
from rollproof.properties.adapters.tensors import row_fields, stage_rows
from rollproof.properties.machine.faults import Armed, Fault, FaultyPlane
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, RolloutPlan, group_of

GROUP = group_of(3, [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((0, 1),), "poisoned"), RolloutPlan(((2, 3),))], [])
IDS, OWNED = list(GROUP.sample_ids), sorted(GROUP.owned)
NAMES = {"partition_id": TRAIN, "staging_partition": STAGING}


def finalizer(plane: Any, **changes: Any) -> RolloutReassembler:
    limits = {"pad_token_id": CONFIG.pad_token_id, "max_seq_len": CONFIG.max_seq_len}
    return RolloutReassembler(plane, **(NAMES | limits | changes))


@pytest.fixture
def plane() -> MemoryDataPlane:
    plane = MemoryDataPlane()
    stage_rows(plane, STAGING, GROUP.rows)
    return plane


def content(plane: MemoryDataPlane) -> Any:
    ids = plane.sample_ids(TRAIN)
    names = ["input_ids", "token_mask", "sample_mask", "total_reward"]
    rows = {key: plane.get_samples([key], TRAIN, names) for key in ids}
    values = {key: {name: column[0].tolist() for name, column in row.items()} for key, row in rows.items()}
    return values, plane.tags(TRAIN)


def interrupted(plane: MemoryDataPlane, operation: Any, fault: Fault, choice: int = 0) -> None:
    """Finalize the group up to a fault."""
    faulty = FaultyPlane(plane)
    faulty.arm([Armed(operation, 0, fault, choice)])
    with pytest.raises(RuntimeError):
        run(finalizer(faulty), GROUP.request)


def test_owned_keys_are_those_of_the_finalizer(plane):
    assert len(OWNED) == 4
    assert set(owned_by(GROUP.request)) == GROUP.owned
    run(finalizer(plane), GROUP.request)
    assert plane.sample_ids(STAGING) == []
    none = group_of(1, [RolloutPlan(((1, 1),), "no receipt")], []).request
    assert owned_by(none) == []


@pytest.mark.parametrize(
    ("operation", "fault", "choice", "holding"),
    [
        pytest.param("put", Fault.REFUSE, 0, Holding(0, 3, 4, 4), id="nothing was put"),
        pytest.param("put", Fault.HALF, 1, Holding(1, 3, 4, 4), id="the put broke off"),
        pytest.param("put", Fault.TIME_OUT, 0, Holding(3, 3, 0, 4), id="the put timed out"),
        pytest.param("clear", Fault.REFUSE, 0, Holding(3, 3, 0, 4), id="nothing was cleared"),
        pytest.param("clear", Fault.HALF, 2, Holding(3, 3, 0, 4), id="the clear broke off"),
        pytest.param("clear", Fault.TIME_OUT, 0, Holding(3, 3, 0, 4), id="the clear timed out"),
    ],
)
def test_an_interrupted_group_comes_out_as_if_nothing_had_happened(plane, operation, fault, choice, holding):
    undisturbed = MemoryDataPlane()
    stage_rows(undisturbed, STAGING, GROUP.rows)
    expected = run(finalizer(undisturbed), GROUP.request)
    interrupted(plane, operation, fault, choice)
    recovery = Recovery(plane, **NAMES)
    assert recovery.holding(GROUP.request) == holding
    for _ in range(2):
        group = recovery.recover(GROUP.request, finalizer(plane))
        assert content(plane) == content(undisturbed)
        assert plane.sample_ids(STAGING) == []
        assert (group.meta.sample_ids, group.meta.sequence_lengths) == (IDS, expected.meta.sequence_lengths)
        assert (group.meta.tags, group.group_min_wv) == (expected.meta.tags, expected.group_min_wv)
        assert (group.valid_row_count, group.total_row_count) == (2, 3)
        assert group.canonical_output_tokens == expected.canonical_output_tokens


@pytest.mark.parametrize(("rows", "staged"), [(2, 3), (1, 0), (0, 0)])
def test_what_nobody_can_tell_is_refused_and_left_alone(plane, rows, staged):
    run(finalizer(plane), GROUP.request)
    plane.clear_samples(IDS[rows:], TRAIN)
    for key in OWNED[:staged]:
        plane.put_samples([key], STAGING, row_fields(dict(GROUP.rows[key])), [{}])
    before = content(plane), plane.sample_ids(STAGING)
    recovery = Recovery(plane, **NAMES)
    with pytest.raises(Undecidable, match=f"group g3: {rows} of 3 rows are published and {staged} of 4 staged"):
        recovery.recover(GROUP.request, finalizer(plane))
    assert (content(plane), plane.sample_ids(STAGING)) == before
    recovery.discard(GROUP.request)
    assert plane.sample_ids(TRAIN) == plane.sample_ids(STAGING) == []


def test_rows_of_two_broken_puts_are_not_taken_for_a_group(plane):
    """The first put knew less than the second; the second broke off where the first one's rows continue."""
    faulty = FaultyPlane(plane)
    faulty.arm([Armed("get", 0, Fault.MISS, 0), Armed("put", 0, Fault.TIME_OUT, 0)])
    with pytest.raises(RuntimeError):
        run(finalizer(faulty), GROUP.request)
    plane.clear_samples(IDS[:1], TRAIN)
    faulty.arm([Armed("put", 0, Fault.HALF, 1)])
    with pytest.raises(RuntimeError):
        Recovery(faulty, **NAMES).recover(GROUP.request, finalizer(faulty))
    assert Recovery(plane, **NAMES).holding(GROUP.request) == Holding(1, 3, 4, 4)
    assert Recovery(plane, **NAMES).recover(GROUP.request, finalizer(plane)).valid_row_count == 2


def test_a_group_that_owns_nothing_is_run(plane):
    request = group_of(1, [RolloutPlan(((1, 1),), "no receipt")], []).request
    assert Recovery(plane, **NAMES).recover(request, finalizer(plane)).valid_row_count == 0
    assert plane.sample_ids(TRAIN) == ["g1_g0"]


def test_rows_that_were_never_staged_do_not_keep_a_group_from_running(plane):
    plane.clear_samples(OWNED[:1], STAGING)
    assert Recovery(plane, **NAMES).recover(GROUP.request, finalizer(plane)).valid_row_count == 1


def test_deferred_staging_is_left_to_the_policy(plane):
    deferred = {"router_replay_enabled": True, "defer_routed_experts_to_policy": True}
    expected = run(finalizer(plane, **deferred), GROUP.request)
    group = Recovery(plane, **NAMES, deferred=True).recover(GROUP.request, finalizer(plane, **deferred))
    assert sorted(group.staging_keys) == sorted(expected.staging_keys) == OWNED
    assert sorted(plane.sample_ids(STAGING)) == OWNED


def test_a_clear_that_fails_again_names_what_is_left(plane):
    interrupted(plane, "clear", Fault.REFUSE)
    faulty = FaultyPlane(plane)
    faulty.arm([Armed("clear", 0, Fault.REFUSE, 0)])
    with pytest.raises(CleanupError, match="the rows are published; still staged: g3_g0/c0"):
        Recovery(faulty, **NAMES).recover(GROUP.request, finalizer(faulty))


def test_a_plane_without_tags_gives_the_fallback(plane):
    interrupted(plane, "clear", Fault.REFUSE)
    group = Recovery(FaultyPlane(plane), **NAMES).recover(GROUP.request, finalizer(plane))
    assert (group.meta.tags, group.group_min_wv) == (None, 0)


def test_rows_lost_while_the_result_is_rebuilt(plane, monkeypatch):
    interrupted(plane, "clear", Fault.REFUSE)
    counted = Recovery._count
    answers = iter([3])
    monkeypatch.setattr(Recovery, "_count", lambda self, *rest: next(answers, None) or counted(self, *rest))
    plane.clear_samples(IDS[:1], TRAIN)
    plane.clear_samples(OWNED[:1], STAGING)
    with pytest.raises(Contradiction):
        Recovery(plane, **NAMES).recover(GROUP.request, finalizer(plane))
    with pytest.raises(Undecidable, match="2 of 3 rows"):
        Recovery(plane, **NAMES).recover(GROUP.request, finalizer(plane))


# ── a plane that lies, or fails in odd ways, while recovery counts ──────────────────────────────────────────────────


class Scripted:
    """A plane that answers some reads of one partition with ``lies``, in turn; None tells the truth."""

    def __init__(self, inner: MemoryDataPlane, partition: str, *lies: Any) -> None:
        self.inner, self.partition, self.lies = inner, partition, list(lies)

    def get_samples(self, sample_ids, partition_id, select_fields):
        lie = self.lies.pop(0) if partition_id == self.partition and self.lies else None
        if isinstance(lie, Exception):
            raise lie
        if lie is not None:
            return TensorDict({}, batch_size=[lie])
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def __getattr__(self, name):
        return getattr(self.inner, name)


ODD_OUTAGES = [
    ValueError("I/O operation on closed file"),
    KeyError("controller"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    json.JSONDecodeError("Expecting value", "", 0),
]


@pytest.mark.parametrize("partition", [TRAIN, STAGING])
@pytest.mark.parametrize("outage", ODD_OUTAGES, ids=lambda error: type(error).__name__)
def test_recovery_takes_no_outage_for_missing_rows(plane, partition, outage):
    interrupted(plane, "clear", Fault.HALF, 2)
    if partition == STAGING:
        plane.clear_samples(IDS[:1], TRAIN)
    before = content(plane), plane.sample_ids(STAGING)
    scripted = Scripted(plane, partition, outage)
    with pytest.raises(type(outage)) as found:
        Recovery(scripted, **NAMES).recover(GROUP.request, finalizer(scripted))
    assert found.value is outage
    assert (content(plane), plane.sample_ids(STAGING)) == before


@pytest.mark.parametrize("lies", [(0,), (2,), (MissingRows(TRAIN, IDS),), (None, 0)])
def test_recovery_puts_nothing_on_one_lie_about_published_rows(plane, lies):
    """Believed, it would publish placeholders over good rows: half of the staging is gone."""
    interrupted(plane, "clear", Fault.HALF, 2)
    before = content(plane)
    scripted = Scripted(plane, TRAIN, *lies)
    with pytest.raises(Contradiction, match="one by one") as found:
        Recovery(scripted, **NAMES).recover(GROUP.request, finalizer(scripted))
    assert pickle.loads(pickle.dumps(found.value)).asked == 3
    assert content(plane) == before
    Recovery(plane, **NAMES).recover(GROUP.request, finalizer(plane))
    assert content(plane) == before
    assert plane.sample_ids(STAGING) == []


def test_recovery_of_rows_without_the_column_that_counts_them_changes_nothing(plane):
    interrupted(plane, "clear", Fault.REFUSE)
    scripted = Scripted(plane, TRAIN, *[KeyError("input_lengths")] * 2)
    with pytest.raises(RuntimeError, match="no column 'input_lengths'"):
        Recovery(scripted, **NAMES).recover(GROUP.request, finalizer(scripted))
    assert sorted(plane.sample_ids(STAGING)) == OWNED


@pytest.mark.parametrize("group", [GROUP, group_of(4, [RolloutPlan(((0, 1), (1, 1)))], [])], ids=["three", "one"])
def test_rows_whose_put_ended_before_its_tags_are_put_again(group):
    plane, undisturbed = MemoryDataPlane(), MemoryDataPlane()
    for one in (plane, undisturbed):
        stage_rows(one, STAGING, group.rows)
    run(finalizer(undisturbed), group.request)
    ids = list(group.sample_ids)
    names = ["input_ids", "input_lengths", "token_mask", "sample_mask"]
    plane.put_samples(ids, TRAIN, undisturbed.get_samples(ids, TRAIN, names), [{}] * len(ids))
    Recovery(plane, **NAMES).recover(group.request, finalizer(plane))
    assert plane.tags(TRAIN) == undisturbed.tags(TRAIN)
    assert plane.sample_ids(STAGING) == []
