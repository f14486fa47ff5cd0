"""Groups that a reassembler finalizes from rollouts of the worked example, recorded for an audit."""

from __future__ import annotations

from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.properties.adapters.tensors import stage_rows
from rollproof.properties.audit.judge import judge
from rollproof.properties.audit.reading import read_line
from rollproof.properties.audit.recorder import Recorder
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE

NAMES = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 100}


def staged(plane, rollout_id):
    """Stage one rollout of the worked example; return its receipt."""
    history = rehash(WORKED_EXAMPLE.renamed(rollout_id))
    stage_rows(plane, "staging", history.rows())
    return history.raw_receipt()


def group(plane, group_id, size=3, **changes):
    """Return the arguments of ``finalize_group`` of a group whose last rollout has no receipt."""
    ids = [f"{group_id}_g{index}" for index in range(size)]
    receipts = [staged(plane, rollout_id) for rollout_id in ids[:-1]] + [None]
    values = {"mask_sample": [False] * size, "fallback_weight_version": 1, "prompt_idx": 7} | changes
    return (group_id, ids, receipts, [0.5] * size), values


def record(path, kind=RolloutReassembler, groups=("g1",), plane=None, size=3, **arguments):
    """Record groups finalized by a reassembler of this class."""
    plane = MemoryDataPlane() if plane is None else plane
    with Recorder(path, plane) as recorder:
        reassembler = kind(recorder.client, **NAMES, **arguments)
        recorder.watch(reassembler)
        for group_id in groups:
            positional, named = group(plane, group_id, size)
            reassembler.finalize_group(*positional, **named)
    assert recorder.lost == 0
    return path


def verdicts(path):
    return [judge(read_line(line, path)) for line in path.read_bytes().splitlines()]


def many(path, number, size=16, example=WORKED_EXAMPLE):
    """Write a file of so many groups: four recorded ones over and over, each under its own id."""
    plane = MemoryDataPlane()
    with Recorder(path.with_suffix(".part"), plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **NAMES)
        recorder.watch(reassembler)
        for index in range(4):
            lost = min(index, size - 1)
            rollouts = [rehash(example.renamed(f"r{index}-{one}")) for one in range(size)]
            for history in rollouts:
                stage_rows(plane, "staging", history.rows())
            reassembler.finalize_group(
                "<group>",
                [history.rollout_id for history in rollouts],
                [history.raw_receipt() for history in rollouts[: size - lost]] + [None] * lost,
                [1.0] * size,
                mask_sample=[False] * size,
                fallback_weight_version=0,
                prompt_idx=index,
                canonical_sample_ids=[f"<group>_g{one}" for one in range(size)],
            )
    templates = recorder.path.read_text().splitlines(keepends=True)
    with path.open("w") as file:
        for index in range(number):
            file.write(templates[index % 4].replace("<group>", f"group-{index}"))
    return path


def damaged(path):
    """Write a file of 150 groups: line 71 cannot be read, line 141 is not as required."""
    lines = many(path, 150, 2).read_text().splitlines(keepends=True)
    lines[70] = lines[70].replace('"prompt_idx":', '"prompt_idx": 1, "was":')
    lines[140] = lines[140].replace('"group_id": "group-140"', '"group_id": "group-x"', 1)
    path.write_text("".join(lines))
    return path
