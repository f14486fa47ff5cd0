"""From the staged columns of a rollout to its canonical row: ours against nemo-gym, against SHA-256 alone.

Every contestant gets the same batched answer of the data plane and the same receipt. The canonical row is the token,
mask and log-probability columns of the terminal chain, verified in the order of section 4.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from benchmarks import ROUND_SECONDS, Table, Timing, race
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.lineage import verify
from rollproof.impl.records import read_receipt
from rollproof.impl.staged import base_columns, decode
from rollproof.properties.adapters.nemo_gym import load_staging, row_of
from rollproof.properties.adapters.nemo_gym_source import PARTITION, snapshots_of
from rollproof.properties.tensors import row_fields
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import (
    CALL_DOMAIN,
    CHAIN_DOMAIN,
    PREFIX_DOMAIN,
    call_digest,
    chain_digest,
    extras_digest,
    prefix_digest,
)
from rollproof.spec.records import StagedCall
from rollproof.spec.staged import encode_row
from rollproof.spec.tensor import to_float32
from rollproof.spec.values import owned_key

SHAPES: Final = ((20, 1600), (1000, 32))
"""(calls, tokens per call)."""
ROUNDS: Final = 15
OURS, THEIRS, READY, SHA = "ours", "nemo-gym", "nemo-gym, snapshots ready", "SHA-256 alone"
OURS_JSON, THEIRS_JSON = "ours, receipt from JSON", "nemo-gym, receipt from JSON"


@frozen
class Workload:
    """One rollout, staged."""

    calls: tuple[StagedCall, ...]
    receipt: dict[str, Any]
    answer: Any
    """What one batched read of all its rows returns."""


def workload(calls: int, tokens: int) -> Workload:
    """A rollout whose calls form one chain; half of each delta is carry, half is generated."""
    staged = chain(calls, tokens)
    plane = MemoryDataPlane()
    keys = [owned_key(call.rollout_id, call.model_call_id) for call in staged]
    for key, call in zip(keys, staged, strict=True):
        plane.put_samples([key], PARTITION, row_fields(encode_row(call)), [{}])
    return Workload(staged, receipt_of(staged), plane.get_samples(keys, PARTITION, base_columns()))


def chain(calls: int, tokens: int) -> tuple[StagedCall, ...]:
    """The staged calls.

    Only the last call's cumulative hash is real: a verifier recomputes no other, and hashing every prefix here would
    take longer than the measurement.
    """
    staged: list[StagedCall] = []
    ids: list[int] = []
    carry = tokens // 2
    for index in range(calls):
        parent = staged[-1] if staged else None
        delta = tuple((7 * index + 13 * position) % 151_936 for position in range(tokens))
        ids += delta
        call = StagedCall(
            rollout_id="group-7_g0",
            model_call_id=f"call-{index:04}",
            parent_call_id=None if parent is None else parent.model_call_id,
            mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
            prev_len=index * tokens,
            delta_len=tokens,
            cum_len=(index + 1) * tokens,
            weight_version=index // 8,
            token_ids_delta=delta,
            token_mask_delta=(0.0,) * carry + (1.0,) * (tokens - carry),
            generation_log_probs_delta=(0.0,) * carry
            + tuple(to_float32(-0.001 * (position % 997)) for position in range(tokens - carry)),
            extras_digest=extras_digest(None),
            chain_hash=chain_digest(None if parent is None else parent.chain_hash, delta),
            cumulative_hash=prefix_digest(ids) if index == calls - 1 else "0" * 64,
            digest="0" * 64,
        )
        staged.append(evolve(call, digest=call_digest(call)))
    return tuple(staged)


def receipt_of(calls: Sequence[StagedCall]) -> dict[str, Any]:
    """The rollout's receipt as JSON."""
    shared = (
        "model_call_id",
        "parent_call_id",
        "prev_len",
        "delta_len",
        "cum_len",
        "weight_version",
        "digest",
        "extras_digest",
        "chain_hash",
        "cumulative_hash",
        "mode",
    )
    manifest = [
        {name: getattr(call, name) for name in shared}
        | {"staging_key": owned_key(call.rollout_id, call.model_call_id), "response_id": f"resp-{call.model_call_id}"}
        for call in calls
    ]
    receipt = {
        "rollout_id": calls[0].rollout_id,
        "manifest": manifest,
        "terminal_model_call_id": calls[-1].model_call_id,
        "terminal_selection": "declared",
    }
    found: dict[str, Any] = json.loads(json.dumps(receipt))
    return found


def hashed(calls: Sequence[StagedCall]) -> list[bytearray]:
    """Buffers as long as the bytes that any verifier must hash: each call, each chain link, the row once."""
    lengths = []
    for call in calls:
        texts = (
            call.rollout_id,
            call.model_call_id,
            call.mode,
            *([call.parent_call_id] if call.parent_call_id else []),
        )
        fixed = len(CALL_DOMAIN) + 3 + 1 + 4 * 8 + 6 * 8 + 32 + 2 * 33
        lengths.append(fixed + sum(8 + len(text.encode()) for text in texts) + 16 * call.delta_len)
        lengths.append(len(CHAIN_DOMAIN) + 1 + (32 if call.parent_call_id else 0) + 8 + 8 * call.delta_len)
    lengths.append(len(PREFIX_DOMAIN) + 8 + 8 * calls[-1].cum_len)
    return [bytearray(length) for length in lengths]


def measure(calls: int, tokens: int, rounds: int = ROUNDS) -> tuple[dict[str, Timing], int]:
    """Timings by contestant, and how many bytes must be hashed."""
    work, staging = workload(calls, tokens), load_staging()
    columns, model = read_receipt(work.receipt), staging.RolloutReceipt.model_validate(work.receipt)
    snapshots, buffers = snapshots_of(work.answer), hashed(work.calls)
    contestants: dict[str, Callable[[], Any]] = {
        OURS: lambda: verify(columns, decode(work.answer)),
        THEIRS: lambda: staging.verify_and_linearize(model, snapshots_of(work.answer)),
        READY: lambda: staging.verify_and_linearize(model, snapshots),
        OURS_JSON: lambda: verify(read_receipt(work.receipt), decode(work.answer)),
        THEIRS_JSON: lambda: staging.verify_and_linearize(
            staging.RolloutReceipt.model_validate(work.receipt), snapshots_of(work.answer)
        ),
        SHA: lambda: [hashlib.sha256(buffer).digest() for buffer in buffers],
    }
    if contestants[OURS]().record() != row_of(contestants[THEIRS]()):
        raise AssertionError("the contestants do not agree on the row")
    return race(contestants, rounds), sum(map(len, buffers))


def main() -> Iterable[Table]:
    """One table per shape."""
    for calls, tokens in SHAPES:
        timings, size = measure(calls, tokens)
        ours = {name: timings[OURS_JSON if name == THEIRS_JSON else OURS] for name in timings}
        rows = tuple(
            (name, 1e3 * timing.median, *timing.over(ours[name]), timing.over(timings[SHA])[1])
            for name, timing in timings.items()
        )
        yield Table(
            f"staged columns to canonical row: {calls:,} calls x {tokens:,} tokens, {size / 1e6:.1f} MB to hash",
            ("contestant", "median ms", "min x ours", "median x ours", "median x SHA-256"),
            rows,
            (
                f"{ROUNDS} rounds, interleaved; each contestant repeats for {1e3 * ROUND_SECONDS:.0f} ms per round.",
                "Inside the clock: from the data plane's batched answer to the verified row.",
                "nemo-gym: columns to lists, its snapshots built and validated (what a StagingSource does), then "
                "verify_and_linearize. Snapshots ready: verify_and_linearize alone.",
                "The receipt is parsed before the clock starts, except where the name says from JSON; those two are "
                "compared with each other.",
            ),
        )
