"""Jagged tensors made by torch's class are those that its function makes."""

from __future__ import annotations

import pickle

import pytest
import torch
from tensordict import TensorDict

from rollproof.impl import nested
from rollproof.impl.nested import nested_from

SHAPES = [(5,), (5, 2), (5, 0, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("offsets", [[0, 5], [0, 0, 3, 5], [0, 2, 5, 5]])
def test_it_is_what_the_public_function_makes(shape, dtype, offsets):
    values, bounds = torch.ones(shape).to(dtype), torch.tensor(offsets)
    ours, theirs = nested_from(values, bounds), torch.nested.nested_tensor_from_jagged(values, bounds)
    assert type(ours) is type(theirs)
    for name in ("layout", "dtype", "device", "is_nested", "requires_grad"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.dim() == theirs.dim()
    assert ours.shape[0] == theirs.shape[0] == len(offsets) - 1
    assert ours.values().data_ptr() == values.data_ptr()
    assert torch.equal(ours.offsets(), bounds)
    for one in (ours, ours.clone(), pickle.loads(pickle.dumps(ours)), TensorDict({"a": ours}, [len(offsets) - 1])["a"]):
        assert [row.tolist() for row in one.unbind()] == [row.tolist() for row in theirs.unbind()]


def test_without_the_class_it_is_the_public_function(monkeypatch):
    monkeypatch.setattr(nested, "_Direct", None)
    assert [row.tolist() for row in nested_from(torch.arange(3), torch.tensor([0, 1, 3])).unbind()] == [[0], [1, 2]]


def test_the_class_is_there():
    """It is not public: where this fails, ``nested_from`` still works, and reads take longer."""
    assert nested._Direct is not None
