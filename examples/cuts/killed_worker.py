"""A worker is killed in the middle of a generation, with an image in its prompt; another one completes the call.

``python examples/cuts/killed_worker.py [FOLDER]`` starts a local Ray with a TransferQueue, two worker processes and a
third that nobody disturbs. The first is killed while it generates, after two cuts. The second restores the call from
the acknowledgement that the controller holds, with the image processed anew, and completes it. The group of the two
rollouts is finalized and audited, and both rows must be equal token by token: the engine here is deterministic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import ray
import torch

from rollproof.impl.cuts import CutStore, Generation
from rollproof.impl.dataplane.transfer_queue import TransferQueueDataPlane, local_queue
from rollproof.impl.patches import image_bundle
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.retained import CallMedia
from rollproof.properties.audit.recorder import Recorder
from rollproof.spec.cut_records import CutOrder, DurablePrefix, RunningCall

IMAGE_TOKEN, PROMPT, TOTAL = 7, (1, 7, 7, 7, 7, 2), 24
SHARED = ("model_call_id", "mode", "prev_len", "delta_len", "cum_len", "weight_version", "parent_call_id")
HASHES = ("digest", "extras_digest", "chain_hash", "cumulative_hash")


def processed() -> CallMedia:
    """Return the prompt's image as an engine processes it: 32 x 32 pixels, four patches, one token for each."""
    pixels = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    item = {
        "modality": "image",
        "placeholder_offset": 1,
        "placeholder_length": 4,
        "placeholder_digest": sha256(b"[7,7,7,7]").hexdigest(),
        "token_id": IMAGE_TOKEN,
        "embedding_spans": [[1, 4]],
        "imgs_sizes": [[32, 32]],
    }
    return CallMedia([item], image_bundle([pixels], 16))


def next_token(ids: list[int]) -> tuple[int, float]:
    """Return what a deterministic engine samples after some tokens: an id, never the image's, and its log-prob."""
    drawn = int.from_bytes(sha256(json.dumps(ids).encode()).digest()[:4], "big")
    return 100 + drawn % 1000, -(drawn % 64) / 32


@ray.remote(num_cpus=0)
class Worker:
    """A process with an engine."""

    def __init__(self) -> None:
        self.store = CutStore(TransferQueueDataPlane(), "staging", torch.bfloat16)
        self.media = processed()

    def begin(self, call: RunningCall) -> None:
        """Take a request."""
        self.generation = Generation(call)

    def restore(self, call: RunningCall, acknowledged: DurablePrefix) -> int:
        """Take up a call that was cut; return how many tokens may still be generated."""
        restored = self.store.restore(call, acknowledged, weight_version=1, fresh=self.media)
        self.generation = restored.generation
        return restored.tokens_left

    def generate(self, tokens: int, pause: float = 0.0) -> None:
        """Generate some tokens."""
        for _ in range(tokens):
            ids = [*self.generation.call.carry_ids, *self.generation.token_ids]
            token, log_prob = next_token(ids)
            self.generation.append([token], [log_prob], 1, b"x")
            time.sleep(pause)

    def cut(self) -> Any:
        """Cut the call; the answer goes to the controller."""
        return self.store.cut(self.generation, CutOrder("step_1", TOTAL), self.media)

    def complete(self, call_id: str) -> dict[str, Any]:
        """Stage the final row; return its row of a manifest."""
        completed = self.store.complete(self.generation, call_id, self.media)
        row = {name: getattr(completed.record, name) for name in (*SHARED, *HASHES)}
        return {**row, "staging_key": completed.staging_key, "response_id": f"resp-{call_id}"}


def receipt(rollout_id: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the receipt of a rollout of one call."""
    return {
        "rollout_id": rollout_id,
        "manifest": [row],
        "terminal_model_call_id": row["model_call_id"],
        "terminal_selection": "declared",
    }


def interrupted(call: RunningCall) -> dict[str, Any]:
    """Cut a call twice, kill its worker while it generates, and let another one complete it."""
    first = Worker.remote()
    ray.get(first.begin.remote(call))
    acknowledged: Any = None
    for tokens in (5, 4):
        ray.get(first.generate.remote(tokens))
        acknowledged = ray.get(first.cut.remote())
    assert isinstance(acknowledged, DurablePrefix), acknowledged
    running = first.generate.remote(1000, 0.1)
    ray.wait([running], timeout=0.5)
    ray.kill(first)
    second = Worker.remote()
    left = ray.get(second.restore.remote(call, acknowledged))
    assert left == TOTAL - 9, left
    ray.get(second.generate.remote(left))
    return ray.get(second.complete.remote("c1-restored"))


def undisturbed(call: RunningCall) -> dict[str, Any]:
    """Generate a call from its beginning to its end."""
    worker = Worker.remote()
    ray.get(worker.begin.remote(call))
    ray.get(worker.generate.remote(TOTAL))
    return ray.get(worker.complete.remote("c1"))


def demonstrate(folder: Path) -> None:
    """Run everything over the TransferQueue that is running; the recorded run goes into the folder."""
    rollouts = ["g7_g0", "g7_g1"]
    calls = [RunningCall(rollout, "c1", None, None, (), PROMPT) for rollout in rollouts]
    rows = [interrupted(calls[0]), undisturbed(calls[1])]
    plane = TransferQueueDataPlane()
    staged = plane.sample_ids("staging")
    assert sorted(staged) == sorted(row["staging_key"] for row in rows), f"chunks outlive their call: {staged}"
    names = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 128}
    run = folder / "run.jsonl"
    with Recorder(str(run), plane) as recorder:
        reassembler = RolloutReassembler(recorder.client, **names, capture_media=True)
        recorder.watch(reassembler)
        group = reassembler.finalize_group(
            "g7",
            rollouts,
            [receipt(rollout, row) for rollout, row in zip(rollouts, rows, strict=True)],
            [1.0, 1.0],
            mask_sample=[False, False],
            fallback_weight_version=1,
            prompt_idx=0,
        )
    assert group.valid_row_count == 2, group.metrics
    columns = ["input_ids", "token_mask", "generation_logprobs", "pixel_values", "imgs_sizes"]
    answer = plane.get_samples(rollouts, "train", columns)
    for name in columns:
        cut, whole = (row.cpu() for row in answer.get(name).unbind())
        assert torch.equal(cut, whole), f"{name} differs"
    audit = subprocess.run([sys.executable, "-m", "rollproof.properties.cli", "audit", str(run)], check=False)
    assert audit.returncode == 0, "the audit found something"
    print(f"{TOTAL} tokens, 9 of them by the worker that was killed: the row equals the undisturbed one")


def main() -> None:
    """Run the demonstration on a Ray and a queue of its own."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build")
    folder.mkdir(parents=True, exist_ok=True)
    with local_queue():
        demonstrate(folder)


if __name__ == "__main__":
    main()
