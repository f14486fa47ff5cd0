"""The digests of section 2 over columns: each token is brought into digest byte order once, then only hashed.

``call_digests``, ``chain_digests`` and ``prefix_digest_of`` work on a batch of staged calls; the functions below them
take single Python values, as the contract's golden vectors and the route and media chapters do.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import evolve

from rollproof.impl.checks import is_hash
from rollproof.impl.columns import Bytes, EncodedTokens, big_endian
from rollproof.impl.staged import StagedColumns, from_calls
from rollproof.impl.threads import Task
from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    MAX_EXTRAS_DEPTH,
    MODE_TEXT,
    MODE_TOKEN_IN,
    SCHEMA_VERSION,
    UINT64_LIMIT,
)
from rollproof.spec.records import StagedCall

_PREFIX: Final = b"nemo-gym-staging-prefix-v2"
_ROOT_LINK: Final = b"nemo-gym-staging-chain-v1\x00"
_CHILD_LINK: Final = b"nemo-gym-staging-chain-v1\x01"
EXTRAS_PREFIX: Final = b"nemo-gym-staging-extras-v1" + bytes([EXTRAS_DIGEST_VERSION])
_WORTH_SHARING: Final = 1 << 15
"""Bytes of a call that take about as long to hash as a thread takes to wake up for the interpreter's lock."""
_CALL: Final = b"nemo-gym-staging-call-v2" + bytes([SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION])


def u64(value: int) -> bytes:
    """An unsigned 64-bit integer, 8 bytes."""
    return value.to_bytes(8, "big")


def encode_text(value: str) -> bytes:
    """UTF-8 bytes after their length. ``ValueError`` for a lone surrogate."""
    data = value.encode()
    return len(data).to_bytes(8, "big") + data


_MODES: Final = {mode: encode_text(mode) for mode in (MODE_TEXT, MODE_TOKEN_IN)}


# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def call_digests(calls: StagedColumns) -> list[bytes]:
    """The recomputed digests of the calls, 32 bytes each. The calls satisfy sections 1 and 3."""
    fields, tokens = calls.fields, calls.encoded
    delta = fields["delta_len"]
    lengths = (fields["prev_len"], delta, fields["cum_len"], fields["weight_version"])
    there = np.ones((len(delta), 1), dtype=np.uint8)
    hashes = (fields["extras_digest"], there, fields["chain_hash"], there, fields["cumulative_hash"])
    heads = {rollout_id: _CALL + encode_text(rollout_id) for rollout_id in set(fields["rollout_id"].tolist())}
    texts = {call_id: encode_text(call_id) for call_id in fields["model_call_id"].tolist()}
    rows = zip(
        fields["rollout_id"].tolist(),
        fields["model_call_id"].tolist(),
        fields["parent_call_id"].tolist(),
        fields["mode"].tolist(),
        big_endian(*lengths, 8 * delta + 8, delta),
        big_endian(4 * delta + 8, delta),
        np.concatenate(hashes, axis=1).view("V98").ravel().tolist(),
        pairwise(tokens.bounds),
        strict=True,
    )
    digests = []
    for rollout_id, call_id, parent, mode, numbers, size, tail, (start, end) in rows:
        message = (
            heads[rollout_id],
            texts[call_id],
            b"\x00" if parent is None else b"\x01" + (texts.get(parent) or encode_text(parent)),
            _MODES[mode],
            numbers,
            tokens.ids[8 * start : 8 * end],
            size,
            tokens.mask[4 * start : 4 * end],
            size,
            tokens.logprobs[4 * start : 4 * end],
            tail,
        )
        digests.append(sha256(b"".join(message)).digest())
    return digests


def hashed(calls: StagedColumns) -> Task[list[bytes]]:
    """``call_digests``, on another thread where that pays: where there is much to hash, in long calls."""
    size = 16 * calls.encoded.bounds[-1]
    return Task(partial(call_digests, calls), shared=size > _WORTH_SHARING * max(8, len(calls)))


def chain_digests(tokens: EncodedTokens, chain: Sequence[int]) -> list[bytes]:
    """The chain hashes of the calls of a chain, root first, each on top of the one before; 32 bytes each."""
    link, digests = _ROOT_LINK, []
    for call in chain:
        ids = tokens.ids[8 * tokens.bounds[call] : 8 * tokens.bounds[call + 1]]
        digests.append(sha256(b"".join((link, tokens.counts[call], ids))).digest())
        link = _CHILD_LINK + digests[-1]
    return digests


def prefix_digest_of(encoded_ids: Sequence[memoryview], count: int) -> bytes:
    """The cumulative hash of ``count`` ids in digest byte order, in as many pieces as there are."""
    state = sha256(_PREFIX + u64(count))
    for piece in encoded_ids:
        state.update(piece)
    return state.digest()


def first_difference(digests: Sequence[bytes], carried: Bytes) -> int | None:
    """The first row in which digests differ from those of a column ``[C, 32]``, or None."""
    actual = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(carried.shape)
    differs = (actual != carried).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


# ── single values ───────────────────────────────────────────────────────────────────────────────────────────────────


def _tokens(token_ids: Sequence[int]) -> bytes:
    in_range = set(map(type, token_ids)) <= {int} and min(token_ids, default=0) >= 0
    if not in_range or max(token_ids, default=0) >= UINT64_LIMIT:
        raise ValueError("token ids: expected integers in [0, 2**64)")
    return u64(len(token_ids)) + struct.pack(f">{len(token_ids)}Q", *token_ids)


def prefix_digest(token_ids: Sequence[int]) -> str:
    """The cumulative hash of token ids, as hex. ``ValueError`` for an id that is no unsigned 64-bit integer."""
    return sha256(_PREFIX + _tokens(token_ids)).hexdigest()


def chain_digest(parent_chain_hash: str | None, token_ids: Sequence[int]) -> str:
    """The chain hash of a delta, as hex. ``ValueError`` for an id or a parent hash outside its domain."""
    if parent_chain_hash is None:
        return sha256(_ROOT_LINK + _tokens(token_ids)).hexdigest()
    if not is_hash(parent_chain_hash):
        raise ValueError("parent_chain_hash: expected 64 lowercase hex characters")
    return sha256(_CHILD_LINK + bytes.fromhex(parent_chain_hash) + _tokens(token_ids)).hexdigest()


def call_digest(call: StagedCall) -> str:
    """The digest of one staged call, as hex; its own ``digest`` plays no part. ``ValueError`` if it has none."""
    columns, fault = from_calls([evolve(call, digest="0" * 64)])
    if fault is not None:
        raise ValueError(fault)
    return call_digests(columns)[0].hex()


def extras_digest(extras: Any) -> str:
    """The digest of a call's extras, null or a mapping, as hex.

    ``ValueError`` for a value that has no encoding: another type, a number out of range, or depth above 64 (D3).
    """
    if extras is not None and type(extras) is not dict:
        raise ValueError(f"extras: expected a mapping or null, got a {type(extras).__name__}")
    encoded = bytearray(EXTRAS_PREFIX)
    encode_extra(extras, encoded, MAX_EXTRAS_DEPTH)
    return sha256(encoded).hexdigest()


def encode_extra(value: Any, out: bytearray, levels: int) -> None:
    """Append one extras value; ``levels`` is how many containers may still open."""
    kind = type(value)
    if value is None:
        out += b"N"
    elif kind is bool:
        out += b"B\x01" if value else b"B\x00"
    elif kind is int:
        try:
            out += b"I" + value.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise ValueError(f"extras: an integer of {value.bit_length()} bits") from None
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError(f"extras: {value} is not finite")
        out += b"F" + struct.pack(">d", value)
    elif kind is str:
        out += b"S" + encode_text(value)
    elif kind is list and levels:
        out += b"L" + u64(len(value))
        for item in value:
            encode_extra(item, out, levels - 1)
    elif kind is dict and levels:
        if not set(map(type, value)) <= {str}:
            raise ValueError("extras: mapping keys must be texts")
        out += b"D" + u64(len(value))
        for key in sorted(value, key=str.encode):
            out += encode_text(key)
            encode_extra(value[key], out, levels - 1)
    elif kind in (list, dict):
        raise ValueError(f"extras: nested deeper than {MAX_EXTRAS_DEPTH}")
    else:
        raise ValueError(f"extras: cannot hold a {kind.__name__}")
