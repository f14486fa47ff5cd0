"""The digests that tie a receipt to the staged bytes (section 2).

Every value that enters a digest is length-delimited, so that no two different inputs share an encoding. All numbers
are big-endian. A value outside the domains of section 1 has no digest and raises ``ValueError``.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    MAX_EXTRAS_DEPTH,
    SCHEMA_VERSION,
    UINT64_LIMIT,
)
from rollproof.spec.records import StagedCall
from rollproof.spec.values import check_call

PREFIX_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"
CHAIN_DOMAIN: Final = b"nemo-gym-staging-chain-v1"
EXTRAS_DOMAIN: Final = b"nemo-gym-staging-extras-v1"
CALL_DOMAIN: Final = b"nemo-gym-staging-call-v2"


def u64(value: int) -> bytes:
    """An unsigned 64-bit integer."""
    if type(value) is not int or not 0 <= value < UINT64_LIMIT:
        raise ValueError(f"expected an integer in [0, 2**64), got {value!r}")
    return value.to_bytes(8, "big")


def sized(value: bytes) -> bytes:
    """Bytes after their length."""
    return u64(len(value)) + value


def text(value: str) -> bytes:
    """UTF-8 bytes after their length. A lone surrogate has no UTF-8."""
    if type(value) is not str:
        raise ValueError(f"expected text, got {type(value).__name__}")
    return sized(value.encode("utf-8"))


def tokens(ids: Sequence[int]) -> bytes:
    """Token ids after their number."""
    return u64(len(ids)) + b"".join(u64(token) for token in ids)


def float32s(values: Sequence[float]) -> bytes:
    """IEEE float32 values after their number."""
    return u64(len(values)) + b"".join(struct.pack(">f", value) for value in values)


def hash_bytes(hex_digest: str) -> bytes:
    """The 32 raw bytes of a digest written in hex."""
    if type(hex_digest) is not str or len(hex_digest) != 64 or not set(hex_digest) <= set("0123456789abcdef"):
        raise ValueError(f"expected 64 lowercase hex characters, got {hex_digest!r}")
    return bytes.fromhex(hex_digest)


def sha256(domain: bytes, payload: bytes) -> str:
    """SHA-256 of a domain prefix and its payload, in hex."""
    return hashlib.sha256(domain + payload).hexdigest()


def prefix_digest(token_ids: Sequence[int]) -> str:
    """The cumulative hash: of all token ids up to and including a call's last."""
    return sha256(PREFIX_DOMAIN, tokens(token_ids))


def chain_digest(parent_chain_hash: str | None, delta_ids: Sequence[int]) -> str:
    """A call's chain hash: its own ids on top of its parent's chain hash, or of nothing for a root."""
    link = b"\x00" if parent_chain_hash is None else b"\x01" + hash_bytes(parent_chain_hash)
    return sha256(CHAIN_DOMAIN, link + tokens(delta_ids))


def extras_digest(extras: Any) -> str:
    """The digest of a call's extras: null or a string-keyed mapping of JSON-like values."""
    if extras is not None and type(extras) is not dict:
        raise ValueError(f"extras must be a mapping or null, got {type(extras).__name__}")
    return sha256(EXTRAS_DOMAIN, bytes([EXTRAS_DIGEST_VERSION]) + extra(extras))


def extra(value: Any, depth_left: int = MAX_EXTRAS_DEPTH) -> bytes:
    """One extras value: a type letter, then its content. Deeper than 64 containers is an error (decision D3)."""
    if value is None:
        return b"N"
    if type(value) is bool:
        return b"B\x01" if value else b"B\x00"
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"extras integers must fit in 64 bits, got one of {value.bit_length()} bits")
        return b"I" + value.to_bytes(8, "big", signed=True)
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"extras floats must be finite, got {value!r}")
        return b"F" + struct.pack(">d", value)
    if type(value) is str:
        return b"S" + text(value)
    if type(value) not in (list, dict):
        raise ValueError(f"extras cannot hold a {type(value).__name__}")
    if depth_left == 0:
        raise ValueError(f"extras are nested deeper than {MAX_EXTRAS_DEPTH}")
    if type(value) is list:
        return b"L" + u64(len(value)) + b"".join(extra(item, depth_left - 1) for item in value)
    if not all(type(key) is str for key in value):
        raise ValueError("extras mappings must have text keys")
    keys = sorted(value, key=lambda key: key.encode("utf-8"))
    return b"D" + u64(len(keys)) + b"".join(text(key) + extra(value[key], depth_left - 1) for key in keys)


def call_digest(call: StagedCall) -> str:
    """The digest of a staged call: everything in it except the digest itself."""
    check_call(call)
    payload: Iterable[bytes] = (
        bytes([SCHEMA_VERSION, DIGEST_VERSION, EXTRAS_DIGEST_VERSION]),
        text(call.rollout_id),
        text(call.model_call_id),
        b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id),
        text(call.mode),
        u64(call.prev_len),
        u64(call.delta_len),
        u64(call.cum_len),
        u64(call.weight_version),
        sized(tokens(call.token_ids_delta)),
        sized(float32s(call.token_mask_delta)),
        sized(float32s(call.generation_log_probs_delta)),
        hash_bytes(call.extras_digest),
        b"\x01" + hash_bytes(call.chain_hash),
        b"\x01" + hash_bytes(call.cumulative_hash),
    )
    return sha256(CALL_DOMAIN, b"".join(payload))
