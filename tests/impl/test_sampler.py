"""Section 12 on columns: rows with candidates over a data plane, read by rollout and by group."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE
from rollproof.spec.constants import TOPK_IDS, TOPK_LOGPROBS
from rollproof.spec.tensor import Tensor


def staged(plane, rollout_id, *, broken=False):
    """Stage the worked example with two candidates per generated token, and return its receipt."""
    history = WORKED_EXAMPLE.renamed(rollout_id)
    for call in history.calls:
        ids = [3, 3] * 2 if broken else [3, 4] * 2
        topk = {
            TOPK_IDS: Tensor.of("int32", ids, (1, 2, 2)),
            TOPK_LOGPROBS: Tensor.of("float32", [-0.5, -1.0] * 2, (1, 2, 2)),
        }
        history = history.with_call(evolve(call, topk=topk))
    stage_rows(plane, "staging", history.rows())
    return history.raw_receipt()


@pytest.mark.parametrize("reads", ["rollout", "group"])
def test_a_group_publishes_candidates_and_zeros_for_a_placeholder(reads):
    plane = MemoryDataPlane()
    receipts = [staged(plane, "g_g0"), staged(plane, "g_g1", broken=True), staged(plane, "g_g2")]
    reassembler = RolloutReassembler(
        plane,
        partition_id="train",
        staging_partition="staging",
        pad_token_id=0,
        max_seq_len=64,
        top_logprobs=2,
        reads=reads,
    )
    group = reassembler.finalize_group(
        "g",
        ["g_g0", "g_g1", "g_g2"],
        receipts,
        [0.0] * 3,
        mask_sample=[False] * 3,
        fallback_weight_version=0,
        prompt_idx=0,
    )
    assert group.valid_row_count == 2
    assert group.metrics["finalize/rejection_topk_value_range_count"] == 1.0
    fields = plane.get_samples(sample_ids=group.meta.sample_ids, partition_id="train", select_fields=[TOPK_IDS])
    rows = [row.tolist() for row in fields.get(TOPK_IDS).unbind()]
    assert rows[0] == rows[2] == [[0, 0], [0, 0], [3, 4], [3, 4], [0, 0], [3, 4], [3, 4]]
    assert torch.tensor(rows[1]).count_nonzero() == 0


@pytest.mark.parametrize("count", [-1, True, "2", 1.5])
def test_a_number_of_candidates_that_is_none_is_refused(count):
    with pytest.raises(ValueError, match="top_logprobs"):
        RolloutReassembler(
            MemoryDataPlane(),
            partition_id="train",
            staging_partition="staging",
            pad_token_id=0,
            max_seq_len=64,
            top_logprobs=count,
        )
