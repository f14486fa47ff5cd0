"""Reading columns of a data plane."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.columns import HeldRows, Jagged, column_rows, read_ragged, read_scalars


def jagged(values, offsets):
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets))


def test_read_ragged_refuses_more_than_one_value_per_token() -> None:
    values = torch.zeros((3, 2), dtype=torch.int64)
    answer = TensorDict({"x": jagged(values, [0, 1, 3])}, batch_size=[2])
    with pytest.raises(ValueError, match=r"shape \[3, 2\], expected torch.int64, a vector per row"):
        read_ragged(answer, "x", torch.int64)


COLUMNS = {
    "vectors": jagged(torch.arange(9), [0, 1, 4, 4, 9]),
    "pairs": jagged(torch.arange(12.0).reshape(6, 2), [0, 2, 3, 4, 6]),
    "offset": jagged(torch.arange(9), [2, 3, 5, 6, 7]),
    "turned": jagged(torch.arange(10).reshape(5, 2), [0, 1, 2, 4, 5]).transpose(1, 2),
    "scalars": torch.arange(4),
    "wide": torch.arange(8).reshape(4, 2),
    "strided": torch.nested.nested_tensor([torch.zeros(size) for size in (1, 2, 3, 4)]),
    "mixed": NonTensorStack(torch.zeros(2), torch.zeros(2, dtype=torch.int8), torch.tensor(1), torch.ones(1, 1)),
}
EVERY = {"mixed": COLUMNS["mixed"].tolist(), "offset": torch.arange(9)[2:7].split([1, 2, 1, 1])}
"""The rows of the columns that torch cannot unbind."""


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 2], [3], [2, 0], [1, 1]])
@pytest.mark.parametrize("name", COLUMNS)
def test_held_rows_are_the_rows_of_the_answer(name, rows) -> None:
    every = EVERY.get(name) or COLUMNS[name].unbind()
    answer = HeldRows.of(TensorDict({name: COLUMNS[name]}, batch_size=[4])).take(rows, [name])
    found = column_rows(answer.get(name), name)
    assert [(row.dtype, row.tolist()) for row in found] == [(every[row].dtype, every[row].tolist()) for row in rows]
    assert answer.batch_size == (len(rows),)


def test_rows_that_are_kept_survive_the_memory_of_the_answer() -> None:
    values, scalars = torch.arange(4), torch.arange(2)
    held = HeldRows.of(TensorDict({"x": jagged(values, [0, 3, 4]), "y": scalars}, batch_size=[2]))
    scalars.fill_(5)
    held.keep()
    values.fill_(9)
    scalars.fill_(9)
    held.keep()
    answer = held.take([1], ["x", "y"])
    assert read_ragged(answer, "x", torch.int64).values.tolist() == [3]
    assert read_scalars(answer, "y", torch.int64).tolist() == [5]
    assert read_scalars(answer, "x", torch.int64).tolist() == [3]


@pytest.mark.parametrize(
    "column",
    [
        jagged(torch.arange(4), [0, 3, 5]),
        jagged(torch.arange(4), [0, 3, 1]),
        jagged(torch.zeros(1).expand(2**40), [0, 1, 2]),
        jagged(torch.arange(4), [0, 1, 2, 3]),
        torch.zeros(1).expand(2**40)[None].expand(2, 2**40),
        NonTensorStack("a", "b"),
    ],
    ids=["past the end", "descending", "repeated", "three rows", "repeated and dense", "no tensors"],
)
def test_held_rows_leave_out_what_is_not_a_column_of_rows(column) -> None:
    answer = TensorDict({"x": torch.arange(2)}, batch_size=[2])
    held = HeldRows.of(type("Answer", (), {"batch_size": [2], "items": lambda self: {"x": column}.items()})())
    assert held.columns == {}
    assert HeldRows.of(answer).columns.keys() == {"x"}


def test_rows_of_a_jagged_column_must_be_within_it() -> None:
    with pytest.raises(ValueError, match="expected ascending ones within 2 values"):
        column_rows(Jagged(torch.arange(2), torch.tensor([0, 3])), "x")
