"""Route plans executed on tensors (section 6): verify each fragment, then lay all of them out in one allocation.

A fragment is hashed as it lies there: the text or the lists that the digest covers are written chunk by chunk into the
hash and never exist as a whole. Ids are checked by array expressions over vectors of ``K`` ids; on an accelerator they
stay there, and only the bytes to be hashed are copied to the host.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl.digest import EXTRAS_PREFIX, encode_extra, encode_text, u64
from rollproof.impl.envelope import base64_length, envelope_head, little_endian
from rollproof.impl.plan import Use, use_of
from rollproof.spec.constants import (
    MAX_EXTRAS_DEPTH,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
)
from rollproof.spec.records import RouteAssemblyPlan, RouteSpan
from rollproof.spec.rejections import Code, Rejected

Dims = tuple[int, int]
"""(layers, top-k)."""

MAX_EXPERTS: Final = 2**15
"""Published routes are int16 (decision D8)."""

_HASH_CHUNK: Final = 3 * 2**16
"""Bytes per step of the hash; a multiple of 3, so that base64 pads only at the end."""
_HOST_CHUNK: Final = 2**19
_DEVICE_CHUNK: Final = 2**26
"""Ids per step of the checks: what stays in a core's cache, or what keeps an accelerator busy."""
_FEW_EXPERTS: Final = 16
"""Up to this top-k, comparing all pairs is faster than sorting."""


@frozen(eq=False)
class RouteFragment:
    """One call's routes as staged, ``[T, L, K]``, with the encoding and the other extras that its digest covers."""

    routes: torch.Tensor
    encoding: int
    extras_metadata_json: bytes


def execute(
    plan: RouteAssemblyPlan,
    fragments: Mapping[str, RouteFragment],
    dims: Dims | None,
    canonical_len: int,
    *,
    num_experts: int | None = None,
    allow_repeated_experts: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The int16 routes ``[canonical_len, L, K]`` of a valid plan: in ``out``, or on the device of its first fragment.

    ``dims`` None lets the first used fragment say (L, K); there must be one then. Raises ``Rejected`` with the first
    violated rule of section 6; nothing is written before all fragments have passed.
    """
    if canonical_len != plan.expected_token_length:
        raise Rejected(Code.CANONICAL_LENGTH_MISMATCH, f"{canonical_len} tokens, planned {plan.expected_token_length}")
    used: list[tuple[Use, torch.Tensor | None]] = []
    device = None
    for span in plan.spans:
        use = use_of(span)
        routes = None
        if use.rows:
            fragment = fragments.get(span.staging_key)
            if fragment is None:
                raise Rejected(Code.MISSING_FRAGMENT, span.staging_key)
            routes = fragment.routes
            verify(fragment, span)
            dims = _shape_of(routes, span, dims)
            check_ids(routes, span.staging_key, num_experts, allow_repeated_experts)
            device = device or routes.device
        used.append((use, routes))
    if used and sum(use.unrouted + use.rows for use, _ in used) != canonical_len:
        raise Rejected(Code.ASSEMBLED_LENGTH_MISMATCH, f"for a row of {canonical_len} tokens")
    if dims is None:
        raise ValueError("(L, K) is unknown, and no fragment says it")
    row = torch.empty((canonical_len, *dims), dtype=torch.int16, device=device) if out is None else out
    lay_out(used, row)
    return row


def lay_out(used: Iterable[tuple[Use, torch.Tensor | None]], row: torch.Tensor) -> None:
    """Write verified fragments, each with what its span takes from it, into ``row``: int16 ``[tokens, L, K]``."""
    position = 0
    for use, routes in used:
        row[position : position + use.unrouted].fill_(ROUTE_SENTINEL)
        position += use.unrouted
        if routes is not None:
            row[position : position + use.rows].copy_(routes[use.first : use.first + use.rows])
            position += use.rows
    row[position:].fill_(ROUTE_SENTINEL)


def _shape_of(routes: torch.Tensor, span: RouteSpan, dims: Dims | None) -> Dims:
    if routes.dim() != 3:
        raise Rejected(Code.FRAGMENT_RANK, f"{span.staging_key}: {list(routes.shape)}")
    tokens, layers, experts = routes.shape
    if tokens != span.staged_route_len:
        raise Rejected(Code.FRAGMENT_LENGTH, f"{span.staging_key}: {tokens} tokens, planned {span.staged_route_len}")
    if dims not in (None, (layers, experts)):
        raise Rejected(Code.FRAGMENT_MODEL_SHAPE, f"{span.staging_key}: {layers} x {experts}, expected {dims}")
    return layers, experts


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_ids(
    routes: torch.Tensor, where: str, num_experts: int | None = None, allow_repeated_experts: bool = False
) -> None:
    """Range, partial sentinels and repeated experts (D8, D7, D20) over all of ``[T, L, K]``, in this order."""
    limit = MAX_EXPERTS if num_experts is None else min(num_experts, MAX_EXPERTS)
    smallest, largest = (int(bound) for bound in torch.aminmax(routes))
    if smallest < ROUTE_SENTINEL or largest >= limit:
        raise Rejected(Code.FRAGMENT_VALUE_RANGE, f"{where}: ids from {smallest} to {largest}, limit {limit}")
    sentinels = smallest == ROUTE_SENTINEL
    if largest == ROUTE_SENTINEL or not (sentinels or not allow_repeated_experts):
        return
    width = routes.shape[-1]
    step = max(1, (_HOST_CHUNK if routes.device.type == "cpu" else _DEVICE_CHUNK) // width)
    partial = repeated = torch.zeros((), dtype=torch.bool, device=routes.device)
    vectors = routes.reshape(-1, width)
    for start in range(0, len(vectors), step):
        slots = vectors[start : start + step].t().contiguous()
        unrouted = slots < 0 if sentinels else None
        if unrouted is not None:
            partial = partial | (unrouted.any(0) != unrouted.all(0)).any()
        if not allow_repeated_experts:
            repeats = _repeats(slots)
            repeated = repeated | (repeats if unrouted is None else repeats & ~unrouted[0]).any()
    if partial:
        raise Rejected(Code.FRAGMENT_PARTIAL_SENTINEL, where)
    if repeated:
        raise Rejected(Code.FRAGMENT_DUPLICATE_EXPERT, where)


def _repeats(slots: torch.Tensor) -> torch.Tensor:
    """Which columns of ``[K, n]`` hold some id twice."""
    if len(slots) <= _FEW_EXPERTS:
        found = torch.zeros(slots.shape[1], dtype=torch.bool, device=slots.device)
        for i in range(1, len(slots)):
            found |= (slots[i:] == slots[i - 1]).any(0)
        return found
    ordered = slots.sort(dim=0).values
    return (ordered[1:] == ordered[:-1]).any(0)


# ── integrity ───────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(fragment: RouteFragment, span: RouteSpan) -> None:
    """The extras rebuilt around the fragment digest to the span's commitment, else ``FRAGMENT_INTEGRITY``."""
    try:
        actual = routed_extras_digest(fragment)
    except ValueError as error:
        raise Rejected(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: {error}") from None
    if actual != span.extras_digest:
        raise Rejected(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: digests to {actual}")


def routed_extras_digest(fragment: RouteFragment) -> str:
    """The digest of a call's extras with its routes put back, as hex; ``ValueError`` where they cannot be."""
    extras = read_metadata(fragment.extras_metadata_json) or {}
    write = _route_writer(fragment.routes, fragment.encoding)
    state = sha256(EXTRAS_PREFIX + b"D" + u64(len(extras) + 1))
    for name in sorted((*extras, ROUTED_EXPERTS), key=str.encode):
        state.update(encode_text(name))
        if name == ROUTED_EXPERTS:
            write(state.update)
        else:
            encoded = bytearray()
            encode_extra(extras[name], encoded, MAX_EXTRAS_DEPTH - 1)
            state.update(encoded)
    return state.hexdigest()


def read_metadata(data: bytes) -> dict[str, Any] | None:
    """Staged extras without their routes: null, or an object with distinct names throughout; else ``ValueError``."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("extras metadata: nested too deep") from None
    if value is None:
        return None
    if type(value) is not dict:
        raise ValueError(f"extras metadata: a {type(value).__name__}")
    if ROUTED_EXPERTS in value:
        raise ValueError(f"extras metadata: it holds {ROUTED_EXPERTS}")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("extras metadata: a name repeats")
    return found


def _route_writer(routes: torch.Tensor, encoding: int) -> Callable[[Callable[[Any], None]], None]:
    """What writes the extras encoding of a fragment into a hash."""
    if encoding == ROUTE_ENCODING_ENVELOPE:
        head = envelope_head(routes.dtype, tuple(routes.shape)).encode()
        return lambda update: _write_envelope(update, head, little_endian(routes))
    if encoding != ROUTE_ENCODING_LIST or routes.dtype is not torch.int16:
        raise ValueError(f"encoding {encoding} of {routes.dtype}")
    if routes.dim() >= MAX_EXTRAS_DEPTH or not routes.numel():
        raise ValueError(f"no lists hold the shape {list(routes.shape)}")
    ids = np.ascontiguousarray(routes.numpy(force=True))
    return lambda update: _write_lists(update, ids.reshape(routes.shape))


def _write_envelope(update: Callable[[Any], None], head: bytes, data: memoryview) -> None:
    update(b"S" + u64(len(head) + base64_length(len(data))) + head)
    for start in range(0, len(data), _HASH_CHUNK):
        update(binascii.b2a_base64(data[start : start + _HASH_CHUNK], newline=False))


def _write_lists(update: Callable[[Any], None], ids: NDArray[np.int16]) -> None:
    """Nested lists of ints: as many items at a time as fit into a chunk, a larger item piece by piece."""
    if ids.ndim == 0:
        update(b"I" + int(ids).to_bytes(8, "big", signed=True))
        return
    update(b"L" + u64(len(ids)))
    item = _item_type(ids.shape[1:])
    if ids.ndim > 1 and (item is None or item.itemsize > _HASH_CHUNK):
        for part in ids:
            _write_lists(update, part)
        return
    assert item is not None
    step = max(1, _HASH_CHUNK // item.itemsize)
    encoded = np.empty(min(step, len(ids)), dtype=item)
    slots = encoded
    for size in ids.shape[1:]:
        slots["head"] = np.void(b"L" + u64(size))
        slots = slots["items"]
    slots["tag"] = b"I"
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        slots["id"][: len(part)] = part
        update(encoded[: len(part)].view(np.uint8).data)


def _item_type(shape: tuple[int, ...]) -> np.dtype[Any] | None:
    """The bytes of one item of nested lists; None where they are too many to be handled at once."""
    size = 9
    item = np.dtype([("tag", "S1"), ("id", ">i8")])
    for count in reversed(shape):
        size = 9 + count * size
        if size > _HASH_CHUNK:
            return None
        item = np.dtype([("head", "V9"), ("items", item, (count,))])
    return item
