"""Chunks of a generation cut: their keys, their rows, and the digest that binds them (section 11).

A call can be cut at any token, more than once, and taken up by another worker. Everything durable of it is in staged
rows, one *chunk* per cut. The first is the call so far, prompt and extras included; each further one holds only what
was generated since, so that a cut costs what is new. A chunk's hashes bind neither its position nor the chunk before
it: the *prefix digest* does, that of all chunks joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN, RESERVED_ROLLOUT_ID, ROUTED_EXPERTS
from rollproof.spec.cut_records import CutKey, RunningCall
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.records import StagedCall
from rollproof.spec.values import expect, is_identifier, is_rollout_id

NO_DIGEST: Final = "0" * 64
"""In place of a digest that is not computed yet."""

# ── keys; a key that is none raises ``ValueError`` ──────────────────────────────────────────────────────────────────


def capture_key(rollout_id: str, attempt: int = 0) -> str:
    """Return the capture key of an attempt at a rollout: its id, and for every attempt but the first, which one."""
    return rollout_id if attempt == 0 else f"{rollout_id}-a{attempt}"


def cut_key(key: CutKey) -> str:
    """Return the staging key of a chunk."""
    parts = (RESERVED_ROLLOUT_ID, key.checkpoint, key.capture_key, key.model_call_id, str(key.sequence))
    text = "/".join(parts)
    expect(parse_cut_key(text) == key, "cut key", text, 'a checkpoint and ids without "/"')
    return text


def parse_cut_key(text: Any) -> CutKey:
    """Return what a chunk's key says. The older form, without a sequence, is not read."""
    expect(is_identifier(text), "cut key", text, "a non-empty string")
    parts = text.split("/")
    expect(len(parts) == 5 and parts[0] == RESERVED_ROLLOUT_ID, "cut key", text, f"{RESERVED_ROLLOUT_ID}, four parts")
    _, checkpoint, capture, call_id, sequence = parts
    expect(checkpoint != "", "checkpoint", checkpoint, "a non-empty string")
    expect(is_rollout_id(capture), "capture key", capture, "a rollout id, or that of an attempt")
    expect(call_id != "", "model_call_id", call_id, "a non-empty string")
    digits = sequence != "" and set(sequence) <= set("0123456789")
    expect(digits and (sequence == "0" or sequence[0] != "0"), "sequence", sequence, "a decimal number")
    return CutKey(checkpoint, capture, call_id, int(sequence))


# ── rows; what has no digest raises ``ValueError`` ──────────────────────────────────────────────────────────────────


def call_row(
    call: RunningCall,
    ids: Sequence[int],
    mask: Sequence[float],
    log_probs: Sequence[float],
    weight_version: int,
    commitment: str,
) -> StagedCall:
    """Return the staged call of some tokens right behind the call's parent: one chunk alone, or all of them joined.

    ``commitment`` is the digest of its extras.
    """
    row = StagedCall(
        rollout_id=call.capture_key,
        model_call_id=call.model_call_id,
        parent_call_id=call.parent_call_id,
        mode=MODE_TEXT if call.parent_call_id is None else MODE_TOKEN_IN,
        prev_len=len(call.before),
        delta_len=len(ids),
        cum_len=len(call.before) + len(ids),
        weight_version=weight_version,
        token_ids_delta=tuple(ids),
        token_mask_delta=tuple(mask),
        generation_log_probs_delta=tuple(log_probs),
        extras_digest=commitment,
        chain_hash=chain_digest(call.parent_chain_hash, ids),
        cumulative_hash=prefix_digest((*call.before, *ids)),
        digest=NO_DIGEST,
    )
    return evolve(row, digest=call_digest(row))


def chunk_row(
    call: RunningCall, sequence: int, ids: Sequence[int], log_probs: Sequence[float], version: int, extras: Any
) -> StagedCall:
    """Return a chunk of generated tokens; the first one begins with the prompt, and has the call's extras."""
    carry = call.carry_ids if sequence == 0 else ()
    return call_row(
        call,
        (*carry, *ids),
        (0.0,) * len(carry) + (1.0,) * len(ids),
        (0.0,) * len(carry) + tuple(log_probs),
        version,
        extras_digest(extras if sequence == 0 else None),
    )


def joined(call: RunningCall, chunks: Sequence[StagedCall]) -> StagedCall:
    """Return the cumulative record of some chunks, under the oldest of their weight versions.

    Its digest is the prefix digest.
    """
    return call_row(
        call,
        [token for chunk in chunks for token in chunk.token_ids_delta],
        [mask for chunk in chunks for mask in chunk.token_mask_delta],
        [value for chunk in chunks for value in chunk.generation_log_probs_delta],
        min(chunk.weight_version for chunk in chunks),
        chunks[0].extras_digest,
    )


def generated_count(chunks: Sequence[StagedCall]) -> int:
    """Return how many tokens of some chunks the policy generated."""
    return sum(chunk.token_mask_delta.count(1.0) for chunk in chunks)


def without_routes(extras: Any) -> Any:
    """Return extras as a chunk stages them: routes come from one prefill, or from nobody."""
    return None if extras is None else {name: value for name, value in extras.items() if name != ROUTED_EXPERTS}


SECOND_BYTES: Final = {
    0xE0: range(0xA0, 0xC0),
    0xED: range(0x80, 0xA0),
    0xF0: range(0x90, 0xC0),
    0xF4: range(0x80, 0x90),
}
"""First bytes of a character after which not every continuation byte is valid, and which ones are."""


def ends_inside_character(text: bytes) -> bool:
    """Return whether UTF-8 ends inside a character: with the first of its bytes, and not yet all of them.

    Bytes with which no character begins are not the beginning of one.
    """
    for count in range(1, min(len(text), 3) + 1):
        first, *others = text[-count:]
        size = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4 if 0xF0 <= first <= 0xF4 else 0
        valid = all(0x80 <= byte <= 0xBF for byte in others)
        if others:
            valid = valid and others[0] in SECOND_BYTES.get(first, range(0x80, 0xC0))
        if valid and count < size:
            return True
    return False
