"""Sections 5 and 9: one write per call, and the difference between a row that is not there and an outage."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from attrs import asdict, evolve
from tensordict import TensorDict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.staged import base_columns, decode
from rollproof.impl.staging import StagingSink, StagingSource, call_plane, metadata_json, staged_row
from rollproof.properties.tensors import from_torch
from rollproof.spec.constants import BASE_COLUMNS
from rollproof.spec.rejections import Code, Rejected
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
    """nemo-gym's own records of two calls."""
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
    sink = StagingSink(plane, "staging")
    assert isinstance(sink, Protocol)
    results = [sink.stage(record) for record in records]
    assert all(isinstance(result, StageResult) and result.ok for result in results)
    assert [result.staging_key for result in results] == ["g_g0/c0", "g_g0/c1"]
    assert plane.calls == ["put_samples"] * 2
    columns = decode(StagingSource(plane, "staging").read(["g_g0/c0", "g_g0/c1"], base_columns()))
    assert columns.token_ids.tolist() == [10, 11, 12, 13, 20, 21, 22]


def test_a_failed_write_is_discarded_and_reported(records):
    plane = Failing(put_samples=ConnectionError("down"))
    result = StagingSink(plane, "staging").stage(records[0])
    assert not result.ok
    assert "ConnectionError from the data plane: down" in result.error
    assert plane.calls == ["put_samples", "clear_samples"]


def test_a_write_that_cannot_be_discarded_is_reported_too(records, caplog):
    plane = Failing(put_samples=ConnectionError("down"), clear_samples=ConnectionError("still down"))
    assert not StagingSink(plane, "staging").stage(records[0]).ok
    assert "could not be discarded" in caplog.text


def test_a_call_that_cannot_be_staged_is_reported(records):
    plane = Failing()
    sink = StagingSink(plane, "staging")
    broken = records[0].model_copy(update={"token_ids_delta": [1, 2, 3, 2**63]})
    assert "cannot be staged" in sink.stage(broken).error
    assert "no media" in sink.stage(records[0], attachments={"imgs": torch.zeros(1)}).error
    assert plane.calls == []


def test_without_nemo_gym_there_is_one_clear_error(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "nemo_gym.token_id_capture.staging", None)
    with pytest.raises(ImportError, match="install nemo-gym"):
        StagingSink(MemoryDataPlane(), "staging").stage(make.two_calls()[0])


# ── the source ──────────────────────────────────────────────────────────────────────────────────────────────────────


class RayTaskError(Exception):
    """As Ray does it: an error of a task is an instance of the error that it stands for, too."""


class RayTaskErrorOfKeyError(RayTaskError, KeyError):
    pass


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), RayTaskErrorOfKeyError("k")])
def test_the_plane_says_that_a_row_is_missing(error):
    with pytest.raises(Rejected) as found:
        StagingSource(Failing(get_samples=error), "staging").read(["a"], ["ids"])
    assert found.value.code is Code.MISSING_STAGING_ROW


@pytest.mark.parametrize("error", [ConnectionError("down"), RuntimeError("x"), RayTaskError("x"), TypeError("x")])
def test_any_other_error_propagates(error):
    with pytest.raises(type(error)) as found:
        StagingSource(Failing(get_samples=error), "staging").read(["a"], ["ids"])
    assert found.value is error


def test_fewer_rows_are_missing_rows(make):
    plane = make.plane_of(make.two_calls())
    with pytest.raises(Rejected, match="1 of 2 rows"):
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
    """A stand-in for Ray whose ``get`` runs what a reference stands for."""

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
