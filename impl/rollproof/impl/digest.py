"""The digests of section 2 over columns: each token is brought into digest byte order once, then only hashed.

``call_digests``, ``chain_digests`` and ``prefix_digest_of`` work on a batch of staged calls; the functions below them
take single Python values, as the contract's golden vectors and the route and media chapters do.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import evolve

from rollproof.impl.checks import fault, is_hash, is_text
from rollproof.impl.columns import Bytes, EncodedTokens, big_endian
from rollproof.impl.staged import StagedColumns, from_calls
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
_CALL: Final = b"nemo-gym-staging-call-v2" + bytes([SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION])


def u64(value: int) -> bytes:
    """Encode an unsigned 64-bit integer, 8 bytes."""
    return value.to_bytes(8, "big")


def encode_text(value: str) -> bytes:
    """Encode UTF-8 bytes after their length. ``ValueError`` for a lone surrogate."""
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise ValueError(fault("string", value, "valid UTF-8")) from None
    return len(data).to_bytes(8, "big") + data


_MODES: Final = {mode: encode_text(mode) for mode in (MODE_TEXT, MODE_TOKEN_IN)}


# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def call_digests(calls: StagedColumns) -> list[bytes]:
    """Return the recomputed digests of the calls, 32 bytes each. The calls satisfy sections 1 and 3."""
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


def chain_digests(tokens: EncodedTokens, chain: Sequence[int]) -> list[bytes]:
    """Return the chain hashes of the calls of a chain, root first, each on top of the one before; 32 bytes each."""
    link, digests = _ROOT_LINK, []
    for call in chain:
        ids = tokens.ids[8 * tokens.bounds[call] : 8 * tokens.bounds[call + 1]]
        digests.append(sha256(b"".join((link, tokens.counts[call], ids))).digest())
        link = _CHILD_LINK + digests[-1]
    return digests


def prefix_digest_of(encoded_ids: Sequence[memoryview], count: int) -> bytes:
    """Return the cumulative hash of ``count`` ids in digest byte order, in as many pieces as there are."""
    state = sha256(_PREFIX + u64(count))
    for piece in encoded_ids:
        state.update(piece)
    return state.digest()


def first_difference(digests: Sequence[bytes], carried: Bytes) -> int | None:
    """Return the first row in which digests differ from those of a column ``[C, 32]``, or None."""
    actual = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(carried.shape)
    differs = (actual != carried).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


# ── single values ───────────────────────────────────────────────────────────────────────────────────────────────────


def _tokens(token_ids: Sequence[int]) -> bytes:
    in_range = set(map(type, token_ids)) <= {int} and min(token_ids, default=0) >= 0
    if not in_range or max(token_ids, default=0) >= UINT64_LIMIT:
        index = next(i for i, token in enumerate(token_ids) if type(token) is not int or not 0 <= token < UINT64_LIMIT)
        raise ValueError(fault(f"token_ids[{index}]", token_ids[index], "an integer in [0, 2**64)"))
    return u64(len(token_ids)) + struct.pack(f">{len(token_ids)}Q", *token_ids)


def prefix_digest(token_ids: Sequence[int]) -> str:
    """Return the cumulative hash of token ids, as hex.

    ``ValueError`` for an id that is not an unsigned 64-bit integer.
    """
    return sha256(_PREFIX + _tokens(token_ids)).hexdigest()


def chain_digest(parent_chain_hash: str | None, token_ids: Sequence[int]) -> str:
    """Return the chain hash of a delta, as hex. ``ValueError`` for an id or a parent hash outside its domain."""
    if parent_chain_hash is None:
        return sha256(_ROOT_LINK + _tokens(token_ids)).hexdigest()
    if not is_hash(parent_chain_hash):
        raise ValueError(fault("parent_chain_hash", parent_chain_hash, "64 lowercase hex characters"))
    return sha256(_CHILD_LINK + bytes.fromhex(parent_chain_hash) + _tokens(token_ids)).hexdigest()


def call_digest(call: StagedCall) -> str:
    """Return the digest of one staged call, as hex; its own ``digest`` is ignored. ``ValueError`` if it has none."""
    columns, unfit = from_calls([evolve(call, digest="0" * 64)])
    if unfit is not None:
        raise ValueError(unfit)
    return call_digests(columns)[0].hex()


def extras_digest(extras: Any) -> str:
    """Return the digest of a call's extras, null or a mapping, as hex.

    ``ValueError`` for a value that has no encoding: another type, a number out of range, or depth above 64 (D3).
    """
    if extras is not None and type(extras) is not dict:
        raise ValueError(fault("extras", extras, "a mapping or null"))
    encoded = bytearray(EXTRAS_PREFIX)
    encode_extra(extras, encoded, MAX_EXTRAS_DEPTH)
    return sha256(encoded).hexdigest()


def in_order(names: Collection[Any]) -> list[str]:
    """Return the names of a mapping in the order of their UTF-8 bytes; ``ValueError`` for one without any."""
    try:
        return sorted(names, key=str.encode)
    except (TypeError, UnicodeEncodeError):
        odd = next(name for name in names if not is_text(name))
        raise ValueError(fault("extras", odd, "strings in valid UTF-8 as names")) from None


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
            raise ValueError(fault("extras", value, "integers that fit in 64 bits")) from None
    elif kind is float:
        if not math.isfinite(value):
            raise ValueError(fault("extras", value, "finite floats"))
        out += b"F" + struct.pack(">d", value)
    elif kind is str:
        out += b"S" + encode_text(value)
    elif kind is list and levels:
        out += b"L" + u64(len(value))
        for item in value:
            encode_extra(item, out, levels - 1)
    elif kind is dict and levels:
        out += b"D" + u64(len(value))
        for key in in_order(value):
            out += encode_text(key)
            encode_extra(value[key], out, levels - 1)
    elif kind in (list, dict):
        raise ValueError(fault("extras", value, f"at most {MAX_EXTRAS_DEPTH} levels"))
    else:
        raise ValueError(fault("extras", value, "values of JSON"))
