"""The digests that tie a receipt to the staged bytes (section 2).

Every value that enters a digest is length-delimited, so that no two different inputs share an encoding. All numbers
are big-endian. A value outside the domains of section 1 has no digest and raises ``ValueError``.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

from rollproof.spec.constants import EXTRAS_DIGEST_VERSION, MAX_EXTRAS_DEPTH, UINT64_LIMIT
from rollproof.spec.records import StagedCall
from rollproof.spec.values import check_call, expect, expect_digest, is_text

PREFIX_DOMAIN: Final = b"nemo-gym-staging-prefix-v2"
CHAIN_DOMAIN: Final = b"nemo-gym-staging-chain-v1"
EXTRAS_DOMAIN: Final = b"nemo-gym-staging-extras-v1"
CALL_DOMAIN: Final = b"nemo-gym-staging-call-v2"


def u64(value: int) -> bytes:
    """Encode an unsigned 64-bit integer."""
    expect(type(value) is int and 0 <= value < UINT64_LIMIT, "u64", value, "an integer in [0, 2**64)")
    return value.to_bytes(8, "big")


def sized(value: bytes) -> bytes:
    """Encode bytes after their length."""
    return u64(len(value)) + value


def text(value: str) -> bytes:
    """Encode UTF-8 bytes after their length. A lone surrogate has no UTF-8."""
    expect(is_text(value), "string", value, "a string in valid UTF-8")
    return sized(value.encode("utf-8"))


def tokens(ids: Sequence[int]) -> bytes:
    """Encode token ids after their number."""
    return u64(len(ids)) + b"".join(u64(token) for token in ids)


def float32s(values: Sequence[float]) -> bytes:
    """Encode IEEE float32 values after their number."""
    return u64(len(values)) + b"".join(struct.pack(">f", value) for value in values)


def hash_bytes(hex_digest: str) -> bytes:
    """Return the 32 raw bytes of a digest written in hex."""
    expect_digest("digest", hex_digest)
    return bytes.fromhex(hex_digest)


def sha256(domain: bytes, payload: bytes) -> str:
    """Return SHA-256 of a domain prefix and its payload, in hex."""
    return hashlib.sha256(domain + payload).hexdigest()


def prefix_digest(token_ids: Sequence[int]) -> str:
    """Return the cumulative hash: of all token ids up to and including a call's last."""
    return sha256(PREFIX_DOMAIN, tokens(token_ids))


def chain_digest(parent_chain_hash: str | None, delta_ids: Sequence[int]) -> str:
    """Return a call's chain hash: its own ids on top of its parent's chain hash, or of nothing for a root."""
    link = b"\x00" if parent_chain_hash is None else b"\x01" + hash_bytes(parent_chain_hash)
    return sha256(CHAIN_DOMAIN, link + tokens(delta_ids))


def extras_digest(extras: Any) -> str:
    """Return the digest of a call's extras: null or a string-keyed mapping of JSON-like values.

    ``{"routed_experts": [[[1, 2]], [[3, 4]]]}`` digests to
    032024e899456be6e9a78c6d0399c5112d2ca7fa18d4ea9cf0d8cb7d0094f3a3.
    """
    expect(extras is None or type(extras) is dict, "extras", extras, "a mapping or null")
    return sha256(EXTRAS_DOMAIN, bytes([EXTRAS_DIGEST_VERSION]) + extra(extras))


def extra(value: Any, depth_left: int = MAX_EXTRAS_DEPTH) -> bytes:
    """Return the bytes of one extras value: a type letter, then its content.

        N                      null
        B 00|01                bool
        I 8 bytes              int, signed
        F 8 bytes              float64, finite
        S text                 string
        L u64 count, items     list
        D u64 count, entries   mapping: text key, value; sorted by the keys' UTF-8 bytes

    Deeper than 64 containers is an error (decision D3).
    """
    if value is None:
        return b"N"
    if type(value) is bool:
        return b"B\x01" if value else b"B\x00"
    if type(value) is int:
        expect(-(2**63) <= value < 2**63, "extras", value, "integers that fit in 64 bits")
        return b"I" + value.to_bytes(8, "big", signed=True)
    if type(value) is float:
        expect(math.isfinite(value), "extras", value, "finite floats")
        return b"F" + struct.pack(">d", value)
    if type(value) is str:
        return b"S" + text(value)
    expect(type(value) in (list, dict), "extras", value, "values of JSON")
    expect(depth_left > 0, "extras", value, f"at most {MAX_EXTRAS_DEPTH} levels")
    if type(value) is list:
        return b"L" + u64(len(value)) + b"".join(extra(item, depth_left - 1) for item in value)
    for key in value:
        expect(is_text(key), "extras", key, "strings in valid UTF-8 as names")
    keys = sorted(value, key=lambda key: key.encode("utf-8"))
    return b"D" + u64(len(keys)) + b"".join(text(key) + extra(value[key], depth_left - 1) for key in keys)


def call_digest(call: StagedCall) -> str:
    """Return the digest of a staged call: everything in it except the digest itself.

    The call of the public conformance file (``rollproof.spec.judge.rules.records.GOLDEN_CALL``) digests to
    1122c7fe7e914c809eb9b1c09b26d94a50c1eb2790e7430fbcd8363b846ccf27.
    """
    check_call(call)
    return sha256(CALL_DOMAIN, call_payload(call))


def call_payload(call: StagedCall) -> bytes:
    """Return the bytes of a staged call that are hashed after the domain; they are laid out, not checked.

    02 02 01                      schema, digest and extras digest version
    text(rollout_id)              each text: u64 length, UTF-8 bytes
    text(model_call_id)
    00 | 01 text(parent_call_id)  a root, or a child
    text(mode)
    u64 prev_len, delta_len, cum_len, weight_version
    sized(tokens(ids))            u64 bytes, u64 count, then u64 per id
    sized(float32s(mask))         u64 bytes, u64 count, then 4 bytes per value
    sized(float32s(log-probs))
    32 bytes extras digest
    01, 32 bytes chain hash
    01, 32 bytes cumulative hash
    """
    versions = bytes([call.schema_version, call.digest_version, call.extras_digest_version])
    parent = b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id)
    identity = text(call.rollout_id) + text(call.model_call_id) + parent + text(call.mode)
    lengths = b"".join(map(u64, (call.prev_len, call.delta_len, call.cum_len, call.weight_version)))
    columns = (tokens(call.token_ids_delta), float32s(call.token_mask_delta), float32s(call.generation_log_probs_delta))
    hashes = (
        hash_bytes(call.extras_digest),
        b"\x01" + hash_bytes(call.chain_hash),
        b"\x01" + hash_bytes(call.cumulative_hash),
    )
    return versions + identity + lengths + b"".join(map(sized, columns)) + b"".join(hashes)
