"""TransferQueue answers as the in-memory data plane does, and where its answers must not be trusted they are not."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.columns import read_scalars
from rollproof.impl.dataplane import DataPlane, MissingRows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.dataplane.transfer_queue import (
    ColumnConflict,
    TransferQueueDataPlane,
    _aligned,
    _pack,
    _pack_exactly,
    attach,
)
from rollproof.impl.reassembler import PublishError
from rollproof.spec.constants import STEP_TIMES

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture
def partition(queue: TransferQueueDataPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.node.name
    queue.clear_samples(None, request.node.name)


@pytest.fixture
def client(queue) -> Any:
    return attach()


def row(length: int, **columns: torch.Tensor) -> TensorDict:
    fields = {"ids": torch.arange(length)[None], "length": torch.tensor([length]), **columns}
    return TensorDict(fields, batch_size=[1])


def told(answer: Any) -> dict[str, Any]:
    """Return an answer as values: per column its layout, and its rows with their dtypes."""
    return {"rows": answer.batch_size[0]} | {
        name: (
            getattr(column, "layout", None),
            [(row.dtype, row.tolist()) for row in rows(column)],
        )
        for name, column in answer.items()
    }


def rows(column: Any) -> list[torch.Tensor]:
    return list(column.unbind()) if isinstance(column, torch.Tensor) else list(column.tolist())


def outcome(ask: Callable[[], Any]) -> Any:
    try:
        return told(ask())
    except MissingRows as error:
        return type(error)


def filled(plane: Any, partition: str) -> Any:
    for length in (3, 1, 2):
        plane.put_samples([f"r{length}"], partition, row(length), [{"length": length}])
    plane.put_samples(["extra"], partition, row(1, more=torch.tensor([7])), [{}])
    plane.put_samples(["wide"], partition, TensorDict({"ids": torch.ones(1, 2, 2, dtype=torch.int64)}, batch_size=[1]))
    plane.put_samples(["empty"], partition, TensorDict({"ids": torch.zeros(1, 0, dtype=torch.int64)}, batch_size=[1]))
    return plane


ASKED = {
    "request order": (["r2", "r3"], ["ids", "length"]),
    "one length": (["r1", "extra"], ["ids"]),
    "partial miss": (["r2", "absent", "r1"], ["ids"]),
    "total miss": (["absent", "missing"], ["ids"]),
    "nothing asked": ([], ["ids"]),
    "twice": (["r1", "r1"], ["ids"]),
    "a column that some row lacks": (["extra", "r1"], ["ids", "more", "unknown"]),
    "a column that all have": (["extra"], ["length", "more"]),
    "no column that all have": (["extra", "r1"], ["more"]),
    "rows of different rank": (["r2", "wide"], ["ids"]),
    "an empty row": (["empty", "r1"], ["ids"]),
}


@pytest.mark.parametrize("asked", ASKED, ids=lambda name: name.replace(" ", "-"))
def test_transfer_queue_answers_as_the_memory_does(queue, partition, asked):
    keys, columns = ASKED[asked]
    planes = filled(MemoryDataPlane(), partition), filled(queue, partition)
    memory, queued = (outcome(lambda plane=plane: plane.get_samples(keys, partition, columns)) for plane in planes)
    assert queued == memory


def test_transfer_queue_satisfies_the_protocol(queue):
    assert isinstance(queue, DataPlane)


def test_listing_and_clearing(queue, partition):
    filled(queue, partition)
    assert queue.tags(partition)["r3"] == {"length": 3}
    queue.clear_samples(["r1", "absent", "extra"], partition)
    queue.clear_samples([], partition)
    queue.clear_samples(["r1"], "unknown partition")
    assert queue.sample_ids(partition) == ["r3", "r2", "wide", "empty"]
    queue.clear_samples(None, partition)
    assert queue.sample_ids(partition) == []


def test_columns_and_tags_are_updated(queue, partition):
    filled(queue, partition)
    queue.put_samples(["r1"], partition, TensorDict({"length": torch.tensor([8])}, batch_size=[1]), [{"b": 2}])
    answer = queue.get_samples(["r1"], partition, ["ids", "length"])
    assert (answer.get("length").tolist(), len(rows(answer.get("ids"))[0])) == ([8], 1)
    assert queue.put_samples([], partition, row(1)) is None


def test_another_dtype_is_refused_and_taken_back(queue, partition):
    queue.put_samples(["whole"], partition, row(2))
    with pytest.raises(ColumnConflict, match=r"ids: put as torch.float32, the live rows of .* have torch.int64"):
        queue.put_samples(["half"], partition, row(2, ids=torch.ones(1, 2)))
    assert queue.sample_ids(partition) == ["whole"]
    queue.clear_samples(["whole"], partition)
    queue.put_samples(["half"], partition, row(2, ids=torch.ones(1, 2)))


def test_rows_that_another_client_put_in_two_dtypes_come_back_as_they_are(queue, partition, client):
    """Left alone, the queue answers 2 for the 2.5, or ends the process."""
    import transfer_queue

    queue.put_samples(["whole"], partition, row(2))
    transfer_queue.kv_batch_put(["half"], partition, row(1, ids=torch.tensor([[2.5]])), [{}])
    found = rows(queue.get_samples(["whole", "half"], partition, ["ids"]).get("ids"))
    assert [(item.dtype, item.tolist()) for item in found] == [(torch.int64, [0, 1]), (torch.float32, [2.5])]
    many = [f"half {index}" for index in range(8)]
    for index, key in enumerate(many):
        dtype = (torch.float64, torch.bfloat16, torch.bool)[index % 3]
        columns = {"ids": torch.ones(1, index + 1, dtype=dtype), "one": torch.ones(1, dtype=dtype)}
        transfer_queue.kv_batch_put([key], partition, TensorDict(columns, batch_size=[1]))
    answer = queue.get_samples(many, partition, ["ids", "one"])
    assert [item.dtype for item in rows(answer.get("ids"))][:3] == [torch.float64, torch.bfloat16, torch.bool]
    with pytest.raises(ValueError, match="one: "):
        read_scalars(answer, "one", torch.float64)


def test_transfer_queue_controller_forgets_rows_that_differ_in_dtype(queue, partition, client):
    """No client can undo it: docs/operations.md. Once this fails, the queue has learned it."""
    import transfer_queue

    queue.put_samples(["whole"], partition, row(2))
    transfer_queue.kv_batch_put(["half"], partition, row(2, ids=torch.ones(1, 2)), [{}])
    assert told(queue.get_samples(["half"], partition, ["ids", "length"]))["length"][1] == [(torch.int64, 2)]
    queue.clear_samples(["whole"], partition)
    assert told(queue.get_samples(["half"], partition, ["ids", "length"])) == {"rows": 1}
    transfer_queue.kv_batch_put(["third"], partition, row(2, ids=torch.ones(1, 2)), [{}])
    assert told(queue.get_samples(["half"], partition, ["length"]))["length"][1] == [(torch.int64, 2)]


def test_a_row_at_an_odd_address_is_moved():
    """Copied in place, it ends the process once it is long enough."""
    values = torch.arange(1000)
    buffer = bytearray(b"\0" + values.numpy().tobytes())
    odd = torch.frombuffer(buffer, dtype=torch.int64, offset=1)
    assert odd.data_ptr() % 8
    for rows_ in ([odd], [odd, torch.ones(2)], [odd[3], values[4]], [odd[3], torch.ones(())]):
        packed = _pack(rows_)
        first = packed[0] if isinstance(packed, torch.Tensor) else packed.tolist()[0]
        assert torch.as_tensor(first).tolist() == rows_[0].view(torch.int64).tolist()
    assert all(_aligned(row).data_ptr() % 8 == 0 for row in (odd, odd[3], values))


def test_rows_that_are_no_tensors_stay_what_they_are(queue, partition):
    queue.put_samples(["a", "b"], partition, TensorDict({"text": NonTensorStack("x", "y")}, batch_size=[2]))
    assert queue.get_samples(["b", "a"], partition, ["text"]).get("text").tolist() == ["y", "x"]


def test_another_version_of_the_queue_is_refused():
    with pytest.raises(RuntimeError, match="not known to be read safely"):
        _pack_exactly(object())


def test_a_row_that_is_registered_and_not_written_is_missing(queue, partition):
    queue.put_samples(["tags alone"], partition, None, [{"a": 1}])
    queue.put_samples(["r1"], partition, row(1))
    for keys in (["tags alone"], ["r1", "tags alone"]):
        with pytest.raises(MissingRows):
            queue.get_samples(keys, partition, ["ids"])


def test_a_put_that_the_controller_did_not_learn_of_fails(queue, partition, client, monkeypatch):
    """The queue logs it and returns: a clear of staging then loses the rows."""

    async def unheard(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(client.storage_manager, "notify_data_update", unheard)
    with pytest.raises(RuntimeError, match="the controller does not know all of the 1 rows"):
        queue.put_samples(["lost"], partition, row(1), [{}])
    monkeypatch.undo()
    queue.put_samples(["lost"], partition, row(1), [{}])
    assert queue.get_samples(["lost"], partition, ["length"]).get("length").tolist() == [1]


def interrupted(client: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """Let something happen between a read of metadata and the read of its data."""
    read = client.async_get_data

    async def late(metadata: Any) -> Any:
        monkeypatch.setattr(client, "async_get_data", read)
        await asyncio.get_running_loop().run_in_executor(None, meanwhile)
        return await read(metadata)

    monkeypatch.setattr(client, "async_get_data", late)


def test_a_row_cleared_while_it_is_read_is_missing(queue, partition, client, monkeypatch):
    queue.put_samples(["gone"], partition, row(1))
    interrupted(client, monkeypatch, lambda: queue.clear_samples(["gone"], partition))
    with pytest.raises(MissingRows):
        queue.get_samples(["gone"], partition, ["ids"])


def test_a_row_in_the_place_of_one_that_was_cleared_is_not_taken_for_it(queue, partition, client, monkeypatch):
    """The queue gives its place to the next row, and would answer with that row's content."""
    queue.put_samples(["gone"], partition, row(1))

    def replace() -> None:
        place = client.kv_retrieve_meta(keys=["gone"], partition_id=partition).global_indexes
        queue.clear_samples(["gone"], partition)
        for index in range(2000):
            queue.put_samples([f"next {index}"], partition, row(2))
            if client.kv_retrieve_meta(keys=[f"next {index}"], partition_id=partition).global_indexes == place:
                return
        raise AssertionError("the queue no longer uses a place again")

    interrupted(client, monkeypatch, replace)
    with pytest.raises(MissingRows):
        queue.get_samples(["gone"], partition, ["ids"])


def test_an_operation_has_a_deadline(queue, partition, client, monkeypatch):
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(client, "async_kv_retrieve_meta", never)
    hasty = TransferQueueDataPlane(timeout_s=0.05)
    with pytest.raises(TimeoutError, match=r"no answer from TransferQueue in 0.05 s"):
        hasty.get_samples(["r"], partition, ["ids"])
    hasty.close()


def test_transfer_queue_can_be_sent_and_used_again_after_closing(queue, partition):
    sent = pickle.loads(pickle.dumps(queue))
    assert sent.timeout_s == queue.timeout_s
    sent.put_samples(["r1"], partition, row(1))
    sent.close()
    sent.close()
    assert sent.sample_ids(partition) == ["r1"]
    sent.close()


def test_dtypes_survive(queue, partition):
    names = ("bfloat16", "float16", "int16", "int8", "uint8", "bool", "float64", "uint16", "complex64")
    for name in names:
        column = torch.ones(1, 2, 3).to(getattr(torch, name))
        queue.put_samples([name], partition, TensorDict({name: column, f"{name}_one": column[:, 0, 0]}, batch_size=[1]))
        answer = queue.get_samples([name], partition, [name, f"{name}_one"])
        assert torch.equal(answer.get(name)[0], column[0])
        assert torch.equal(answer.get(f"{name}_one"), column[:, 0, 0])


# ── the finalizer on it ─────────────────────────────────────────────────────────────────────────────────────────────


def published(plane: Any, ids: list[str], fields: list[str], partition: str) -> dict[str, Any]:
    return told(plane.get_samples(ids, partition, fields))


def test_a_group_is_finalized_as_in_memory(queue, partition, make):
    import random

    rng = random.Random(5)
    groups = [make.random_calls(rng, f"g_g{index}") for index in range(4)]
    receipts: list[Any] = [make.receipt_of(calls) for calls in groups]
    receipts[2]["manifest"][0]["staging_key"] = f"{groups[2][0].rollout_id}/never staged"
    found = []
    for plane in (MemoryDataPlane(), queue):
        for calls in groups:
            make.put_rows(plane, make.rows_of(calls), f"{partition}/staging")
        finalizer = make.reassembler(plane, partition_id=f"{partition}/train", staging_partition=f"{partition}/staging")
        group = finalizer.finalize_group(
            "g",
            [f"g_g{index}" for index in range(4)],
            receipts,
            [1.0, 0.5, float("nan"), -1.0],
            mask_sample=[False] * 4,
            fallback_weight_version=0,
            prompt_idx=3,
        )
        assert all(group.metrics.pop(name) >= 0.0 for name in STEP_TIMES)  # they differ from run to run
        left = plane.sample_ids(f"{partition}/staging")
        rows = published(plane, group.meta.sample_ids, group.meta.fields, f"{partition}/train")
        found.append((group, rows, left, plane.tags(f"{partition}/train")))
        plane.clear_samples(None, f"{partition}/staging")
        plane.clear_samples(None, f"{partition}/train")
    assert found[1] == found[0]
    assert found[0][2] == [f"g_g2/{groups[2][0].model_call_id}"]


def test_a_publication_that_conflicts_leaves_staging_whole(queue, partition, make):
    calls = make.two_calls()
    make.put_rows(queue, make.rows_of(calls), f"{partition}/staging")
    other = TensorDict({"input_ids": torch.ones(1, 2)}, batch_size=[1])
    queue.put_samples(["other"], f"{partition}/train", other)
    finalizer = make.reassembler(queue, partition_id=f"{partition}/train", staging_partition=f"{partition}/staging")
    arguments = {"mask_sample": [False], "fallback_weight_version": 0, "prompt_idx": 0}
    with pytest.raises(PublishError):
        finalizer.finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [1.0], **arguments)
    assert queue.sample_ids(f"{partition}/train") == ["other"]
    queue.clear_samples(["other"], f"{partition}/train")
    assert finalizer.finalize_group("g", ["g_g0"], [make.receipt_of(calls)], [1.0], **arguments).valid_row_count == 1
    queue.clear_samples(None, f"{partition}/train")


def test_a_group_with_lost_rows_is_two_base_reads(queue, partition, make, monkeypatch):
    staging, rollout_ids = f"{partition}/staging", ["g_g0", "g_g1", "g_g2"]
    rollouts = [make.two_calls(rollout_id) for rollout_id in rollout_ids]
    for calls in rollouts:
        make.put_rows(queue, make.rows_of(calls), staging)
    queue.clear_samples(["g_g0/c1", "g_g2/c0"], staging)
    asked: list[list[str]] = []
    read = TransferQueueDataPlane.get_samples

    def counted(plane: Any, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any:
        asked.append(sample_ids)
        return read(plane, sample_ids, partition_id, select_fields)

    monkeypatch.setattr(TransferQueueDataPlane, "get_samples", counted)
    finalizer = make.reassembler(queue, partition_id=f"{partition}/train", staging_partition=staging, reads="group")
    group = finalizer.finalize_group(
        "g",
        rollout_ids,
        [make.receipt_of(calls) for calls in rollouts],
        [1.0] * 3,
        mask_sample=[False] * 3,
        fallback_weight_version=0,
        prompt_idx=0,
    )
    queue.clear_samples(None, staging)
    queue.clear_samples(None, f"{partition}/train")
    assert group.valid_row_count == 1
    assert group.metrics["finalize/capture_failure_reason_missing_staging_row_count"] == 2.0
    assert [len(keys) for keys in asked] == [6, 4]
