"""The verdict over recorded groups: it names what was published wrongly."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from recordings import NAMES, group, record, verdicts

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import CleanupError, PublishError, RolloutReassembler
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.cli import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["audit", "--jobs", "1", *map(str, arguments)])


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
