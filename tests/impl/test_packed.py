"""Rows of segments, as NeMo RL's class of this name behaves."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from rollproof.impl import packed
from rollproof.impl.packed import PackedTensor

A, B = torch.arange(6.0).reshape(3, 2), torch.arange(4.0).reshape(2, 2)


def same(left, right):
    return [None if one is None else one.tolist() for one in left.tensors] == [
        None if one is None else one.tolist() for one in right.tensors
    ]


def test_rows_are_tensors_or_nothing():
    rows = PackedTensor([A, None, B], dim_to_pack=0)
    assert len(rows) == 3
    assert [one is not None for one in rows.tensors] == [True, False, True]
    assert rows.logical_segment_counts_by_row() == [1, 0, 1]
    assert rows.row_shapes() == [[[3, 2]], [], [[2, 2]]]
    assert torch.equal(rows.as_tensor(), torch.cat([A, B]))
    assert len(PackedTensor(A, 0)) == 1
    assert PackedTensor(A, 0).as_tensor() is A
    assert PackedTensor([None, None], 0).as_tensor() is None
    with pytest.raises(ValueError, match="got no row, expected at least one"):
        PackedTensor([], 0)


def test_slices_repeat_and_reorder_rows():
    rows = PackedTensor([A, None, B], 0)
    assert same(rows.slice([2, 0, -1, 1]), PackedTensor([B, A, B, None], 0))
    assert same(rows.slice(torch.tensor([1])), PackedTensor([None], 0))
    assert len(rows.slice([])) == 0
    with pytest.raises(IndexError):
        rows.slice([3])


def test_rows_are_put_together():
    whole = PackedTensor.concat([PackedTensor(A, 0), PackedTensor.empty_rows_like(PackedTensor(A, 0), 2)])
    assert same(whole, PackedTensor([A, None, None], 0))
    assert len(PackedTensor.empty_like(whole)) == 3
    flat = PackedTensor.flattened_concat([PackedTensor([A, B], 0), PackedTensor([None], 0)])
    assert flat.row_shapes() == [[[5, 2]], []]
    with pytest.raises(ValueError, match="dim_to_pack"):
        PackedTensor.concat([PackedTensor(A, 0), PackedTensor(A, 1)])
    with pytest.raises(ValueError, match="at least one"):
        PackedTensor.concat([])
    with pytest.raises(ValueError, match="at least 0"):
        PackedTensor.empty_rows_like(whole, -1)


def test_devices_and_dtypes():
    rows = PackedTensor([A, torch.tensor([1])], 0)
    assert rows.to("meta") is rows
    assert {one.device.type for one in rows.tensors} == {"meta"}
    converted = PackedTensor([A, torch.tensor([1])], 0).to_dtype(torch.bfloat16)
    assert [one.dtype for one in converted.tensors] == [torch.bfloat16, torch.int64]
    assert PackedTensor([A], 0).as_tensor("meta").is_meta


def test_padding_to_the_largest():
    rows = PackedTensor([torch.ones(1, 2, 3), torch.ones(2, 3, 1)], 0, pad_to_max_shape=True)
    whole = rows.as_tensor()
    assert whole.shape == (3, 3, 3)
    assert whole.sum() == 12
    assert rows.slice([0]).pad_to_max_shape
    other = PackedTensor([torch.ones(2, 1), torch.ones(1, 3)], -1, pad_to_max_shape=True)
    assert other.as_tensor().shape == (2, 4)
    with pytest.raises(ValueError, match="dimensions"):
        PackedTensor([A, A[0]], 0, pad_to_max_shape=True).as_tensor()


@pytest.mark.parametrize(
    "rows", [[A, None, B], [A], [torch.ones(1, 3, 2), torch.ones(2, 3)], [None, A.to(torch.int32)]]
)
def test_the_wire_form_round_trips(rows):
    before = PackedTensor(rows, 0)
    nested, shapes = before.to_wire()
    assert nested.is_nested
    assert [one.dim() for one in nested.unbind()] == [1] * len(rows)
    assert shapes == before.row_shapes()
    after = PackedTensor.from_wire(nested, shapes)
    assert same(before, after)
    assert after.to_wire()[1] == shapes


def test_rows_of_several_segments_round_trip():
    two = PackedTensor.from_wire(torch.nested.nested_tensor([torch.arange(7.0)], layout=torch.jagged), [[[2, 2], [3]]])
    assert two.row_shapes() == [[[2, 2], [3]]]
    nested, shapes = two.to_wire()
    assert same(two, PackedTensor.from_wire(nested, shapes))
    assert [one.tolist() for one in two.iter_logical_segments()] == [[[0.0, 1.0], [2.0, 3.0]], [4.0, 5.0, 6.0]]


def test_what_has_no_wire_form():
    assert PackedTensor([None, None], 0).to_wire() == (None, [])
    with pytest.raises(NotImplementedError, match="only 0"):
        PackedTensor([A], 1).to_wire()
    nested, _ = PackedTensor([A, B], 0).to_wire()
    with pytest.raises(ValueError, match="shapes: got 1, expected 2"):
        PackedTensor.from_wire(nested, [[[3, 2]]])
    nothing = torch.nested.nested_tensor_from_jagged(torch.zeros(0), torch.zeros(1, dtype=torch.int64))
    assert PackedTensor.from_wire(nothing, []) is None


def test_nemo_rls_own_class_is_used_where_it_is_installed(monkeypatch):
    class Theirs(PackedTensor):
        pass

    names = ["nemo_rl", "nemo_rl.data", "nemo_rl.data.multimodal_utils"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].PackedTensor = Theirs
    packed._packed_class.cache_clear()
    try:
        assert type(packed.packed_row(A)) is Theirs
    finally:
        packed._packed_class.cache_clear()
