"""One staged call as the wire columns of one row (section 9), from a record as a capture host hands it over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import torch
from tensordict import TensorDict

from rollproof.impl.bundles import read_bundle, staged_tensors
from rollproof.impl.checks import DIGESTS, LENGTHS, VERSIONS
from rollproof.impl.envelope import decode_routes
from rollproof.impl.route_boundary import boundary_column
from rollproof.impl.staged import StagedColumns, from_calls
from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    CAPTURE_MODES,
    ROUTE_BOUNDARY,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_NONE,
    ROUTED_EXPERTS,
)
from rollproof.spec.rejections import Code, Rejected


def staged_row(
    record: Any, attachments: Mapping[str, Any] | None = None, media_pixel_dtype: torch.dtype | None = None
) -> TensorDict:
    """Return the wire columns of one staged call, batch size ``[1]``; with media columns where their dtype is given.

    Log-probabilities are rounded to float32. Raises ``ValueError`` if the call breaks a rule of sections 1 or 3, or its
    routes or media cannot be staged.
    """
    columns, fault = from_calls([record], rounding=True)
    if fault is not None:
        raise ValueError(fault)
    extras = getattr(record, "extras", None)
    boundary = boundary_column(extras, record.prev_len)
    metadata = metadata_json(extras, *([] if boundary is None else [ROUTE_BOUNDARY]))
    encoding, staged_routes = route_columns(extras, record.delta_len)
    fields = _base_columns(columns, metadata)
    fields["routed_experts_encoding"] = torch.tensor([encoding])
    fields["routed_len"] = torch.tensor([0 if staged_routes is None else staged_routes.shape[1]])
    if staged_routes is not None:
        fields[ROUTED_EXPERTS] = staged_routes
    if boundary is not None:
        fields[ROUTE_BOUNDARY] = boundary
    if media_pixel_dtype is not None:
        fields |= media_columns(attachments, metadata, media_pixel_dtype)
    elif attachments:
        raise ValueError("the partition carries no media, but the call has attachments")
    return TensorDict(fields, batch_size=[1])


def metadata_json(extras: Mapping[str, Any] | None, *columns: str) -> bytes:
    """Return the staged form of a call's extras: compact JSON, keys sorted, UTF-8 unescaped.

    Without the routes, and without what else has a column of its own.
    """
    apart = (ROUTED_EXPERTS, *columns)
    rest = None if extras is None else {name: value for name, value in extras.items() if name not in apart}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _base_columns(columns: StagedColumns, metadata: bytes) -> dict[str, torch.Tensor]:
    """Return everything of one call that is not routes or media."""
    call = {name: column[0] for name, column in columns.fields.items()}
    parent = call["parent_call_id"]
    row = {
        "token_ids_delta": torch.from_numpy(columns.token_ids)[None],
        "token_mask_delta": torch.from_numpy(columns.token_mask)[None],
        "generation_logprobs_delta": torch.from_numpy(columns.logprobs)[None],
        "rollout_id_utf8": _bytes(call["rollout_id"].encode()),
        "model_call_id_utf8": _bytes(call["model_call_id"].encode()),
        "parent_call_id_utf8": _bytes(b"\x00" if parent is None else parent.encode()),
        "extras_metadata_json": _bytes(metadata),
        "parent_call_id_present": torch.tensor([parent is not None]),
        "chain_hash_present": torch.tensor([True]),
        "cumulative_hash_present": torch.tensor([True]),
        "capture_mode": torch.tensor([CAPTURE_MODES.index(call["mode"])]),
    }
    row |= {name: torch.tensor([int(call[name])]) for name in (*LENGTHS, *VERSIONS)}
    row |= {f"{name}_bytes": _bytes(call[name].tobytes()) for name in DIGESTS}
    return row


def _bytes(value: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(value), dtype=torch.uint8)[None]


def route_columns(extras: Mapping[str, Any] | None, delta_len: int) -> tuple[int, torch.Tensor | None]:
    """Return a call's staged routes: (encoding, ``[1, delta_len, L, K]`` in the envelope's dtype), or (0, None).

    Raises ``ValueError`` for malformed routes, or routes that are not as long as the call's tokens.
    """
    if extras is None or ROUTED_EXPERTS not in extras:
        return ROUTE_ENCODING_NONE, None
    payload = extras[ROUTED_EXPERTS]
    if isinstance(payload, Mapping):
        raise ValueError(f"{Code.UNSUPPORTED_ROUTE_ENCODING.code}: {ROUTED_EXPERTS} is a mapping")
    try:
        routes = decode_routes(payload)
    except Rejected as rejected:
        raise ValueError(rejected.reason) from None
    if len(routes) != delta_len:
        raise ValueError(f"{Code.ROUTED_LEN_MISMATCH.code}: {len(routes)} routes for {delta_len} tokens")
    return ROUTE_ENCODING_ENVELOPE if type(payload) is str else ROUTE_ENCODING_LIST, routes[None]


def media_columns(
    attachments: Mapping[str, Any] | None, metadata: bytes, pixel_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the media columns of one staged call of a partition that carries media, batch size 1.

    ``attachments`` are the named tensors that are new to the call, None for a call without media; a ``num_frames`` of
    None counts as left out. ``metadata`` is the call's staged extras. ``ValueError`` for what is not a bundle of
    ``pixel_dtype``.
    """
    bundle = None
    if attachments is not None:
        named = dict(attachments)
        if named.get(BUNDLE_FRAMES, 0) is None:
            del named[BUNDLE_FRAMES]
        bundle = read_bundle(named)
    digest = torch.frombuffer(bytearray(sha256(metadata).digest()), dtype=torch.uint8)
    return staged_tensors(bundle, pixel_dtype) | {"media_metadata_digest": digest[None]}
