"""Staged calls as columns: off a data plane's answer (section 9), or from single records, checked alike (D17).

Nothing is decoded per token. Metadata rules are array expressions over the calls, token rules over all tokens of all
calls at once. Extras, routes and pixels are not looked into.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rollproof.impl.checks import (
    DIGESTS,
    LENGTHS,
    VERSIONS,
    earliest,
    is_hash,
    is_length,
    is_text,
    object_columns,
    position_rules,
    row_flags,
    show,
)
from rollproof.impl.columns import (
    Columns,
    EncodedTokens,
    Flags,
    Ints,
    objects,
    ragged,
    read_bytes,
    read_digests,
    read_ragged,
    read_scalars,
    read_texts,
)
from rollproof.spec.constants import (
    BASE_COLUMNS,
    CAPTURE_MODES,
    DIGEST_BYTES,
    FLAG_COLUMNS,
    MEDIA_FLAG_COLUMNS,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
    SCALAR_COLUMNS,
    TOKEN_COLUMNS,
)
from rollproof.spec.records import StagedCall
from rollproof.spec.rejections import Code, Rejected

FIELDS: Final = ("rollout_id", "model_call_id", "parent_call_id", "mode", *LENGTHS, *DIGESTS, *VERSIONS)
"""What ``StagedColumns.fields`` holds."""

_MODES: Final = objects(CAPTURE_MODES)
_ONE_BITS: Final = np.float32(1.0).view(np.uint32)
_NO_PARENT: Final = "\x00"


@frozen(eq=False, slots=False)
class StagedColumns:
    """C staged calls with T tokens in all, checked against sections 1 and 3.

    The digests are as staged: whether a call's content gives its digest is section 4's to say.
    """

    fields: Columns
    """Per field of ``FIELDS`` its values over the calls: objects for texts, int64, uint8 ``[C, 32]`` for digests."""
    token_ids: Ints
    token_mask: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    offsets: Ints
    """``[C + 1]``: call ``i`` has the tokens from offsets[i] to offsets[i + 1] of the three token columns."""
    extras_metadata_json: Sequence[bytes] = ()
    route_encodings: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    routed_lens: Ints = field(factory=lambda: np.zeros(0, dtype=np.int64))
    media_present: Flags = field(factory=lambda: np.zeros(0, dtype=np.bool_))
    media_has_frames: Flags = field(factory=lambda: np.zeros(0, dtype=np.bool_))
    routed_experts: Any = None
    """The batched route column as the data plane answered it, unchecked; None where the answer has none."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def encoded(self) -> EncodedTokens:
        """The token columns in digest byte order, encoded once for all digests."""
        return EncodedTokens.of(self.token_ids, self.token_mask, self.logprobs, self.offsets)

    @cached_property
    def generated(self) -> Flags:
        """``[T]``: whether the policy generated the token (mask 1.0)."""
        return np.equal(self.token_mask.view(np.uint32), _ONE_BITS)


# ── off the wire ────────────────────────────────────────────────────────────────────────────────────────────────────


def base_columns(*, media: bool = False) -> list[str]:
    """The columns that one base read asks for."""
    return [*BASE_COLUMNS, *MEDIA_FLAG_COLUMNS] if media else [*BASE_COLUMNS]


def decode(answer: TensorDictBase, *, media: bool = False, vocab_size: int | None = None) -> StagedColumns:
    """The rows of a batched read, in its order.

    Tensors may be dense or jagged and on any device. Raises ``Rejected(INVALID_STAGING_ROW)`` if a column is missing,
    has a wrong dtype or size, breaks a rule of sections 1 or 3 or contradicts another (D17), and nothing else.
    """
    try:
        columns = _read(answer, media=media)
        fault = earliest(_wire_rules(columns)) or earliest(_call_rules(columns))
        fault = fault or earliest(_token_rules(columns, vocab_size))
    except ValueError as error:
        raise Rejected(Code.INVALID_STAGING_ROW, str(error)) from None
    if fault is not None:
        raise Rejected(Code.INVALID_STAGING_ROW, f"row {fault[0]}: {fault[1]}")
    return columns


def _read(answer: TensorDictBase, *, media: bool) -> StagedColumns:
    """The columns with the right dtypes and shapes. Raises ``ValueError``."""
    scalars = {name: read_scalars(answer, name, torch.int64) for name in SCALAR_COLUMNS}
    flags = {name: read_scalars(answer, name, torch.bool) for name in FLAG_COLUMNS}
    tokens = [read_ragged(answer, name, getattr(torch, dtype)) for name, dtype in TOKEN_COLUMNS.items()]
    for name, column in zip(TOKEN_COLUMNS, tokens, strict=True):
        if np.count_nonzero(column.lengths != scalars["delta_len"]):
            raise ValueError(f"{name}: its length is not delta_len")
    for name in ("chain_hash_present", "cumulative_hash_present"):
        if not flags[name].all():
            raise ValueError(f"{name}: expected true")
    modes = scalars["capture_mode"]
    if ((modes != 0) & (modes != 1)).any():
        raise ValueError("capture_mode: expected 0 or 1")
    fields: dict[str, NDArray[Any]] = {
        "rollout_id": objects(read_texts(answer, "rollout_id_utf8")),
        "model_call_id": objects(read_texts(answer, "model_call_id_utf8")),
        "parent_call_id": _parents(answer, flags["parent_call_id_present"]),
        "mode": _MODES[modes],
    }
    fields |= {name: scalars[name] for name in (*LENGTHS, *VERSIONS)}
    for name in DIGESTS:
        fields[name] = read_digests(answer, f"{name}_bytes", DIGEST_BYTES)
    metadata = read_bytes(answer, "extras_metadata_json")
    present = has_frames = np.zeros(len(modes), dtype=np.bool_)
    if media:
        present, has_frames = (read_scalars(answer, name, torch.bool) for name in MEDIA_FLAG_COLUMNS[:2])
        recorded = read_digests(answer, MEDIA_FLAG_COLUMNS[2], DIGEST_BYTES)
        if b"".join(hashlib.sha256(row).digest() for row in metadata) != recorded.tobytes():
            raise ValueError(f"{MEDIA_FLAG_COLUMNS[2]}: not that of the metadata")
    return StagedColumns(
        fields=fields,
        token_ids=tokens[0].values,
        token_mask=tokens[1].values,
        logprobs=tokens[2].values,
        offsets=tokens[0].offsets,
        extras_metadata_json=metadata,
        route_encodings=scalars["routed_experts_encoding"],
        routed_lens=scalars["routed_len"],
        media_present=present,
        media_has_frames=has_frames,
        routed_experts=answer.get(ROUTED_EXPERTS, None),
    )


def _parents(answer: TensorDictBase, present: Flags) -> NDArray[Any]:
    """Parent call ids, None where the flag says that there is none; then the column holds one zero byte."""
    parents = objects(read_texts(answer, "parent_call_id_utf8"))
    if not set(parents[~present]) <= {_NO_PARENT}:
        raise ValueError("parent_call_id_utf8: expected one zero byte for an absent parent")
    parents[~present] = None
    return parents


def _wire_rules(columns: StagedColumns) -> Iterator[tuple[str, Flags]]:
    """What the wire columns beside the call's own fields must satisfy."""
    encodings, lengths = columns.route_encodings, columns.routed_lens
    known = (encodings >= ROUTE_ENCODING_NONE) & (encodings <= ROUTE_ENCODING_LIST)
    yield "routed_experts_encoding: expected 0, 1 or 2", ~known
    yield "routed_len: negative", lengths < 0
    yield "routed_len: expected 0 iff there is no encoding", (encodings == ROUTE_ENCODING_NONE) != (lengths == 0)
    yield "media_has_frames: expected false without media", columns.media_has_frames & ~columns.media_present


# ── the rules of sections 1 and 3 ───────────────────────────────────────────────────────────────────────────────────


def _call_rules(columns: StagedColumns) -> Iterator[tuple[str, Flags]]:
    fields = columns.fields
    for name, supported in VERSIONS.items():
        yield f"{name}: expected {supported}", fields[name] != supported
    rollout_ids = fields["rollout_id"].tolist()
    if any("/" in rollout_id for rollout_id in set(rollout_ids)):
        yield 'rollout_id: expected no "/"', np.array(["/" in rollout_id for rollout_id in rollout_ids])
    for name in LENGTHS:
        yield f"{name}: negative", fields[name] < 0
    yield from position_rules(fields)


def _token_rules(columns: StagedColumns, vocab_size: int | None = None) -> Iterator[tuple[str, Flags]]:
    """Rules over tokens; every call has at least one."""
    offsets, carry, logprobs = columns.offsets, ~columns.generated, columns.logprobs
    mask_bits, logprob_bits = columns.token_mask.view(np.uint32), logprobs.view(np.uint32)
    yield "token_ids_delta: negative", row_flags(columns.token_ids < 0, offsets)
    if vocab_size is not None:
        yield f"token_ids_delta: not below {vocab_size}", row_flags(columns.token_ids >= vocab_size, offsets)
    yield "token_mask_delta: expected the bits of 0.0 or 1.0", row_flags(carry & (mask_bits != 0), offsets)
    yield "generation_logprobs_delta: not finite", row_flags(~np.isfinite(logprobs), offsets)
    yield "generation_logprobs_delta: expected +0.0 on carry", row_flags(carry & (logprob_bits != 0), offsets)


# ── from records ────────────────────────────────────────────────────────────────────────────────────────────────────


def from_calls(calls: Sequence[StagedCall]) -> tuple[StagedColumns, str | None]:
    """The calls before the first that breaks a rule of sections 1 or 3 as columns, and what that one breaks.

    Any object with a staged call's attributes will do, whatever their types.
    """
    fault, tokens = None, []
    for call in calls:
        try:
            tokens.append(_arrays(call))
        except ValueError as error:
            fault = str(error)
            break
    columns = _from_arrays(calls[: len(tokens)], tokens)
    broken = [found for found in (earliest(_call_rules(columns)), earliest(_token_rules(columns))) if found]
    if not broken:
        return columns, fault
    row, fault = min(broken, key=lambda found: found[0])
    return _from_arrays(calls[:row], tokens[:row]), fault


def _from_arrays(calls: Sequence[StagedCall], tokens: Sequence[tuple[NDArray[Any], ...]]) -> StagedColumns:
    fields = dict(object_columns(calls, FIELDS))
    for name in (*LENGTHS, *VERSIONS):
        fields[name] = fields[name].astype(np.int64)
    for name in DIGESTS:
        raw = bytes.fromhex("".join(fields[name].tolist()))
        fields[name] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    ids, mask, logprobs = (
        ragged([row[column] for row in tokens], np.zeros(0, dtype=dtype))
        for column, dtype in enumerate(TOKEN_COLUMNS.values())
    )
    return StagedColumns(fields, ids.values, mask.values, logprobs.values, ids.offsets)


def _arrays(call: StagedCall) -> tuple[NDArray[Any], ...]:
    """A call's token columns as arrays. Raises ``ValueError`` if it does not fit into columns."""
    for name in ("rollout_id", "model_call_id", "parent_call_id"):
        value = getattr(call, name)
        if not (is_text(value) and value) and not (value is None and name == "parent_call_id"):
            raise ValueError(f"{name}: got {show(value)}, expected a non-empty text")
    for name in (*LENGTHS, *VERSIONS):
        if not is_length(getattr(call, name)):
            raise ValueError(f"{name}: got {show(getattr(call, name))}, expected an integer in [0, 2**63)")
    for name in DIGESTS:
        if not is_hash(getattr(call, name)):
            raise ValueError(f"{name}: got {show(getattr(call, name))}, expected 64 lowercase hex characters")
    if call.mode not in CAPTURE_MODES:
        raise ValueError(f"mode: got {show(call.mode)}, expected text or token_in")
    columns = call.token_ids_delta, call.token_mask_delta, call.generation_log_probs_delta
    if not call.delta_len or [len(column) for column in columns] != [call.delta_len] * 3:
        raise ValueError(f"token columns: expected three of delta_len {call.delta_len}, at least 1")
    if not set(map(type, columns[0])) <= {int} or not is_length(min(columns[0])) or not is_length(max(columns[0])):
        raise ValueError("token_ids_delta: expected integers in [0, 2**63)")
    if not set(map(type, columns[1])) | set(map(type, columns[2])) <= {float}:
        raise ValueError("token_mask_delta, generation_log_probs_delta: expected floats")
    exact = [np.array(column, dtype=np.float64) for column in columns[1:]]
    with np.errstate(over="ignore"):
        mask, logprobs = (column.astype(np.float32) for column in exact)
    if (mask != exact[0]).any() or (logprobs != exact[1]).any():
        raise ValueError("token_mask_delta, generation_log_probs_delta: expected float32 values")
    return np.array(columns[0], dtype=np.int64), mask, logprobs
