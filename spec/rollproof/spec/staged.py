"""Reading one staged row from its wire columns (sections 9 and 5), and writing one.

The row is untrusted: a column may be missing, have another dtype or size, break a rule of sections 1 or 3, or
contradict another column. All of these are ``invalid_staging_row`` (decision D17). The digest is checked later, in
section 4, so that tampering is not mistaken for a type error. Extras, routes and pixels are not decoded here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from attrs import frozen

from rollproof.spec.constants import (
    BASE_COLUMNS,
    CAPTURE_MODES,
    DIGEST_BYTES,
    MEDIA_FLAG_COLUMNS,
    ROUTE_BOUNDARY,
    ROUTE_ENCODING_NONE,
    ROUTE_ENCODINGS,
    ROUTED_EXPERTS,
    SCALAR_COLUMNS,
    TOKEN_COLUMNS,
    TOPK_COLUMNS,
)
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import check_call, expect, fault, owned_key, refusing

Row: TypeAlias = Mapping[str, Tensor]
"""One staged row: column name to a tensor of batch size 1, as section 9 lays it out."""

ABSENT_PARENT = b"\x00"
"""The content of ``parent_call_id_utf8`` for a root: storage cannot keep an empty row."""


@frozen
class StagedRow:
    """A decoded staged row: the call, and what its columns say about extras, routes and media."""

    call: StagedCall
    extras_metadata_json: bytes
    routed_experts_encoding: int
    routed_len: int
    media_present: bool = False
    media_has_frames: bool = False
    routed_experts: Tensor | None = None
    """The staged route column, unchecked, where the read requested it and the row has it."""
    boundary: Tensor | None = None
    """The column of the boundary sidecar, unchecked, where it was read and the row has it (section 10)."""
    topk_ids: Tensor | None = None
    topk_logprobs: Tensor | None = None
    """The sampler columns, of any shape, where the read requested them (section 12)."""

    @property
    def key(self) -> str:
        """The staging key that this row's own identity gives."""
        return owned_key(self.call.rollout_id, self.call.model_call_id)


def decode_row(
    row: Row, *, media: bool = False, vocab_size: int | None = None, topk: bool = False, where: str = ""
) -> StagedRow:
    """Decode a staged row from its base columns, and from its media flags where the partition carries ``media``.

    With ``topk``, the sampler columns must be there too, each with its dtype.

    Raises ``Rejected(INVALID_STAGING_ROW)``, and nothing else; ``where`` is how it names the row.
    """
    with refusing(Code.INVALID_STAGING_ROW, where=where):
        scalars = {name: scalar(row, name) for name in SCALAR_COLUMNS}
        mode, encoding, routed_len = map(scalars.pop, ("capture_mode", "routed_experts_encoding", "routed_len"))
        expect(mode in (0, 1), "capture_mode", mode, "0 or 1")
        call = StagedCall(
            rollout_id=utf8(row, "rollout_id_utf8"),
            model_call_id=utf8(row, "model_call_id_utf8"),
            parent_call_id=optional_parent(row),
            mode=CAPTURE_MODES[mode],
            token_ids_delta=vector(row, "token_ids_delta", scalars["delta_len"]),
            token_mask_delta=vector(row, "token_mask_delta", scalars["delta_len"]),
            generation_log_probs_delta=vector(row, "generation_logprobs_delta", scalars["delta_len"]),
            digest=digest(row, "digest"),
            extras_digest=digest(row, "extras_digest"),
            chain_hash=present_digest(row, "chain_hash"),
            cumulative_hash=present_digest(row, "cumulative_hash"),
            **scalars,
        )
        metadata = raw_bytes(row, "extras_metadata_json")
        present, has_frames = media_flags(row, metadata) if media else (False, False)
        sampled = [column(row, name, dtype) if topk else None for name, dtype in TOPK_COLUMNS.items()]
        check_call(call)
        if vocab_size is not None:
            for index, token in enumerate(call.token_ids_delta):
                expected = f"an id below the vocabulary size {vocab_size}"
                expect(token < vocab_size, f"token_ids_delta[{index}]", token, expected)
        expect(encoding in ROUTE_ENCODINGS, "routed_experts_encoding", encoding, "0, 1, 2 or 3")
        expect(routed_len >= 0, "routed_len", routed_len, "a length")
        expect((encoding == ROUTE_ENCODING_NONE) == (routed_len == 0), "routed_len", routed_len, "0 iff no encoding")
        expect(present or not has_frames, "media_has_frames", has_frames, "False for a row without media")
    routes = row.get(ROUTED_EXPERTS)
    return StagedRow(call, metadata, encoding, routed_len, present, has_frames, routes, None, *sampled)


# ── one column at a time; each raises ``ValueError`` ────────────────────────────────────────────────────────────────


def column(row: Row, name: str, dtype: str) -> Tensor:
    """Return a column that must be there with this dtype."""
    if name not in row:
        raise ValueError(fault(name, None, "a column"))
    expect(row[name].dtype == dtype, name, row[name].dtype, dtype)
    return row[name]


def scalar(row: Row, name: str, dtype: str = "int64") -> int:
    """Read a column of one element; some backends add a dimension to it."""
    found = column(row, name, dtype)
    expect(found.shape in ((1,), (1, 1)), name, list(found.shape), "one element")
    return int(found.values()[0])


def flag(row: Row, name: str) -> bool:
    """Read a bool column of one element."""
    return bool(scalar(row, name, "bool"))


def vector(row: Row, name: str, delta_len: int) -> tuple[Any, ...]:
    """Return a token column, ``[1, delta_len]``."""
    found = column(row, name, TOKEN_COLUMNS[name])
    expect(found.shape == (1, delta_len), name, list(found.shape), f"shape [1, {delta_len}], by delta_len")
    return found.values()


def raw_bytes(row: Row, name: str) -> bytes:
    """Read a uint8 column, ``[1, n]`` with n > 0."""
    found = column(row, name, "uint8")
    expect(len(found.shape) == 2 and found.shape[0] == 1 and found.shape[1] > 0, name, list(found.shape), "[1, bytes]")
    return found.data


def utf8(row: Row, name: str) -> str:
    """Read a uint8 column that holds a string."""
    try:
        return raw_bytes(row, name).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(fault(name, raw_bytes(row, name), "a string in UTF-8")) from None


def optional_parent(row: Row) -> str | None:
    """Read the parent call id, which is one zero byte exactly where the flag says that there is none."""
    if flag(row, "parent_call_id_present"):
        return utf8(row, "parent_call_id_utf8")
    found = raw_bytes(row, "parent_call_id_utf8")
    expect(found == ABSENT_PARENT, "parent_call_id_utf8", found, "one zero byte for an absent parent")
    return None


def digest(row: Row, name: str) -> str:
    """Read a uint8 column of 32 bytes, in hex."""
    found = raw_bytes(row, f"{name}_bytes")
    expect(len(found) == DIGEST_BYTES, f"{name}_bytes", found, "32 bytes")
    return found.hex()


def present_digest(row: Row, name: str) -> str:
    """Read a digest column whose flag must say that it is there."""
    expect(flag(row, f"{name}_present"), f"{name}_present", False, "True")
    return digest(row, name)


def media_flags(row: Row, metadata: bytes) -> tuple[bool, bool]:
    """Return whether the row carries media, and whether frames; check that the metadata is the one that was staged."""
    present, has_frames = flag(row, "media_present"), flag(row, "media_has_frames")
    recorded = raw_bytes(row, "media_metadata_digest")
    expect(recorded == hashlib.sha256(metadata).digest(), "media_metadata_digest", recorded, "that of the metadata")
    return present, has_frames


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def metadata_json(extras: Mapping[str, Any] | None, *columns: str) -> bytes:
    """Return the staged form of a call's extras: compact JSON, keys sorted, UTF-8 unescaped.

    Without the routes, and without what else has a column of its own.
    """
    apart = (ROUTED_EXPERTS, *columns)
    rest = None if extras is None else {name: value for name, value in extras.items() if name not in apart}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def byte_column(value: bytes) -> Tensor:
    """Return a column of bytes, ``[1, n]``."""
    return Tensor("uint8", (1, len(value)), value)


def encode_row(
    call: StagedCall,
    extras: Mapping[str, Any] | None = None,
    *,
    routed_experts_encoding: int = ROUTE_ENCODING_NONE,
    routes: Tensor | None = None,
    boundary: Tensor | None = None,
    media: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Return the wire columns of one staged call.

    ``routes`` is the column ``routed_experts`` as staged, ``[1, delta_len, L, K]``; ``boundary`` is the column of the
    sidecar, ``[1, 1, L, K]``, which then leaves the metadata (section 10); ``media`` holds the media columns of a media
    partition other than ``media_metadata_digest``, which is computed.
    """
    metadata = metadata_json(extras) if boundary is None else metadata_json(extras, ROUTE_BOUNDARY)
    tokens = (call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta)
    texts = {
        "rollout_id_utf8": call.rollout_id.encode(),
        "model_call_id_utf8": call.model_call_id.encode(),
        "parent_call_id_utf8": (call.parent_call_id or "").encode() or ABSENT_PARENT,
        "extras_metadata_json": metadata,
    }
    digests = ("digest", "extras_digest", "chain_hash", "cumulative_hash")
    scalars = {
        "capture_mode": CAPTURE_MODES.index(call.mode),
        "routed_experts_encoding": routed_experts_encoding,
        "routed_len": 0 if routes is None else routes.shape[1],
    }
    scalars |= {name: getattr(call, name) for name in SCALAR_COLUMNS if name not in scalars}
    columns = zip(TOKEN_COLUMNS.items(), tokens, strict=True)
    row = {name: Tensor.of(dtype, values, (1, len(values))) for (name, dtype), values in columns}
    row |= {name: byte_column(value) for name, value in texts.items()}
    row["parent_call_id_present"] = Tensor.of("bool", [call.parent_call_id is not None])
    row |= {name: Tensor.of("bool", [True]) for name in ("chain_hash_present", "cumulative_hash_present")}
    row |= {f"{name}_bytes": byte_column(bytes.fromhex(getattr(call, name))) for name in digests}
    row |= {name: Tensor.of("int64", [value]) for name, value in scalars.items()}
    if routes is not None:
        row[ROUTED_EXPERTS] = routes
    if boundary is not None:
        row[ROUTE_BOUNDARY] = boundary
    if media is not None:
        row |= {**media, "media_metadata_digest": byte_column(hashlib.sha256(metadata).digest())}
    return row


def base_columns(*, media: bool, topk: bool = False) -> tuple[str, ...]:
    """Return the columns that one base read requests."""
    return (*BASE_COLUMNS, *(MEDIA_FLAG_COLUMNS if media else ()), *(TOPK_COLUMNS if topk else ()))
