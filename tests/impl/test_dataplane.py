"""The in-memory data plane answers as TransferQueue does, and what it stores is out of reach."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from rollproof.impl.dataplane import DataPlane, MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane


def row(length: int, **columns: torch.Tensor) -> TensorDict:
    fields = {"ids": torch.arange(length)[None], "length": torch.tensor([length]), **columns}
    return TensorDict(fields, batch_size=[1])


@pytest.fixture
def plane() -> MemoryDataPlane:
    plane = MemoryDataPlane()
    for length in (3, 1, 2):
        plane.put_samples([f"r{length}"], "p", row(length), [{"length": length}])
    return plane


def test_memory_data_plane_satisfies_the_protocol(plane):
    assert isinstance(plane, DataPlane)


def test_rows_come_back_in_request_order(plane):
    answer = plane.get_samples(sample_ids=["r2", "r3"], partition_id="p", select_fields=["ids", "length"])
    assert answer.batch_size == torch.Size([2])
    ids = answer.get("ids")
    assert ids.layout is torch.jagged
    assert [item.tolist() for item in ids.unbind()] == [[0, 1], [0, 1, 2]]
    assert answer.get("length").tolist() == [2, 3]


def test_vectors_of_one_length_are_jagged_too(plane):
    plane.put_samples(["again"], "p", row(3))
    assert plane.get_samples(["r3", "again"], "p", ["ids"]).get("ids").layout is torch.jagged


def test_a_dense_plane_answers_rows_of_one_shape_densely():
    plane = MemoryDataPlane(dense=True)
    plane.put_rows({name: {"ids": torch.arange(3), "length": torch.tensor(3)} for name in ("a", "b")}, "p")
    plane.put_samples(["c"], "p", row(2))
    assert plane.get_samples(["a", "b"], "p", ["ids"]).get("ids").tolist() == [[0, 1, 2], [0, 1, 2]]
    different = plane.get_samples(["a", "c"], "p", ["ids", "length"])
    assert [item.tolist() for item in different.get("ids").unbind()] == [[0, 1, 2], [0, 1]]
    assert different.get("length").tolist() == [3, 2]
    assert plane.tags("p") == {"a": {}, "b": {}, "c": {}}


def test_a_partial_miss_gives_fewer_rows(plane):
    answer = plane.get_samples(["r2", "absent", "r1"], "p", ["length"])
    assert answer.get("length").tolist() == [2, 1]


@pytest.mark.parametrize("partition", ["p", "unknown"])
def test_a_total_miss_raises(plane, partition):
    with pytest.raises(MissingRows, match="does not hold all of the rows: absent, missing"):
        plane.get_samples(["absent", "missing"], partition, ["length"])


def test_no_rows_asked_for(plane):
    assert plane.get_samples([], "p", ["length"]).batch_size == torch.Size([0])


def test_a_column_that_some_row_lacks_is_dropped(plane):
    plane.put_samples(["extra"], "p", row(1, more=torch.tensor([7])))
    assert set(plane.get_samples(["extra", "r1"], "p", ["length", "more", "unknown"]).keys()) == {"length"}
    assert set(plane.get_samples(["extra"], "p", ["length", "more"]).keys()) == {"length", "more"}


def test_rows_that_fit_into_no_tensor_come_back_one_by_one(plane):
    plane.put_samples(["float"], "p", TensorDict({"ids": torch.zeros(1, 2)}, batch_size=[1]))
    rows = plane.get_samples(["r2", "float"], "p", ["ids"]).get("ids").tolist()
    assert [item.dtype for item in rows] == [torch.int64, torch.float32]


def test_memory_data_plane_shares_nothing_with_the_caller(plane):
    given = row(2)
    plane.put_samples(["mine"], "p", given, [{"a": 1}])
    given.get("ids").fill_(9)
    for _ in range(2):
        answer = plane.get_samples(["mine"], "p", ["ids", "length"])
        assert answer.get("ids").unbind()[0].tolist() == [0, 1]
        answer.get("ids").values().fill_(9)
        answer.get("length").fill_(9)
    plane.tags("p")["mine"]["a"] = 2
    assert plane.tags("p")["mine"] == {"a": 1}


def test_columns_and_tags_are_updated(plane):
    plane.put_samples(["r1"], "p", TensorDict({"length": torch.tensor([8])}, batch_size=[1]), [{"b": 2}])
    answer = plane.get_samples(["r1"], "p", ["ids", "length"])
    assert answer.get("length").tolist() == [8]
    assert len(answer.get("ids").unbind()[0]) == 1
    plane.put_samples(["r1"], "p", tags=[{"c": 3}])
    assert plane.tags("p")["r1"] == {"length": 1, "b": 2, "c": 3}


def test_batches_of_jagged_rows(plane):
    ids = torch.nested.nested_tensor_from_jagged(torch.arange(5), torch.tensor([0, 2, 5]))
    plane.put_samples(["a", "b"], "q", TensorDict({"ids": ids}, batch_size=[2]))
    assert [item.tolist() for item in plane.get_samples(["b", "a"], "q", ["ids"]).get("ids").unbind()] == [
        [2, 3, 4],
        [0, 1],
    ]


def test_arguments_that_contradict_each_other(plane):
    with pytest.raises(ValueError, match="tags: got 2, expected 1"):
        plane.put_samples(["x"], "p", row(1), [{}, {}])
    with pytest.raises(ValueError, match="batch size"):
        plane.put_samples(["x", "y"], "p", row(1))
    assert plane.sample_ids("p") == ["r3", "r1", "r2"]


def test_memory_data_plane_clears(plane):
    plane.clear_samples(["r1", "absent"], "p")
    plane.clear_samples(["r1"], "unknown")
    assert plane.sample_ids("p") == ["r3", "r2"]
    assert set(plane.tags("p")) == {"r3", "r2"}
    plane.clear_samples(None, "p")
    assert plane.sample_ids("p") == []
    assert plane.tags("p") == {}


def test_memory_data_plane_takes_many_writers():
    plane = MemoryDataPlane()

    def write(start: int) -> None:
        for index in range(50):
            plane.put_samples([f"{start}/{index}"], "p", row(1))

    threads = [threading.Thread(target=write, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plane.sample_ids("p")) == 400
