"""Sections 5 and 9: one write per call, and the difference between a row that is not there and an outage."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from attrs import asdict, evolve
from tensordict import TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.staged import base_columns, decode, from_calls
from rollproof.impl.staged_row import metadata_json, route_columns, staged_row
from rollproof.impl.staging import StagingSink, StagingSource, call_plane
from rollproof.properties.adapters.tensors import from_torch
from rollproof.spec.constants import BASE_COLUMNS
from rollproof.spec.rejections import Rejected
from rollproof.spec.staged import encode_row


class Failing(MemoryDataPlane):
    """A data plane whose methods raise what they are told to."""

    def __init__(self, **errors: BaseException) -> None:
        super().__init__()
        self.errors = errors
        self.calls: list[str] = []

    def _do(self, name: str, **arguments):
        self.calls.append(name)
        if name in self.errors:
            raise self.errors[name]
        return getattr(MemoryDataPlane, name)(self, **arguments)

    def put_samples(self, **arguments):
        return self._do("put_samples", **arguments)

    def get_samples(self, **arguments):
        return self._do("get_samples", **arguments)

    def clear_samples(self, **arguments):
        return self._do("clear_samples", **arguments)


# ── one row ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_staged_row_is_the_specs(make):
    calls = make.two_calls()
    odd = {"note": "é\n", "b": [1, {"a": None}], "a": True}
    make.add_call(calls, [1], 0, call_id="é/\0", parent=calls[1], extras=odd)
    for call, extras in zip(calls, (None, {}, odd), strict=True):
        row = staged_row(SimpleNamespace(**asdict(call), extras=extras))
        assert row.batch_size == torch.Size([1])
        assert {name: from_torch(column) for name, column in row.items()} == encode_row(call, extras)
        assert set(row.keys()) == set(BASE_COLUMNS)


def test_metadata_leaves_the_routes_out():
    assert metadata_json(None) == b"null"
    assert metadata_json({"routed_experts": []}) == b"{}"
    assert json.loads(metadata_json({"é": [1.5], "routed_experts": 1})) == {"é": [1.5]}


@pytest.mark.parametrize(
    "changes", [{"token_mask_delta": (-0.0, 0.0, 1.0, 1.0)}, {"token_ids_delta": (1, 2, 3, 2**63)}, {"cum_len": 9}]
)
def test_a_row_that_would_be_rejected_is_not_staged(make, changes):
    with pytest.raises(ValueError, match="expected"):
        staged_row(evolve(make.two_calls()[0], **changes))


# ── the sink ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def records(make):
    """Return nemo-gym's own records of two calls."""
    staging = pytest.importorskip("nemo_gym.token_id_capture.staging")
    records = []
    for call in make.two_calls():
        fields = {name: getattr(call, name) for name in staging.StagedCallBaseSnapshot.model_fields}
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
        records.append(staging.StagedCallRecord(**fields, extras=None))
    return records


def test_the_sink_satisfies_nemo_gyms_protocol(records):
    from nemo_gym.token_id_capture.staging import StageResult
    from nemo_gym.token_id_capture.staging import StagingSink as Protocol

    plane = Failing()
    sink = StagingSink(plane, staging_partition="staging")
    assert isinstance(sink, Protocol)
    results = [sink.stage(record) for record in records]
    assert all(isinstance(result, StageResult) and result.ok for result in results)
    assert [result.staging_key for result in results] == ["g_g0/c0", "g_g0/c1"]
    assert plane.calls == ["get_samples", "put_samples"] * 2
    columns = decode(StagingSource(plane, "staging").read(["g_g0/c0", "g_g0/c1"], base_columns()))
    assert columns.token_ids.tolist() == [10, 11, 12, 13, 20, 21, 22]
    sink.clear([])
    sink.clear(["g_g0/c0"])
    assert plane.sample_ids("staging") == ["g_g0/c1"]


def test_tags_say_which_call_a_row_is(records):
    plane = MemoryDataPlane()
    for record in records:
        StagingSink(plane, "staging").stage(record)
    tags = plane.tags("staging")["g_g0/c1"]
    assert tags == {
        "rollout_id": "g_g0",
        "model_call_id": "c1",
        "parent_call_id": "c0",
        "prev_len": 4,
        "delta_len": 3,
        "cum_len": 7,
        "weight_version": 5,
        "digest": records[1].digest,
        "schema_version": 2,
    }


def test_a_failed_write_is_discarded_and_reported(records):
    plane = Failing(put_samples=ConnectionError("down"))
    result = StagingSink(plane, "staging").stage(records[0])
    assert (result.ok, result.staging_key) == (False, "g_g0/c0")
    assert "ConnectionError from the data plane: down" in result.error
    assert plane.calls == ["get_samples", "put_samples", "clear_samples"]


def test_a_write_that_cannot_be_discarded_is_logged_as_orphaned(records, caplog):
    plane = Failing(put_samples=ConnectionError("down"), clear_samples=ConnectionError("still down"))
    assert not StagingSink(plane, "staging").stage(records[0]).ok
    (logged,) = caplog.records
    assert logged.levelname == "ERROR"
    assert "orphaned" in logged.message
    assert "g_g0/c0" in logged.message
    assert "'staging'" in logged.message


def test_a_call_that_cannot_be_staged_is_reported(records):
    plane = Failing()
    sink = StagingSink(plane, "staging")
    broken = records[0].model_copy(update={"token_ids_delta": [1, 2, 3, 2**63]})
    result = sink.stage(broken)
    assert "cannot be staged" in result.error
    assert result.staging_key == "g_g0/c0"
    assert "no media" in sink.stage(records[0], attachments={"imgs": torch.zeros(1)}).error
    assert plane.calls == []


def test_a_call_staged_again_is_a_success_without_a_write(records):
    plane = Failing()
    sink = StagingSink(plane, "staging")
    assert sink.stage(records[0]).ok
    again = StagingSink(plane, "staging").stage(records[0])
    assert (again.ok, again.staging_key) == (True, "g_g0/c0")
    assert plane.calls.count("put_samples") == 1


def staged_values(plane):
    answer = plane.get_samples(sample_ids=["g_g0/c0"], partition_id="staging", select_fields=list(BASE_COLUMNS))
    return {name: [row.tolist() for row in column_rows(column)] for name, column in answer.items()}


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"weight_version": 9},
        {"generation_log_probs_delta": [0.0, 0.0, -0.25, -0.5]},
        {"token_ids_delta": [10, 11, 12, 14]},
        {"extras": {"note": 1}},
        {"extras": {"routed_experts": [[[1]]] * 4}},
    ],
)
def test_another_call_under_a_staged_key_is_refused_and_the_first_row_stays(records, change):
    plane = Failing()
    sink = StagingSink(plane, "staging")
    sink.stage(records[0])
    before = staged_values(plane)
    result = sink.stage(records[0].model_copy(update=change))
    assert (result.ok, result.staging_key) == (False, "g_g0/c0")
    assert "another call is staged" in result.error
    assert staged_values(plane) == before
    assert "clear_samples" not in plane.calls


def test_routes_of_another_shape_are_another_call(records):
    sink = StagingSink(MemoryDataPlane(), "staging")
    wide = records[0].model_copy(update={"extras": {"routed_experts": [[[1, 2]]] * 4}})
    assert sink.stage(wide).ok
    assert sink.stage(wide).ok
    assert not sink.stage(records[0].model_copy(update={"extras": {"routed_experts": [[[1], [2]]] * 4}})).ok
    assert not sink.stage(records[0]).ok


def test_nothing_is_written_where_nobody_knows_what_is_staged(records):
    plane = Failing(get_samples=ConnectionError("down"))
    result = StagingSink(plane, "staging").stage(records[0])
    assert (result.ok, result.staging_key) == (False, "g_g0/c0")
    assert "nothing was written" in result.error
    assert plane.calls == ["get_samples"]


LARGEST = 3.4028234663852886e38
"""The largest float32."""


@pytest.mark.parametrize("value", [-0.2, 1 / 3, -1e-300, 5e-324, LARGEST, -LARGEST * (1 + 2**-26)])
def test_log_probs_are_rounded_to_float32(records, value):
    plane = MemoryDataPlane()
    record = records[0].model_copy(update={"generation_log_probs_delta": [0.0, 0.0, value, -0.25]})
    assert StagingSink(plane, "staging").stage(record).ok
    columns = decode(StagingSource(plane, "staging").read(["g_g0/c0"], base_columns()))
    assert columns.logprobs.tolist() == [0.0, 0.0, torch.tensor(value, dtype=torch.float32).item(), -0.25]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39, -1.7976931348623157e308])
def test_log_probs_that_no_float32_holds_are_refused(records, value):
    record = records[0].model_copy(update={"generation_log_probs_delta": [0.0, 0.0, -0.25, value]})
    result = StagingSink(MemoryDataPlane(), "staging").stage(record)
    assert not result.ok
    assert f"generation_log_probs_delta[3]: got {value!r}, expected a finite float32" in result.error


def test_what_is_read_back_stays_strict(make):
    """A record that is verified rather than staged may hold float32 values alone (section 1)."""
    call = evolve(make.two_calls()[0], generation_log_probs_delta=(0.0, 0.0, -0.2, -0.25))
    assert from_calls([call])[1] == "generation_log_probs_delta[2]: got -0.2, expected a finite float32"
    assert from_calls([call], rounding=True)[1] is None


def test_without_nemo_gym_there_is_one_clear_error(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "nemo_gym.token_id_capture.staging", None)
    with pytest.raises(ImportError, match="install nemo-gym"):
        StagingSink(MemoryDataPlane(), "staging").stage(make.two_calls()[0])


# ── the source ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_fewer_rows_are_missing_rows(make):
    plane = make.plane_of(make.two_calls())
    with pytest.raises(
        Rejected, match=r"g_g0/c0 and 1 more: staged row: got None, expected one \(1 of 2 rows are there\)"
    ):
        StagingSource(plane, "staging").read(["g_g0/c0", "absent"], ["prev_len"])


def test_more_rows_than_asked_for_are_an_outage():
    plane = SimpleNamespace(get_samples=lambda **_: TensorDict({}, batch_size=[3]))
    with pytest.raises(RuntimeError, match="3 rows for 2 keys"):
        StagingSource(plane, "staging").read(["a", "b"], ["ids"])


# ── Ray ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Handle:
    """A Ray actor handle: every method has a ``remote`` that gives a reference."""

    def __init__(self, target) -> None:
        self._target = target

    def __getattr__(self, name):
        method = getattr(self._target, name)
        return SimpleNamespace(remote=lambda **arguments: ("reference", method, arguments))


@pytest.fixture
def ray(monkeypatch):
    """Return a stand-in for Ray whose ``get`` runs what a reference represents."""

    def get(reference):
        kind, method, arguments = reference
        assert kind == "reference"
        return method(**arguments)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=get))


def test_call_plane(ray):
    target = SimpleNamespace(add=lambda a, b: a + b)
    assert call_plane(target, "add", a=1, b=2) == 3
    assert call_plane(Handle(target), "add", a=1, b=2) == 3


def test_a_reassembler_over_a_ray_handle(ray, make):
    calls = make.two_calls()
    plane = make.plane_of(calls)
    group = make.reassembler(Handle(plane)).finalize_group(
        "g",
        ["g_g0"],
        [make.receipt_of(calls)],
        [1.0],
        mask_sample=[True],
        fallback_weight_version=0,
        prompt_idx=0,
    )
    assert group.valid_row_count == 1
    assert plane.sample_ids("train") == ["g_g0"]
    assert plane.sample_ids("staging") == []


def test_route_columns_refuse_a_mapping_as_an_unknown_encoding():
    with pytest.raises(ValueError, match="unsupported_route_encoding"):
        route_columns({"routed_experts": {"codec": "zstd"}}, 1)
