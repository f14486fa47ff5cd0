"""A miss is something that a plane says; whatever else it raises is an outage, whatever its type (sections 5 and 8)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import pickle
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from rollproof.impl.dataplane import MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane, pack_rows
from rollproof.impl.dataplane.misses import QUEUE_MISSES, Claim, claim_of
from rollproof.impl.policy import RoutePlanExecutor
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.recovery import run
from rollproof.impl.staging import MOST_READS, StagingSource
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, RolloutPlan, group_of
from rollproof.spec.rejections import Code, Rejected

GROUP = group_of(1, [RolloutPlan(((1, 2), (0, 1))), RolloutPlan(((2, 3),))], [])
KEYS = list(GROUP.rows)


class WithoutWords(MemoryDataPlane):
    """A plane without an error of its own for a miss, as NeMo RL's in-memory client: ``KeyError`` for both."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[list[str]] = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.reads.append(list(select_fields))
        rows = []
        for key in sample_ids:
            row = self._rows.get(partition_id, {})[key]
            for name in select_fields:
                if name not in row:
                    raise KeyError(f"field {name!r} of sample {key!r} was not produced")
            rows.append(row)
        columns = {name: pack_rows([row[name] for row in rows]) for name in select_fields}
        return TensorDict(columns, batch_size=[len(rows)])


class Raising(MemoryDataPlane):
    """A plane whose reads raise the given errors in turn, and answer once there are none left, or for a None."""

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__()
        self.errors = list(errors)
        self.reads: list[list[str]] = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.reads.append(list(select_fields))
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return super().get_samples(sample_ids, partition_id, select_fields)


def staged(plane: Any) -> Any:
    stage_rows(plane, STAGING, GROUP.rows)
    return plane


def finalizer(plane: Any, **changes: Any) -> RolloutReassembler:
    names = {"partition_id": TRAIN, "staging_partition": STAGING}
    return RolloutReassembler(plane, **names, pad_token_id=0, max_seq_len=CONFIG.max_seq_len, **changes)


def validation_error() -> Exception:
    import pydantic

    try:
        pydantic.TypeAdapter(int).validate_python("x")
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


OUTAGES = [
    ValueError("I/O operation on closed file"),
    ValueError("x"),
    KeyError("controller"),
    KeyError(7),
    KeyError(),
    KeyError("delta", "len"),
    json.JSONDecodeError("Expecting value", "", 0),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    validation_error(),
    IndexError("list index out of range"),
    LookupError("lost"),
    ConnectionError("down"),
    TypeError("x"),
    StopIteration(),
    concurrent.futures.CancelledError(),
    Rejected(Code.MISSING_STAGING_ROW),
]


@pytest.mark.parametrize("mode", [{}, {"router_replay_enabled": True, "routed_dims": (1, 1)}])
@pytest.mark.parametrize("outage", OUTAGES, ids=lambda error: f"{type(error).__name__}{len(str(error))}")
@pytest.mark.parametrize("failing", [0, 1])
def test_an_outage_of_any_type_is_no_missing_row(outage, failing, mode):
    """JSONDecodeError, UnicodeDecodeError and a closed file are ValueErrors: taken for a miss, they clear staging."""
    plane = staged(Raising(*[None] * failing, *[outage] * 5))
    with pytest.raises(Exception) as found:  # noqa: PT011
        run(finalizer(plane, **mode), GROUP.request)
    assert outage in (found.value, found.value.__cause__)
    assert not isinstance(found.value, Rejected)
    assert plane.sample_ids(TRAIN) == []
    assert plane.sample_ids(STAGING) == KEYS


def test_a_cancelled_read_propagates():
    plane = staged(Raising(asyncio.CancelledError()))
    with pytest.raises(asyncio.CancelledError):
        run(finalizer(plane), GROUP.request)
    assert plane.sample_ids(STAGING) == KEYS


@pytest.mark.parametrize("mode", [{}, {"router_replay_enabled": True, "routed_dims": (1, 1)}])
@pytest.mark.parametrize("make", [MemoryDataPlane, WithoutWords])
def test_a_lost_row_costs_its_own_rollout_only(make, mode):
    plane = staged(make())
    plane.clear_samples(KEYS[:1], STAGING)
    group = run(finalizer(plane, **mode), GROUP.request)
    assert (group.valid_row_count, group.total_row_count) == (1, 2)
    assert plane.sample_ids(STAGING) == []


def test_a_column_that_no_row_has_is_no_missing_row():
    """Direct router replay requests routes; a rollout without any is whole, on a plane that raises for it too."""
    plane = staged(WithoutWords())
    group = run(finalizer(plane, router_replay_enabled=True, routed_dims=(1, 1)), GROUP.request)
    assert group.valid_row_count == 2
    assert [("routed_experts" in columns) for columns in plane.reads] == [True, False, True, False]


def test_a_base_column_that_is_not_there_rejects_its_rollout():
    plane = staged(WithoutWords())
    del plane._rows[STAGING][KEYS[-1]]["capture_mode"]
    reassembler = finalizer(plane)
    rollout = reassembler.finalize_rollout(GROUP.request.rollout_ids[1], GROUP.request.receipts[1], reward=1.0)
    assert rollout.rejection_reason.startswith(f"invalid_staging_row: {KEYS[-1]}: capture_mode: got None, ")


# ── one read ────────────────────────────────────────────────────────────────────────────────────────────────────────

ROW, COLUMN, OTHER = KeyError(KEYS[0]), KeyError("field 'prev_len' of it"), KeyError("field 'delta_len' of it")


def read(plane: Any, optional: tuple[str, ...] = ()) -> Any:
    return StagingSource(plane, STAGING).read(KEYS[:2], ["prev_len", "delta_len"], optional)


@pytest.mark.parametrize(
    ("errors", "optional", "ending"),
    [
        ([MissingRows(STAGING)], (), Code.MISSING_STAGING_ROW),
        ([ROW, ROW], (), Code.MISSING_STAGING_ROW),
        ([ROW, ROW], ("more",), Code.MISSING_STAGING_ROW),
        ([ROW, MissingRows(STAGING)], (), Code.MISSING_STAGING_ROW),
        ([COLUMN, COLUMN], (), Code.INVALID_STAGING_ROW),
        ([KeyError("more"), COLUMN, COLUMN], ("more",), Code.INVALID_STAGING_ROW),
        ([KeyError("more")], ("more",), None),
        ([KeyError("more")], (), KeyError),
        ([ROW], (), KeyError),
        ([ROW], ("more",), KeyError),
        ([COLUMN], (), KeyError),
        ([COLUMN, ROW, ROW], (), Code.MISSING_STAGING_ROW),
        ([COLUMN, OTHER, COLUMN], (), KeyError),
        ([COLUMN, OTHER], (), KeyError),
        ([ROW, ConnectionError()], (), ConnectionError),
        ([ValueError(QUEUE_MISSES[0])] * 2, (), Code.MISSING_STAGING_ROW),
        ([ValueError(QUEUE_MISSES[0])], (), ValueError),
        ([ValueError(QUEUE_MISSES[0] + " ")] * 2, (), ValueError),
    ],
)
def test_what_is_said_twice_counts_and_what_is_taken_back_does_not(errors, optional, ending):
    plane = staged(Raising(*errors))
    if ending is None:
        assert read(plane, optional).batch_size[0] == 2
    elif isinstance(ending, Code):
        with pytest.raises(Rejected) as found:
            read(plane, optional)
        assert found.value.code is ending
    else:
        with pytest.raises(ending) as raised:
            read(plane, optional)
        assert raised.value in errors
    assert len(plane.reads) <= MOST_READS


class LostKeyError(KeyError):
    """An error class of some plane's own."""


@pytest.mark.parametrize(
    ("error", "claim"),
    [
        (MissingRows("p", ["a"]), Claim.MISSING),
        (KeyError("a"), Claim.ROW),
        (KeyError("no row 'a' here"), Claim.ROW),
        (KeyError("no row a1"), None),
        (KeyError("no row 'ab'"), None),
        (KeyError("ids"), Claim.COLUMN),
        (KeyError("field 'ids' of 'a'"), Claim.COLUMN),
        (LostKeyError("a"), None),
        (ValueError("a"), None),
    ],
)
def test_claim_of_tells_misses_from_outages(error, claim):
    assert claim_of(error, ["a"], ["ids"]) is claim
    task_error = RuntimeError("a task failed")
    task_error.cause = error  # type: ignore[attr-defined]
    assert claim_of(task_error, ["a"], ["ids"]) is claim


def test_the_queues_own_error_for_a_lost_row_is_a_claim(monkeypatch):
    module: Any = ModuleType("transfer_queue")
    module.StorageKeyNotFoundError = LostKeyError
    monkeypatch.setitem(sys.modules, "transfer_queue", module)
    assert claim_of(LostKeyError("key 17 not found in field 'x'"), ["a"], ["ids"]) is Claim.ROW


def test_missing_rows_can_be_sent():
    error = pickle.loads(pickle.dumps(MissingRows("p", ["a", "b"])))
    assert (error.partition, error.sample_ids) == ("p", ["a", "b"])
    assert str(error) == "partition 'p' does not hold all of the rows: a, b"


@pytest.mark.parametrize("answer", [None, {}, [], TensorDict({}, batch_size=[]), TensorDict({}, batch_size=[2, 2])])
def test_an_answer_that_is_no_batch_of_rows_is_an_outage(answer):
    plane = SimpleNamespace(get_samples=lambda **_: answer)
    with pytest.raises(RuntimeError, match="the data plane answered a"):
        read(plane)


# ── media and the policy's side ─────────────────────────────────────────────────────────────────────────────────────


def test_an_outage_of_the_policys_read_propagates_whatever_its_type(make_deferred):
    plane, published, lengths, dims = make_deferred
    for outage in OUTAGES:
        raising = Raising(*[outage] * 20)
        raising._rows = plane._rows
        with pytest.raises(Exception) as found:  # noqa: PT011
            RoutePlanExecutor(raising, dims=dims).replay(published, lengths)
        assert outage in (found.value, found.value.__cause__)


@pytest.fixture
def make_deferred() -> Any:
    """Return a plane with one routed call, its published plan, its length and (L, K)."""
    from rollproof.impl.plan import encode_plan
    from rollproof.spec.records import RouteAssemblyPlan, RouteSpan

    plane = MemoryDataPlane()
    plane.put_samples(["r/c"], STAGING, TensorDict({"routed_len": torch.tensor([2])}, batch_size=[1]))
    span = RouteSpan("r/c", 0, 2, 2, "extras-v1", "0" * 64)
    plan = RouteAssemblyPlan(STAGING, (span,), ("r/c",), 2)
    span = evolve(span, extras_digest_version=_version())
    return plane, [encode_plan(evolve(plan, spans=(span,)))], [2], (1, 1)


def _version() -> Any:
    from rollproof.spec.constants import EXTRAS_DIGEST_VERSION

    return EXTRAS_DIGEST_VERSION
