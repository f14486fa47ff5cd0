"""``rollproof audit`` over files: many groups, damaged lines, interruptions and wrong calls."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sqlite3
from importlib.resources import files
from itertools import count

import jsonschema
import pytest
from attrs import evolve
from click.testing import CliRunner
from recordings import NAMES, damaged, group, many, record, verdicts

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.cli import main
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE

SCHEMA = json.loads(files("rollproof.properties.audit").joinpath("schema.json").read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["audit", "--jobs", "1", *map(str, arguments)])


@pytest.mark.parametrize("groups", [200, pytest.param(10_000, marks=pytest.mark.deep)])
def test_an_audit_of_many_groups(tmp_path, run, groups):
    """16 rollouts of one call each; 10,000 of them make a file of half a gigabyte. The spec judges every row."""
    example = evolve(WORKED_EXAMPLE, calls=WORKED_EXAMPLE.calls[:1], terminal_call_id="c1")
    path = many(tmp_path / "run.jsonl", groups, example=example)
    result = run(path, "--report", tmp_path / "report.json", "--jobs", "2")
    assert result.exit_code == 0, result.output
    total = json.loads((tmp_path / "report.json").read_text())["total"]
    assert (total["lines"], total["held"], total["rows"]) == (groups, groups, 16 * groups)
    assert total["placeholders"] == 1.5 * groups
    path.unlink()


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
    "nested more than 250 deep": lambda line: "[" * 100_000,
    "a put of 1000000000 rows": lambda line: line.replace('"rows": {"count": 2', '"rows": {"count": 1000000000'),
    "needs about": lambda line: line.replace('"routed_dims": null', '"routed_dims": [30000, 30000]').replace(
        '"router_replay_enabled": false', '"router_replay_enabled": true'
    ),
    "expected a tuple of sizes": lambda line: line.replace('"shape": []', '"shape": [-1]'),
    "is not a plain file name": lambda line: line.replace('"effects"', '"shard":"../x","effects"'),
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


def test_audit_resumes_where_it_ended(tmp_path, run):
    """An audit that continued after an interruption reports what one without it does, and picks up appended groups."""
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


@pytest.mark.parametrize("content", ["{", "[" * 10_000, '{"colour": 1}', "null"])
def test_a_damaged_state_is_one_line(tmp_path, run, content):
    path = many(tmp_path / "run.jsonl", 2, 1)
    run(path, "--state", "state")
    with sqlite3.connect("state") as database:
        database.execute("UPDATE files SET tally = ?", (content,))
    result = run(path, "--state", "state", "--resume")
    assert result.exit_code == 2
    assert "state: not an audit state" in result.output
    assert "Traceback" not in result.output


def test_audit_that_is_interrupted_reports_what_it_found(tmp_path, run, monkeypatch):
    path = many(tmp_path / "run.jsonl", 200, 2)
    calls = count()

    def interrupted(*arguments):
        if next(calls) == 130:
            raise KeyboardInterrupt
        return judge(*arguments)

    monkeypatch.setattr("rollproof.properties.audit.run.judge", interrupted)
    first = run(path)
    assert first.exit_code == 130
    assert "the same command with --resume continues" in first.output
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
        (["run.jsonl", "--state", "run.jsonl"], "run.jsonl: cannot keep an audit state there"),
        (["run.jsonl", "--report", "no/such/folder.json"], "no/such/folder.json: No such file"),
    ],
)
def test_audit_refuses_wrong_calls(tmp_path, run, arguments, message):
    path = record(tmp_path / "run.jsonl")
    before = path.read_bytes()
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert path.read_bytes() == before


def test_metrics_of_other_implementations(tmp_path, run):
    """Own metrics are not a fault; missing ones are GROUP-13's alone, so that skipping it hides nothing else."""

    class Counts(RolloutReassembler):
        def _publish(self, *arguments):
            published = super()._publish(*arguments)
            return dataclasses.replace(published, metrics={"mine/speed": 1.0, "finalize/invalid_row_rate": 0.0})

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
