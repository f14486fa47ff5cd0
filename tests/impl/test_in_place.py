"""Routes of a group are written where they are published, and pixels are published from where they were read."""

from __future__ import annotations

import pytest
import torch
from groups import OPTIONS, REWARDS, staged_group

from benchmarks.floor import Shape
from benchmarks.inputs import fill
from rollproof.impl.columns import HeldRows, Jagged
from rollproof.impl.dataplane import has_new_answers, new_answers
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane
from rollproof.impl.host_memory import LARGE, concatenated, copied, empty
from rollproof.impl.in_place import GroupMemory, InPlace, back_to_back, is_at, joined, owned


def test_parts_that_fit_are_back_to_back():
    column = InPlace(5)
    assert column.column(0, (2,), torch.int16) is None
    first, second = column.part(0, 2, (2,), torch.int16), column.part(2, 3, (2,), torch.int16)
    first.fill_(1)
    second.fill_(2)
    assert column.column(5, (2,), torch.int16).tolist() == [[1, 1]] * 2 + [[2, 2]] * 3
    assert is_at(first, column.column(2, (2,), torch.int16))
    assert not is_at(second, column.column(3, (2,), torch.int16))


@pytest.mark.parametrize(
    ("start", "count", "shape", "dtype"),
    [(0, 6, (2,), torch.int16), (3, 3, (2,), torch.int16), (0, 1, (3,), torch.int16), (0, 1, (2,), torch.int32)],
    ids=["too many", "too far", "another shape", "another dtype"],
)
def test_parts_that_do_not_fit_have_no_place(start, count, shape, dtype):
    column = InPlace(5)
    assert column.part(0, 1, (2,), torch.int16) is not None
    assert column.part(start, count, shape, dtype) is None


def test_parts_have_no_place_where_there_is_no_memory_for_all():
    column = InPlace(2**40)
    assert column.part(0, 1, (2**20,), torch.int16) is None
    assert column.column(1, (2**20,), torch.int16) is None


def test_joined_is_a_view_of_what_is_back_to_back():
    whole = torch.arange(6)
    assert back_to_back([whole[2:3], whole[3:]]).tolist() == whole[2:].tolist()
    assert joined([whole[:2], whole[2:5], whole[5:]]).data_ptr() == whole.data_ptr()
    for parts in ([whole[:2], whole[3:]], [whole[3:], whole[:3]], [whole[:3], torch.arange(3)], [whole[::2]]):
        found = joined(parts)
        assert found.tolist() == torch.cat(parts).tolist()
        assert found.data_ptr() != whole.data_ptr()


def test_what_is_published_holds_on_to_little_else():
    whole = torch.arange(100)
    assert owned(whole[:80]).data_ptr() == whole.data_ptr()
    assert owned(whole[:79]).untyped_storage().nbytes() == 79 * 8
    assert joined([whole[:10], whole[10:20]]).untyped_storage().nbytes() == 20 * 8


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.int64])
def test_large_copies_hold_the_same_bytes(size, dtype):
    part = torch.arange(size // dtype.itemsize + 1).to(dtype)[:, None]
    whole = concatenated([part, part[::2]])
    assert torch.equal(whole, torch.cat([part, part[::2]]))
    assert torch.equal(concatenated([part, part[::2]], out=empty(whole.shape, dtype)), whole)
    again = copied(part)
    assert torch.equal(again, part)
    assert again.data_ptr() != part.data_ptr()


def test_memory_is_as_large_as_what_is_staged():
    tokens = Jagged(torch.arange(9), torch.tensor([1, 4, 9]))
    rows = HeldRows({"token_ids_delta": tokens, "media_imgs": [torch.zeros(3, 2), torch.zeros(1, 1)]}, 2)
    memory = GroupMemory.of(rows, 3)
    assert (memory.routes.limit, memory.pixels.limit) == (8 + 3, 4)
    dense = GroupMemory.of(HeldRows({"token_ids_delta": torch.zeros(2, 4)}, 2), 1)
    assert (dense.routes.limit, dense.pixels.limit) == (8 + 1, 0)


class Keeping(MemoryDataPlane):
    """A data plane that keeps what was read and put as it was handed over."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.put, self.answers = [], [], []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.read.append(list(select_fields))
        self.answers.append(super().get_samples(sample_ids, partition_id, select_fields))
        return self.answers[-1]

    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        if partition_id == "train":
            self.put.append(fields)
        super().put_samples(sample_ids, partition_id, fields, tags)


@pytest.mark.parametrize(("reads", "count"), [("rollout", 3), ("group", 1)])
def test_a_group_with_media_and_routes_is_one_read(make, reads, count):
    plane = Keeping()
    rollout_ids, receipts = staged_group(make, plane, media=True)
    finalizer = make.reassembler(plane, capture_media=True, router_replay_enabled=True, routed_dims=(1, 2), reads=reads)
    group = finalizer.finalize_group("g", rollout_ids, receipts, REWARDS, **OPTIONS)
    assert group.valid_row_count == 2
    assert len(plane.read) == count
    (fields,) = plane.put
    for name in ("routed_experts", "pixel_values"):
        column = fields.get(name)
        assert column.values().untyped_storage().nbytes() <= 1.25 * column.values().nbytes


class KeepingNew(Keeping):
    """A data plane that says that its answers are new."""

    @new_answers
    def get_samples(self, sample_ids, partition_id, select_fields):
        return super().get_samples(sample_ids, partition_id, select_fields)


def test_only_the_method_that_says_so_has_new_answers():
    planes = MemoryDataPlane(), TransferQueueDataPlane(), KeepingNew(), Keeping(), object()
    assert [has_new_answers(plane) for plane in planes] == [True, True, True, False, False]


def published(plane):
    """Publish a group in which all calls have an image; return its pixels, and those of the rows that were read."""
    shape = Shape("two by two", 2, 2, 8, image=32)
    group = shape.build()
    fill(plane, group)
    group.finalize(shape.finalizer(plane, "group"))
    return plane.put[0].get("pixel_values").values(), plane.answers[0].get("media_imgs").values()


def test_pixels_of_new_answers_are_published_from_where_they_were_read():
    pixels, read = published(KeepingNew())
    assert pixels.untyped_storage().data_ptr() == read.untyped_storage().data_ptr()


def test_pixels_of_other_answers_are_copied():
    pixels, read = published(Keeping())
    assert pixels.tolist() == read.flatten().tolist()
    assert pixels.untyped_storage().data_ptr() != read.untyped_storage().data_ptr()
