"""Route plans executed on tensors (section 6): verify each fragment, then lay all of them out in one allocation.

A fragment is hashed as it lies there: the text or the lists that the digest covers are written chunk by chunk into the
hash and never exist as a whole. Ids are checked by array expressions over vectors of ``K`` ids; on an accelerator they
stay there, and only the bytes to be hashed are copied to the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl import base64, kernels
from rollproof.impl.digest import EXTRAS_PREFIX, encode_extra, encode_text, u64
from rollproof.impl.envelope import envelope_head, little_endian
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
_HOST_CHUNK: Final = 2**17
_DEVICE_CHUNK: Final = 2**26
"""Ids per step of the checks: what stays in a core's cache, or what keeps an accelerator busy."""
_FEW_EXPERTS: Final = 16
"""Up to this top-k, comparing all pairs of slots is faster than sorting."""


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


def lay_out(used: Sequence[tuple[Use, torch.Tensor | None]], row: torch.Tensor) -> None:
    """Write verified fragments, each with what its span takes from it, into ``row``: int16 ``[tokens, L, K]``.

    On an accelerator one kernel does it, where Triton is installed; fragments that live elsewhere are brought there.
    """
    if row.is_cuda and row.is_contiguous() and kernels.available():
        gather_routes(used, row)
        return
    target, position = _array_of(row), 0
    for use, routes in used:
        target[position : position + use.unrouted] = ROUTE_SENTINEL
        position += use.unrouted
        if routes is not None:
            source = routes if isinstance(target, torch.Tensor) else routes.numpy(force=True)
            target[position : position + use.rows] = source[use.first : use.first + use.rows]
            position += use.rows
    target[position:] = ROUTE_SENTINEL


def gather_routes(used: Sequence[tuple[Use, torch.Tensor | None]], row: torch.Tensor) -> None:
    """The same by ``kernels.gather``, into a contiguous ``row``."""
    from rollproof.impl.kernels.gather import Piece, gather

    vector = row[0].numel() if len(row) else 0
    pieces: list[Piece] = []
    for use, routes in used:
        pieces.append(Piece(use.unrouted * vector))
        if routes is not None:
            pieces.append(Piece(use.rows * vector, routes.to(row.device).contiguous(), use.first * vector))
    pieces.append(Piece(row.numel() - sum(piece.count for piece in pieces)))
    gather([piece for piece in pieces if piece.count], row, ROUTE_SENTINEL)


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
    ids = _array_of(routes)
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < ROUTE_SENTINEL or largest >= limit:
        raise Rejected(Code.FRAGMENT_VALUE_RANGE, f"{where}: ids from {smallest} to {largest}, limit {limit}")
    sentinels = smallest == ROUTE_SENTINEL
    if largest == ROUTE_SENTINEL or not (sentinels or not allow_repeated_experts):
        return
    vectors, repeated = ids.reshape(-1, ids.shape[-1]), False
    step = max(1, (_DEVICE_CHUNK if isinstance(ids, torch.Tensor) else _HOST_CHUNK) // ids.shape[-1])
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step]
        if sentinels and _partly_sentinel(part):
            raise Rejected(Code.FRAGMENT_PARTIAL_SENTINEL, where)
        repeated = repeated or (not allow_repeated_experts and _repeats(part, sentinels))
    if repeated:
        raise Rejected(Code.FRAGMENT_DUPLICATE_EXPERT, where)


def _array_of(routes: torch.Tensor) -> Any:
    """Ids in the host's memory as a numpy view, others as the tensor they are; both take the same expressions.

    On the host the steps are small. Torch would spread each over its threads and wait for all of them, which takes many
    times as long as the step itself as soon as another process has one of the cores.
    """
    return routes.numpy() if routes.device.type == "cpu" else routes


def _partly_sentinel(vectors: Any) -> bool:
    """Whether one of ``[n, K]`` is sentinel in some slots only."""
    unrouted = vectors == ROUTE_SENTINEL
    if isinstance(vectors, torch.Tensor):
        return bool((unrouted.any(1) != unrouted.all(1)).any())
    flat = unrouted.reshape(-1)
    return bool(((flat[1:] != flat[:-1]) & _together(vectors, 1)).any())


def _repeats(vectors: Any, sentinels: bool) -> bool:
    """Whether one of ``[n, K]`` holds an id twice that is not the sentinel."""
    width = vectors.shape[1]
    if isinstance(vectors, torch.Tensor) or width > _FEW_EXPERTS:
        ordered = vectors.sort(dim=1).values if isinstance(vectors, torch.Tensor) else np.sort(vectors, axis=1)
        return bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > ROUTE_SENTINEL)).any())
    flat = vectors.reshape(-1)
    for shift in range(1, width):
        equal = flat[shift:] == flat[:-shift]
        equal &= _together(vectors, shift)
        if sentinels:
            equal &= flat[shift:] > ROUTE_SENTINEL
        if equal.any():
            return True
    return False


def _together(vectors: NDArray[Any], shift: int) -> NDArray[np.bool_]:
    """Per position of ``[n, K]`` laid flat, whether ``shift`` more is in the same vector; for all that have so many."""
    count, width = vectors.shape
    return _inside(width, shift, max(1, _HOST_CHUNK // width))[: count * width - shift]


@lru_cache(maxsize=64)
def _inside(width: int, shift: int, count: int) -> NDArray[np.bool_]:
    """Per position in ``count`` vectors, whether ``shift`` more is in the same one."""
    return np.tile(np.arange(width) < width - shift, count)


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
    update(b"S" + u64(len(head) + base64.encoded_length(len(data))) + head)
    for start in range(0, len(data), _HASH_CHUNK):
        update(base64.encode(data[start : start + _HASH_CHUNK]))


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
