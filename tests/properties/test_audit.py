"""The audit: what the recorder writes is what happened, and the verdict names what was published wrongly."""

from __future__ import annotations

import gzip
import json
import shutil
from importlib.resources import files
from itertools import count

import jsonschema
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from hypothesis import Phase
from tensordict import TensorDict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.asking import ask
from rollproof.properties.audit import recorder as recorder_module
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.audit.stored import LineError
from rollproof.properties.cli import main
from rollproof.properties.errors import InputError
from rollproof.properties.gate.run import exercise
from rollproof.properties.strategies.history import rehash
from rollproof.properties.strategies.recipes import realize_request
from rollproof.properties.strategies.requests import request_streams
from rollproof.properties.strategies.worked import WORKED_EXAMPLE
from rollproof.properties.tensors import row_fields
from rollproof.spec.requests import Area, FinalizeGroups, FinalizeRollout

SCHEMA = json.loads(files("rollproof.properties.audit").joinpath("schema.json").read_text(encoding="utf-8"))
NAMES = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 100}


def staged(plane, rollout_id):
    """One rollout of the worked example, staged; the answer is its receipt."""
    history = rehash(WORKED_EXAMPLE.renamed(rollout_id))
    for key, row in history.rows().items():
        plane.put_samples(sample_ids=[key], partition_id="staging", fields=row_fields(dict(row)), tags=[{}])
    return history.raw_receipt()


def group(plane, group_id, size=3, **changes):
    """The arguments of ``finalize_group`` of a group whose last rollout has no receipt."""
    ids = [f"{group_id}_g{index}" for index in range(size)]
    receipts = [staged(plane, rollout_id) for rollout_id in ids[:-1]] + [None]
    values = {"mask_sample": [False] * size, "fallback_weight_version": 1, "prompt_idx": 7} | changes
    return (group_id, ids, receipts, [0.5] * size), values


def record(path, kind=RolloutReassembler, groups=("g1",), plane=None, size=3, **arguments):
    """Groups finalized by a reassembler of this class, recorded."""
    plane = MemoryDataPlane() if plane is None else plane
    with Recorder(path, plane) as recorder:
        reassembler = kind(recorder.client, **NAMES, **arguments)
        recorder.watch(reassembler)
        for group_id in groups:
            positional, named = group(plane, group_id, size)
            reassembler.finalize_group(*positional, **named)
    assert recorder.lost == 0
    return path


def verdicts(path):
    return [judge(read_line(line, path)) for line in path.read_bytes().splitlines()]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["audit", "--jobs", "1", *map(str, arguments)])


# ── recording ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_ours_does_is_recorded_and_held(tmp_path):
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
            assert verdict.broken == ()
            judged.append(verdict)
            if len(judged) % 10 == 0:
                validator.validate(json.loads(line))
        shutil.rmtree(recorder.shards, ignore_errors=True)

    recorders: list[Recorder] = []
    for area in (Area.ROLLOUT, Area.GROUP, Area.ROUTES, Area.MEDIA):
        for stream in request_streams(area):
            if not stream.name.startswith("captured"):
                exercise(stream.strategy, body, 3, 1, (Phase.generate,))
    assert sum(verdict.is_group for verdict in judged) > 30
    assert sum(not verdict.is_group for verdict in judged) > 100


def test_a_rollout_inside_a_group_is_judged_too(tmp_path):
    class Through(RolloutReassembler):
        def finalize_group(self, group_id, rollout_ids, receipts, rewards, **named):
            for rollout_id, receipt, reward in zip(rollout_ids, receipts, rewards, strict=True):
                self.finalize_rollout(rollout_id, receipt, reward=reward)
            return super().finalize_group(group_id, rollout_ids, receipts, rewards, **named)

        def finalize_rollout(self, rollout_id, receipt, *, reward):
            rollout = super().finalize_rollout(rollout_id, receipt, reward=reward)
            rollout.prompt_len += rollout.valid
            return rollout

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


# ── wrong publications ──────────────────────────────────────────────────────────────────────────────────────────────


def edit(rows, name, row, change):
    """Change one row of a column in place."""
    column = rows.fields.get(name)
    change(column.unbind()[row] if column.is_nested else column[row : row + 1])


class Wrong(RolloutReassembler):
    """Publishes what a fault of a test makes of the rows."""

    fault = staticmethod(lambda rows: None)

    def _put(self, ids, rows):
        type(self).fault(rows)
        super()._put(ids, rows)


def wrong(change):
    return type("Wrong", (Wrong,), {"fault": staticmethod(change)})


def swapped_tokens(rows):
    def swap(ids):
        ids[2], ids[3] = int(ids[3]), int(ids[2])

    edit(rows, "input_ids", 1, swap)


class MissingRow(RolloutReassembler):
    def _put(self, ids, rows):
        kept = type(rows)(rows.fields[:-1], rows.tags[:-1], rows.lengths[:-1])
        super()._put(ids[:-1], kept)


class Twice(RolloutReassembler):
    def _put(self, ids, rows):
        super()._put(ids, rows)
        super()._put(ids, rows)


class ClearsOthers(RolloutReassembler):
    def _clear_staging(self, keys, **named):
        super()._clear_staging([*keys, "another_g0/c1"], **named)


class ClearsNothing(RolloutReassembler):
    def _clear_staging(self, keys, **named):
        pass


WRONG = {
    "missing row": (MissingRow, "GROUP-2", ("row", 2, "g1_g2", None)),
    "swapped token": (wrong(swapped_tokens), "GROUP-15", ("input_ids", 1, "g1_g1", 2)),
    "wrong mask": (
        wrong(lambda rows: edit(rows, "token_mask", 0, lambda mask: mask[4:5].fill_(1.0))),
        "GROUP-15",
        ("token_mask", 0, "g1_g0", 4),
    ),
    "training placeholder": (
        wrong(lambda rows: edit(rows, "sample_mask", 2, lambda mask: mask.fill_(1.0))),
        "GROUP-3",
        ("sample_mask", 2, "g1_g2", None),
    ),
    "wrong reward": (
        wrong(lambda rows: edit(rows, "total_reward", 1, lambda reward: reward.fill_(0.25))),
        "GROUP-12",
        ("total_reward", 1, "g1_g1", None),
    ),
    "another's keys cleared": (ClearsOthers, "GROUP-4", ("cleared keys", None, None, None)),
    "nothing cleared": (ClearsNothing, "GROUP-5", ("cleared keys", None, None, None)),
    "published twice": (Twice, "GROUP-5", ("puts", None, None, None)),
    "wrong weight version": (
        wrong(lambda rows: rows.tags[0].update(weight_version=5)),
        "GROUP-9",
        ("tag weight_version", 0, "g1_g0", None),
    ),
    "wrong tag": (
        wrong(lambda rows: rows.tags[1].update(prompt_idx=8)),
        "GROUP-17",
        ("tag prompt_idx", 1, "g1_g1", None),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_publications_are_named(tmp_path, name):
    kind, invariant, place = WRONG[name]
    (verdict,) = verdicts(record(tmp_path / "run.jsonl", kind))
    assert verdict.broken[0][0] == invariant
    one = verdict.differences[0]
    assert (one.what, one.row, one.sample_id, one.position) == place


def test_a_wrong_sentinel_is_named(tmp_path):
    """Expert 0 where no route was captured trains another expert than the one that ran."""

    def expert_0(rows):
        edit(rows, "routed_experts", 2, lambda routes: routes.fill_(0))

    routed = {"router_replay_enabled": True, "routed_dims": (1, 2)}
    assert verdicts(record(tmp_path / "right.jsonl", **routed))[0].held
    (verdict,) = verdicts(record(tmp_path / "wrong.jsonl", wrong(expert_0), **routed))
    assert verdict.broken[0] == ("ROUTE-11", verdict.broken[0][1])
    one = verdict.differences[0]
    assert (one.what, one.row, one.position, one.expected, one.found) == ("routed_experts", 2, 0, "-1", "0")


def test_a_group_that_is_published_again(tmp_path, run):
    """By itself the second publication is right, placeholders over good rows."""
    assert all(verdict.held for verdict in verdicts(record(tmp_path / "run.jsonl", groups=("g1", "g2"))))
    line = (tmp_path / "run.jsonl").read_text().splitlines()[0]
    with (tmp_path / "run.jsonl").open("a") as file:
        file.write(line + "\n")
    result = run("run.jsonl")
    assert result.exit_code == 1
    assert "run.jsonl:3: group g1" in result.output
    assert "RERUN  published before: line 1 of" in result.output
    assert run("run.jsonl", "--skip", "RERUN").exit_code == 0


class Failing(MemoryDataPlane):
    """The first call of one method fails."""

    method = ""

    def __getattribute__(self, name):
        if name == type(self).method:
            type(self).method = ""
            raise ConnectionError("out of order")
        return super().__getattribute__(name)


@pytest.mark.parametrize("method", ["put_samples", "clear_samples", "get_samples"])
def test_failed_operations(tmp_path, method):
    """They are the contract's failures, not wrong publications; after a failed put a group may be tried again."""
    plane = Failing()
    with Recorder(tmp_path / "run.jsonl", plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        positional, named = group(plane, "g1")
        Failing.method = method
        with pytest.raises((PublishError, CleanupError, ConnectionError)):
            reassembler.finalize_group(*positional, **named)
        reassembler.finalize_group(*positional, **named)
    first, second = verdicts(recorder.path)
    assert (first.held, second.held) == (True, True)
    assert first.final is (method == "clear_samples")


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def many(path, number, size=16, example=WORKED_EXAMPLE):
    """A file of so many groups: four recorded ones over and over, each under its own id."""
    plane = MemoryDataPlane()
    with Recorder(path.with_suffix(".part"), plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        for index in range(4):
            lost = min(index, size - 1)
            rollouts = [rehash(example.renamed(f"r{index}-{one}")) for one in range(size)]
            for history in rollouts:
                for key, row in history.rows().items():
                    plane.put_samples(sample_ids=[key], partition_id="staging", fields=row_fields(dict(row)))
            reassembler.finalize_group(
                "<group>",
                [history.rollout_id for history in rollouts],
                [history.raw_receipt() for history in rollouts[: size - lost]] + [None] * lost,
                [1.0] * size,
                mask_sample=[False] * size,
                fallback_weight_version=0,
                prompt_idx=index,
                canonical_sample_ids=[f"<group>_g{one}" for one in range(size)],
            )
    templates = recorder.path.read_text().splitlines(keepends=True)
    with path.open("w") as file:
        for index in range(number):
            file.write(templates[index % 4].replace("<group>", f"group-{index}"))
    return path


def test_ten_thousand_groups(tmp_path, run):
    """16 rollouts of one call each, in a file of half a gigabyte; every row is judged by the spec."""
    example = evolve(WORKED_EXAMPLE, calls=WORKED_EXAMPLE.calls[:1], terminal_call_id="c1")
    path = many(tmp_path / "run.jsonl", 10_000, example=example)
    result = run(path, "--report", tmp_path / "report.json", "--jobs", "2")
    assert result.exit_code == 0, result.output
    total = json.loads((tmp_path / "report.json").read_text())["total"]
    assert (total["lines"], total["held"], total["rows"]) == (10_000, 10_000, 160_000)
    assert total["placeholders"] == 15_000
    path.unlink()


def damaged(path):
    """A file of 150 groups: line 71 cannot be read, line 141 is not as required."""
    lines = many(path, 150, 2).read_text().splitlines(keepends=True)
    lines[70] = lines[70].replace('"prompt_idx":', '"prompt_idx": 1, "was":')
    lines[140] = lines[140].replace('"group_id": "group-140"', '"group_id": "group-x"', 1)
    path.write_text("".join(lines))
    return path


def test_jobs_do_not_change_the_report(tmp_path, run):
    path = damaged(tmp_path / "run.jsonl")
    reports = []
    for jobs in ("1", "2"):
        assert run(path, "--jobs", jobs, "--report", "report.json").exit_code == 2
        reports.append(json.loads((tmp_path / "report.json").read_text()))
        del reports[-1]["seconds"]
    assert reports[0] == reports[1]
    assert [(found["line"], "unreadable" in found) for found in reports[0]["findings"]] == [(71, True), (141, False)]


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_files(tmp_path, run, zipped):
    path = many(tmp_path / "whole.jsonl", 8, 2)
    data = path.read_bytes()
    cut = tmp_path / "cut.jsonl"
    if zipped:
        packed = gzip.compress(data)
        cut.write_bytes(packed[: len(packed) - 20])
    else:
        cut.write_bytes(data[: len(data) - 20])
    result = run(cut, "--report", "report.json")
    assert result.exit_code == 2
    assert ("cut.jsonl:8: the file ends within the line" in result.output) is not zipped
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["total"]["unreadable"] == 1
    assert report["total"]["held"] == report["total"]["lines"] >= (0 if zipped else 7)


BROKEN_LINES = {
    "not JSON": lambda line: line[:100],
    "format 'rollproof-audit-9', expected": lambda line: line.replace("audit-1", "audit-9"),
    "'effects' is missing": lambda line: line.replace('"effects"', '"affects"'),
    "config: pad_token_id is 'x'": lambda line: line.replace('"pad_token_id": 0', '"pad_token_id": "x"'),
    "a column has": lambda line: line.replace('"lengths": [4, 3]', '"lengths": [4, 2]'),
    "but the line names none": lambda line: line.replace('"data": "', '"data": {"tensor": "t0"}, "was": "', 1),
    "effect 'take', expected": lambda line: line.replace('{"clear":', '{"take":'),
    "unexpected keyword argument 'colour'": lambda line: line.replace('"prompt_idx":', '"colour": 1, "prompt_idx":', 1),
    "is no plain file name": lambda line: line.replace('"effects"', '"shard":"../x","effects"'),
}


@pytest.mark.parametrize("message", BROKEN_LINES)
def test_corrupt_lines_are_named_and_the_others_judged(tmp_path, run, message):
    path = many(tmp_path / "run.jsonl", 4, 2)
    lines = path.read_text().splitlines()
    assert BROKEN_LINES[message](lines[2]) != lines[2]
    lines[2] = BROKEN_LINES[message](lines[2])
    path.write_text("\n".join(lines) + "\n")
    result = run(path, "--report", "report.json")
    assert result.exit_code == 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["total"]["held"] == 3
    (found,) = report["findings"]
    assert found["line"] == 3
    assert message in found["unreadable"]


def test_large_tensors_lie_in_shards(tmp_path, run):
    path, plane = tmp_path / "run.jsonl", MemoryDataPlane()
    with Recorder(path, plane, inline_bytes=16) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        for group_id in ("g1", "g2"):
            positional, named = group(plane, group_id)
            reassembler.finalize_group(*positional, **named)
    assert [shard.name for shard in sorted(recorder.shards.iterdir())] == ["000001.safetensors", "000002.safetensors"]
    assert run(path).exit_code == 0
    (recorder.shards / "000002.safetensors").write_bytes(b"short")
    result = run(path)
    assert result.exit_code == 2
    assert "run.jsonl:2: shard 000002.safetensors" in result.output


def test_resume(tmp_path, run):
    """An audit that went on after an interruption reports what one without it does, and picks up appended groups."""
    whole = many(tmp_path / "whole.jsonl", 200, 2).read_bytes().splitlines(keepends=True)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(whole[:120]) + whole[120][:50])
    first = run(path, "--state", "state", "--report", "report.json")
    assert first.exit_code == 2
    assert "run.jsonl:121: the file ends within the line" in first.output
    path.write_bytes(b"".join([*whole[:150], whole[3], *whole[150:]]))
    second = run(path, "--state", "state", "--resume", "--report", "report.json")
    assert second.exit_code == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["total"]["lines"], report["total"]["falsified"]) == (201, 1)
    assert report["findings"][0]["line"] == 151
    path.write_bytes(b"".join(whole[1:]))
    other = run(path, "--state", "state", "--resume")
    assert other.exit_code == 2
    assert "not the file that state is about" in other.output


def test_interrupt(tmp_path, run, monkeypatch):
    path = many(tmp_path / "run.jsonl", 200, 2)
    calls = count()

    def interrupted(*arguments):
        if next(calls) == 130:
            raise KeyboardInterrupt
        return judge(*arguments)

    monkeypatch.setattr("rollproof.properties.audit.run.judge", interrupted)
    first = run(path)
    assert first.exit_code == 130
    assert "the same command with --resume goes on" in first.output
    result = run(path, "--resume", "--report", "report.json")
    assert result.exit_code == 0
    assert json.loads((tmp_path / "report.json").read_text())["total"]["held"] == 200
    assert next(calls) < 300
    assert not (tmp_path / "run.jsonl.audit-state").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.jsonl"], "absent.jsonl: No such file"),
        (["run.jsonl", "--skip", "GROUP-99"], "GROUP-99: no such invariant"),
        (["run.jsonl", "--resume"], "run.jsonl.audit-state: no audit to resume"),
        (["run.jsonl", "--state", "run.jsonl"], "run.jsonl: no audit state can be kept there"),
        (["run.jsonl", "--report", "no/such/folder.json"], "no/such/folder.json: No such file"),
    ],
)
def test_wrong_calls(tmp_path, run, arguments, message):
    path = record(tmp_path / "run.jsonl")
    before = path.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert path.read_bytes() == before


def test_metrics_of_other_implementations(tmp_path, run):
    """Own metrics are no fault; missing ones are GROUP-13's alone, so that skipping it hides nothing else."""

    class Counts(RolloutReassembler):
        def _publish(self, request, outcomes):
            published = super()._publish(request, outcomes)
            published.metrics = {"mine/speed": 1.0, "finalize/invalid_row_rate": 0.0}
            return published

    class CountsAndTags(Counts):
        def _put(self, ids, rows):
            rows.tags[1]["prompt_idx"] = 8
            super()._put(ids, rows)

    (verdict,) = verdicts(record(tmp_path / "counts.jsonl", Counts))
    assert [name for name, _ in verdict.broken] == ["GROUP-13"]
    record(tmp_path / "tags.jsonl", CountsAndTags)
    assert run("counts.jsonl", "--skip", "GROUP-13").exit_code == 0
    assert run("tags.jsonl", "--skip", "GROUP-13").exit_code == 1


def test_the_schema_refuses_other_lines(tmp_path):
    line = json.loads(record(tmp_path / "run.jsonl").read_text())
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    validator.validate(line)
    for broken in (
        line | {"format": "rollproof-audit-2"},
        line | {"effects": [{"take": {}}]},
        {name: value for name, value in line.items() if name != "config"},
        line | {"colour": 1},
    ):
        assert not validator.is_valid(broken)
