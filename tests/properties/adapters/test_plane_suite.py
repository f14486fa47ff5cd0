"""``rollproof check-plane``: our planes keep the protocol, and every wrong answer is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane import MissingRows, new_answers
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.properties.adapters.plane_suite import CHECKS, check_plane
from rollproof.properties.cli import main

pytestmark = pytest.mark.xdist_group("ray")


def complaints(plane: Any) -> dict[str, str]:
    return {name: complaint for name, complaint in check_plane(plane) if complaint is not None}


@pytest.mark.parametrize("dense", [False, True])
def test_the_memory_keeps_the_protocol(dense):
    assert complaints(MemoryDataPlane(dense=dense)) == {}


def test_transfer_queue_keeps_the_protocol(queue):
    assert complaints(queue) == {}


class Lies(MemoryDataPlane):
    """The memory's data plane, except for one method of a subclass."""


class Reorders(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        return super().get_samples(sorted(sample_ids), partition_id, select_fields)


class KeyErrors(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        for key in sample_ids:
            if key not in self.sample_ids(partition_id):
                raise KeyError(key)
        return super().get_samples(sample_ids, partition_id, select_fields)


class ValueErrors(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        try:
            return super().get_samples(sample_ids, partition_id, select_fields)
        except MissingRows as error:
            raise ValueError("keys or partition were not found!") from error


class MakesUpRows(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        there = self.sample_ids(partition_id)
        known = [key if key in there else there[0] for key in sample_ids if there]
        return super().get_samples(known, partition_id, select_fields)


class AnswersNone(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        if set(sample_ids) - set(self.sample_ids(partition_id)):
            return None
        return super().get_samples(sample_ids, partition_id, select_fields)


class RaisesForColumns(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        for name in select_fields:
            if name not in answer:
                raise KeyError(name)
        return answer


class FillsColumns(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        for name in select_fields:
            if name not in answer:
                answer[name] = torch.zeros(answer.batch_size[0], 1)
        return answer


class DropsRowsWithoutAColumn(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        rows = self._rows.get(partition_id, {})
        whole = [key for key in sample_ids if set(select_fields) <= set(rows.get(key, {}))]
        return super().get_samples(whole, partition_id, select_fields) if whole else TensorDict({}, batch_size=[0])


class Casts(Lies):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        if fields is not None:
            fields = fields.apply(lambda value: value.to(torch.int32) if value.dtype is torch.int64 else value)
        super().put_samples(sample_ids, partition_id, fields, tags)


class RoundsSubnormals(Lies):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        if fields is not None:
            fields = fields.apply(lambda value: value + 0.0 if value.dtype is torch.float32 else value)
        super().put_samples(sample_ids, partition_id, fields, tags)


class SharesMemory(Lies):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        super().put_samples(sample_ids, partition_id, fields, tags)
        if fields is not None and "length" in fields:
            for index, key in enumerate(sample_ids):
                self._rows[partition_id][key]["length"] = fields["length"][index]


class PutsLater(Lies):
    waiting: Any = None

    def put_samples(self, *arguments, **options):
        waiting, self.waiting = self.waiting, (arguments, options)
        if waiting is not None:
            super().put_samples(*waiting[0], **waiting[1])


class KeepsTheFirst(Lies):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        if set(sample_ids) - set(self.sample_ids(partition_id)):
            super().put_samples(sample_ids, partition_id, fields, tags)


class ClearsNothing(Lies):
    def clear_samples(self, sample_ids, partition_id):
        return None


class ClearsEverything(Lies):
    def clear_samples(self, sample_ids, partition_id):
        super().clear_samples(None, partition_id)


class RefusesAbsentIds(Lies):
    def clear_samples(self, sample_ids, partition_id):
        for key in sample_ids:
            if key not in self.sample_ids(partition_id):
                raise KeyError(key)
        super().clear_samples(sample_ids, partition_id)


class StoresEqualRowsOnce(Lies):
    def get_samples(self, sample_ids, partition_id, select_fields):
        rows = self._rows.get(partition_id, {})
        content = [str(sorted(rows.get(key, {}).items())) for key in sample_ids]
        distinct = [key for index, key in enumerate(sample_ids) if content[index] not in content[:index]]
        return super().get_samples(distinct, partition_id, select_fields)


class OnePartition(Lies):
    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        super().put_samples(sample_ids, partition_id.removesuffix("/other"), fields, tags)

    def get_samples(self, sample_ids, partition_id, select_fields):
        return super().get_samples(sample_ids, partition_id.removesuffix("/other"), select_fields)


class ReusesAnswers(Lies):
    lent: Any = ()

    @new_answers
    def get_samples(self, sample_ids, partition_id, select_fields):
        for row in self.lent:
            row.fill_(1)
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        self.lent = [row for _, column in answer.items() for row in column_rows(column)]
        return answer


class AnswersStoredRows(Lies):
    @new_answers
    def get_samples(self, sample_ids, partition_id, select_fields):
        answer = super().get_samples(sample_ids, partition_id, select_fields)
        stored = [self._rows[partition_id][key] for key in sample_ids if key in self.sample_ids(partition_id)]
        columns = {
            name: NonTensorStack(*(row[name] for row in stored)) if name == "ids" else column
            for name, column in answer.items()
        }
        return TensorDict(columns, batch_size=answer.batch_size)


class ReusesUnmarked(ReusesAnswers):
    """Right: it does not say that its answers are new."""

    def get_samples(self, sample_ids, partition_id, select_fields):
        return super().get_samples(sample_ids, partition_id, select_fields)


FOUND_BY = {
    Reorders: "rows_in_order",
    StoresEqualRowsOnce: "rows_of_one_length",
    KeyErrors: "total_miss",
    ValueErrors: "total_miss",
    MakesUpRows: "partial_miss",
    AnswersNone: "partial_miss",
    RaisesForColumns: "absent_column",
    FillsColumns: "absent_column",
    DropsRowsWithoutAColumn: "absent_column",
    Casts: "rows_in_order",
    RoundsSubnormals: "rows_in_order",
    SharesMemory: "put_is_durable",
    PutsLater: "put_is_durable",
    KeepsTheFirst: "put_again",
    ClearsNothing: "clear_removes",
    ClearsEverything: "clear_removes",
    RefusesAbsentIds: "clear_removes",
    OnePartition: "partitions_apart",
    ReusesAnswers: "answers_are_new",
    AnswersStoredRows: "answers_are_new",
}


@pytest.mark.parametrize("lie", FOUND_BY, ids=lambda lie: lie.__name__)
def test_a_lie_is_found(lie):
    assert FOUND_BY[lie] in complaints(lie())


def test_buffers_may_be_used_again_where_nothing_else_is_said():
    assert complaints(ReusesUnmarked()) == {}


def test_every_check_finds_something():
    assert {*FOUND_BY.values()} == {check.__name__ for check in CHECKS}


def test_the_command():
    done = CliRunner().invoke(main, ["check-plane", "memory"])
    assert (done.exit_code, done.output.count("ok  ")) == (0, len(CHECKS))
    assert "memory: keeps the protocol" in done.output
    broken = CliRunner().invoke(main, ["check-plane", f"{__name__}:ValueErrors"])
    assert broken.exit_code == 1, broken.output
    assert "expected MissingRows or fewer rows" in broken.output


@pytest.mark.parametrize("name", ["unknown", "no.such:Plane", "json:JSONDecoder", "json:nothing"])
def test_the_command_says_what_is_no_plane(name):
    done = CliRunner().invoke(main, ["check-plane", name])
    assert done.exit_code == 2
    assert name in done.output
