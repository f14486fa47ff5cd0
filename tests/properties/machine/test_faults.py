"""No bit of a staged row's base columns can change without the rollout being rejected.

The extras are covered by a digest of their own, which is checked where extras are read: with router replay, or in a
media partition. Elsewhere nothing reads them, and the row does not depend on them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import to_torch
from rollproof.properties.machine.faults import flipped
from rollproof.properties.machine.model import CONFIG, STAGING, TRAIN, RolloutPlan, group_of
from rollproof.spec.constants import BASE_COLUMNS

REPLAY = {"router_replay_enabled": True, "routed_dims": (1, 1)}


Rows = dict[str, dict[str, torch.Tensor]]


def staged(calls: tuple[tuple[int, int], ...]) -> tuple[Any, dict[str, dict[str, torch.Tensor]]]:
    """Return a rollout's receipt and its rows, column by column."""
    group = group_of(0, [RolloutPlan(calls)], [])
    rows = {key: {name: to_torch(value) for name, value in row.items()} for key, row in group.rows.items()}
    return group.request.receipts[0], rows


def finalized(rows: Rows, receipt: Any, key: str, changed: dict[str, torch.Tensor], **options: Any) -> Any:
    """Return the rollout where one row came with some columns changed."""
    plane = MemoryDataPlane()
    for name, row in rows.items():
        plane.put_samples([name], STAGING, TensorDict(row | (changed if name == key else {}), batch_size=[1]))
    limits = {"pad_token_id": CONFIG.pad_token_id, "max_seq_len": CONFIG.max_seq_len}
    finalizer = RolloutReassembler(plane, partition_id=TRAIN, staging_partition=STAGING, **limits, **options)
    return finalizer.finalize_rollout("g0_g0", receipt, reward=1.0)


def bits(column: torch.Tensor) -> int:
    return column.numel() * (1 if column.dtype is torch.bool else 8 * column.element_size())


def unseen(
    rows: Rows, receipt: Any, key: str, names: Iterable[str], step: int = 1, **options: Any
) -> tuple[Counter[str], int]:
    """Count, per column, the bits of one row that can change with the row still accepted; and how many were tried.

    Of each column, every ``step``-th bit is tried.
    """
    found: Counter[str] = Counter()
    count = 0
    whole = finalized(rows, receipt, key, {}, **options)
    assert whole.valid
    for name in names:
        column = rows[key][name]
        for bit in range(0, bits(column), step):
            count += 1
            rollout = finalized(rows, receipt, key, {name: flipped(column, bit)}, **options)
            if rollout.valid:
                assert rollout == whole
                found[name] += 1
    return found, count


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.deep)])
def test_every_bit_of_a_small_row(step):
    receipt, rows = staged(((1, 2), (0, 1)))
    key = "g0_g0/c0"
    assert set(rows[key]) == set(BASE_COLUMNS)
    found, count = unseen(rows, receipt, key, BASE_COLUMNS, step, **REPLAY)
    assert found == {}
    assert count > 2_000 // step


def test_extras_that_nothing_reads_are_not_looked_at():
    receipt, rows = staged(((1, 1),))
    found, _ = unseen(rows, receipt, "g0_g0/c0", ["extras_metadata_json", "chain_hash_present"])
    assert found == {"extras_metadata_json": bits(rows["g0_g0/c0"]["extras_metadata_json"])}


@pytest.mark.parametrize("sampled", [100, pytest.param(1_000, marks=pytest.mark.deep)])
def test_bits_of_large_rows(sampled):
    rng = random.Random(0)
    receipt, rows = staged(((600, 900), (300, 1200)))
    for _ in range(sampled):
        key = rng.choice(list(rows))
        name = rng.choice(sorted(rows[key]))
        column = rows[key][name]
        bit = rng.randrange(bits(column))
        rollout = finalized(rows, receipt, key, {name: flipped(column, bit)}, **REPLAY)
        assert not rollout.valid, (key, name, bit)
