"""The recorder: what it writes is what happened, and it never disturbs the run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import nullcontext
from importlib.resources import files
from itertools import count

import jsonschema
import pytest
import torch
from hypothesis import Phase
from recordings import NAMES, group, record, verdicts
from tensordict import TensorDict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.audit import recorder as recorder_module
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.audit.stored import LineError
from rollproof.properties.errors import InputError
from rollproof.properties.gate.run import exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.spec.judge.requests import Area, FinalizeGroups, FinalizeRollout

SCHEMA = json.loads(files("rollproof.properties.audit").joinpath("schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("examples", [1, pytest.param(3, marks=pytest.mark.deep)])
def test_whatever_ours_does_is_recorded_and_held(tmp_path, examples):
    """Every kind of request of the gate, with faults and hostile rows: no call is lost, and none is misjudged."""
    numbers, judged = count(), []
    validator = jsonschema.Draft202012Validator(SCHEMA)

    class Recorded(Ours):
        def build(self, plane, config):
            recorders.append(Recorder(tmp_path / f"{next(numbers)}.jsonl", plane, inline_bytes=64).__enter__())
            reassembler = super().build(recorders[0].client, config)
            recorders[0].watch(reassembler)
            return reassembler

    def body(request):
        recorders.clear()
        if not isinstance(request, FinalizeGroups | FinalizeRollout):
            return
        ask(Recorded(), realize_request(request))
        recorder = recorders[0]
        recorder.close()
        assert recorder.lost == 0
        for line in recorder.path.read_bytes().splitlines():
            verdict = judge(read_line(line, recorder.path))
            assert verdict.broken == (), verdict.broken
            judged.append(verdict)
            if len(judged) % 10 == 0:
                validator.validate(json.loads(line))
        shutil.rmtree(recorder.shards, ignore_errors=True)

    recorders: list[Recorder] = []
    for area in (Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA):
        for stream in request_streams(area):
            if not stream.name.startswith("captured"):
                exercise(stream.strategy, body, examples, 1, (Phase.generate,))
    assert sum(verdict.is_group for verdict in judged) > 10 * examples
    assert sum(not verdict.is_group for verdict in judged) > 30 * examples


@pytest.mark.parametrize(("taken_back", "failure"), [(False, None), (True, "read")])
def test_recorder_takes_a_read_that_is_put_again_for_one_read(tmp_path, taken_back, failure):
    """A claim that is repeated is a miss; one that is taken back was an outage, and both are held (decision D26)."""

    class Claims(MemoryDataPlane):
        said = 0

        def get_samples(self, sample_ids, partition_id, select_fields):
            if "g1_g0/c1" in sample_ids and not (taken_back and self.said):
                self.said += 1
                raise KeyError("g1_g0/c1")
            return super().get_samples(sample_ids, partition_id, select_fields)

    path = tmp_path / "run.jsonl"
    with pytest.raises(KeyError) if taken_back else nullcontext():
        record(path, plane=Claims())
    (verdict,) = verdicts(path)
    assert verdict.held, verdict.broken
    line = json.loads(path.read_text())
    noted = [name for effect in line["effects"] for name in effect.get("get", {}) if name in ("missed", "failed")]
    assert noted == (["failed"] if taken_back else ["missed"])
    assert (line.get("failure") or {}).get("kind") == failure


def test_a_rollout_inside_a_group_is_judged_too(tmp_path):
    class Through(RolloutReassembler):
        def finalize_group(self, group_id, rollout_ids, receipts, rewards, **named):
            for rollout_id, receipt, reward in zip(rollout_ids, receipts, rewards, strict=True):
                self.finalize_rollout(rollout_id, receipt, reward=reward)
            return super().finalize_group(group_id, rollout_ids, receipts, rewards, **named)

        def finalize_rollout(self, rollout_id, receipt, *, reward):
            rollout = super().finalize_rollout(rollout_id, receipt, reward=reward)
            return dataclasses.replace(rollout, prompt_len=rollout.prompt_len + rollout.valid)

    (verdict,) = verdicts(record(tmp_path / "run.jsonl", Through))
    assert ("ROLLOUT-7", "prompt_len 3") in verdict.broken


def test_padded_rows_and_other_columns(tmp_path):
    """A right-padded publication is as good as a jagged one; a column that holds no tensors is named."""

    class Padded(RolloutReassembler):
        def _put(self, ids, rows):
            for name in ("input_ids", "token_mask", "generation_logprobs"):
                rows.fields[name] = torch.nested.to_padded_tensor(rows.fields[name], 0)
            super()._put(ids, rows)

    assert verdicts(record(tmp_path / "padded.jsonl", Padded))[0].held
    assert '"lengths"' not in (tmp_path / "padded.jsonl").read_text().partition('"put"')[2]

    class Odd(MemoryDataPlane):
        def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
            if partition_id == "staging":
                super().put_samples(sample_ids, partition_id, fields, tags)

    class Texts(RolloutReassembler):
        def _put(self, ids, rows):
            rows.fields.set_non_tensor("truncated", "no")
            super()._put(ids, rows)

    (verdict,) = verdicts(record(tmp_path / "texts.jsonl", Texts, plane=Odd()))
    assert {one.what for one in verdict.differences} == {"truncated"}


def test_recording_never_disturbs_the_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(recorder_module, "describe_batch", lambda *_: 1 / 0)
    plane = MemoryDataPlane()
    with Recorder(tmp_path / "run.jsonl", plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        positional, named = group(plane, "g1")
        assert reassembler.finalize_group(*positional, **named).valid_row_count == 2
    assert recorder.lost == 1
    assert plane.sample_ids("train") == ["g1_g0", "g1_g1", "g1_g2"]
    with pytest.raises(LineError, match="could not be recorded: ZeroDivisionError"):
        verdicts(recorder.path)


def test_watch_needs_the_constructor_arguments(tmp_path):
    class Bare:
        partition_id, _staging_partition, pad_token_id = "train", "staging", 0

        def finalize_group(self, *_, **__): ...

        def finalize_rollout(self, *_, **__): ...

    with Recorder(tmp_path / "run.jsonl", MemoryDataPlane()) as recorder:
        with pytest.raises(InputError, match="Bare does not show its max_seq_len, router_replay_enabled"):
            recorder.watch(Bare())
        with pytest.raises(InputError, match="colour: no such argument"):
            recorder.watch(Bare(), colour=1)


def test_other_users_of_the_client_are_not_recorded(tmp_path):
    plane = MemoryDataPlane()
    with Recorder(tmp_path / "run.jsonl", plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        fields = TensorDict({"x": torch.zeros(1)}, batch_size=[1])
        recorder.client.put_samples(sample_ids=["other"], partition_id="train", fields=fields)
        assert recorder.client.sample_ids("train") == ["other"]
    assert recorder.path.read_bytes() == b""
