"""Rollouts to try the implementation on, made with the spec's digests and row writer."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from tensordict import TensorDict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.strategies.rollouts.staged_calls import raw_receipt, staged_call
from rollproof.spec.digest import call_digest
from rollproof.spec.records import StagedCall
from rollproof.spec.staged import Row, encode_row
from rollproof.spec.tensor import Tensor


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def lineage(call: StagedCall, calls: list[StagedCall]) -> list[StagedCall]:
    """Return the call and its ancestors, root first."""
    by_id = {item.model_call_id: item for item in calls}
    found = [call]
    while found[0].parent_call_id is not None:
        found.insert(0, by_id[found[0].parent_call_id])
    return found


def sealed(call: StagedCall) -> StagedCall:
    """Return the call with the digest of its content."""
    return evolve(call, digest=call_digest(call))


def add_call(
    calls: list[StagedCall],
    ids: list[int],
    carry: int,
    *,
    rollout_id: str = "g_g0",
    call_id: str | None = None,
    parent: StagedCall | None = None,
    logprobs: list[float] | None = None,
    weight_version: int = 4,
    extras: Any = None,
) -> StagedCall:
    """Append one valid call to a rollout."""
    logprobs = [-0.25] * (len(ids) - carry) if logprobs is None else [float32(value) for value in logprobs]
    call = staged_call(
        ids,
        carry,
        rollout_id=rollout_id,
        call_id=f"c{len(calls)}" if call_id is None else call_id,
        parent=parent,
        before=[] if parent is None else [token for item in lineage(parent, calls) for token in item.token_ids_delta],
        log_probs=logprobs,
        weight_version=weight_version,
        extras=extras,
    )
    calls.append(call)
    return call


def two_calls(rollout_id: str = "g_g0") -> list[StagedCall]:
    """Return a root of two carry and two generated tokens, and a child of one and two."""
    calls: list[StagedCall] = []
    root = add_call(calls, [10, 11, 12, 13], 2, rollout_id=rollout_id)
    add_call(calls, [20, 21, 22], 1, rollout_id=rollout_id, parent=root, weight_version=5)
    return calls


def random_calls(rng: random.Random, rollout_id: str) -> list[StagedCall]:
    """Return one to five calls with branches, several roots, odd ids, and every kind of carry."""
    calls: list[StagedCall] = []
    for index in range(rng.randrange(1, 6)):
        size = rng.choice([1, 1, 2, 3, 5])
        carry = rng.randrange(size)
        add_call(
            calls,
            [rng.choice([0, 1, 7, 2**31, 2**63 - 1, rng.randrange(1000)]) for _ in range(size)],
            carry,
            rollout_id=rollout_id,
            call_id=rng.choice(["c", "é", "a/b", "\0"]) + str(index) + rng.choice(["", "", "\0"]),
            parent=rng.choice(calls[-2:]) if calls and rng.random() < 0.85 else None,
            logprobs=[rng.choice([-0.1, 0.0, -0.0, 0.5, -1e-30]) for _ in range(size - carry)],
            weight_version=rng.choice([0, 4, 5, 2**63 - 1]),
        )
    return calls


def receipt_of(calls: list[StagedCall], **changes: Any) -> dict[str, Any]:
    """Return the receipt of a rollout whose last call is its terminal one."""
    return raw_receipt(calls, **{"reward": 1.0, **changes})


def rows_of(calls: list[StagedCall]) -> dict[str, Row]:
    """Return the staged rows of a rollout, by staging key."""
    return {f"{call.rollout_id}/{call.model_call_id}": encode_row(call) for call in calls}


def as_torch(value: Tensor) -> torch.Tensor:
    if not value.count:
        return torch.empty(value.shape, dtype=getattr(torch, value.dtype))
    return torch.frombuffer(bytearray(value.data), dtype=getattr(torch, value.dtype)).reshape(value.shape)


def put_rows(plane: Any, rows: dict[str, Row], partition: str = "staging") -> None:
    for key, row in rows.items():
        fields = {name: as_torch(value) for name, value in row.items()}
        plane.put_samples(sample_ids=[key], partition_id=partition, fields=TensorDict(fields, batch_size=[1]))


def plane_of(*rollouts: list[StagedCall]) -> MemoryDataPlane:
    """Return a data plane that holds the staged rows of rollouts."""
    plane = MemoryDataPlane()
    for calls in rollouts:
        put_rows(plane, rows_of(calls))
    return plane


def reassembler(plane: Any, **changes: Any) -> RolloutReassembler:
    arguments = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 7, "max_seq_len": 4096}
    return RolloutReassembler(plane, **(arguments | changes))


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Return the makers above."""
    return SimpleNamespace(
        add_call=add_call,
        sealed=sealed,
        two_calls=two_calls,
        random_calls=random_calls,
        receipt_of=receipt_of,
        rows_of=rows_of,
        put_rows=put_rows,
        plane_of=plane_of,
        reassembler=reassembler,
    )
