"""Route plans executed on tensors (section 6): verify each fragment, then lay all of them out in one allocation.

A fragment is hashed in place: the envelope or the lists that the digest covers are written chunk by chunk into the hash
and never exist as a whole. Ids are checked by array expressions over vectors of ``K`` ids; on an accelerator they stay
there, and only the bytes to be hashed are copied to the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl import base64, kernels
from rollproof.impl.checks import fault, first_repeated, show
from rollproof.impl.digest import EXTRAS_PREFIX, encode_extra, encode_text, in_order, u64
from rollproof.impl.envelope import envelope_head, little_endian
from rollproof.impl.host_memory import empty
from rollproof.impl.plan import RouteAssemblyPlan, RouteSpan, Use, use_of
from rollproof.impl.route_boundary import repaired_positions, unrepaired_positions
from rollproof.spec.constants import (
    AS_STAGED,
    MAX_EXTRAS_DEPTH,
    ROUTE_BOUNDARY,
    ROUTE_BOUNDARY_INDEX,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_SENTINEL,
    ROUTED_EXPERTS,
    UNREPAIRED_SENTINEL,
)
from rollproof.spec.rejections import Code, Rejected

Dims = tuple[int, int]
"""(layers, top-k)."""

MAX_EXPERTS: Final = 2**15
"""Published routes are int16 (decision D8)."""

_METADATA: Final = "extras_metadata_json"
_HASH_CHUNK: Final = 3 * 2**16
"""Bytes per step of the hash; a multiple of 3, so that base64 pads only at the end."""
_HOST_CHUNK: Final = 2**17
_DEVICE_CHUNK: Final = 2**26
"""Ids per step of the checks: what stays in a core's cache, or what keeps an accelerator busy."""
_FEW_EXPERTS: Final = 16
"""Up to this top-k, comparing all pairs of slots is faster than sorting."""


@frozen(eq=False, slots=False)
class RouteFragment:
    """One call's routes as staged, ``[T, L, K]``, with the encoding and the other extras that its digest covers."""

    routes: torch.Tensor
    encoding: int
    extras_metadata_json: bytes
    boundary: torch.Tensor | None = None
    """The sidecar as staged, ``[1, L, K]``, where it was read (section 10)."""

    @cached_property
    def extras(self) -> dict[str, Any]:
        """The other extras, none for null. ``ValueError`` where they cannot be read."""
        return read_metadata(self.extras_metadata_json) or {}


def execute(
    plan: RouteAssemblyPlan,
    fragments: Mapping[str, RouteFragment],
    dims: Dims | None,
    canonical_len: int,
    *,
    num_experts: int | None = None,
    allow_repeated_experts: bool = False,
    route_boundary: str = AS_STAGED,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the int16 routes ``[canonical_len, L, K]`` of a valid plan: in ``out``, or on its first fragment's device.

    ``route_boundary`` says what becomes of boundary tokens without a sidecar (D28).
    With ``dims`` None the first used fragment determines (L, K); there must be one then. Raises ``Rejected`` with the
    first violated rule of section 6; nothing is written before all fragments have passed.
    """
    if canonical_len != plan.expected_token_length:
        expected = f"{canonical_len}, the length of the row"
        detail = fault("expected_token_length", plan.expected_token_length, expected)
        raise Rejected(Code.CANONICAL_LENGTH_MISMATCH, detail)
    used: list[tuple[Use, torch.Tensor | None]] = []
    device = None
    for span in plan.spans:
        use = use_of(span)
        routes = None
        if use.rows:
            fragment = fragments.get(span.staging_key)
            if fragment is None:
                detail = fault(ROUTED_EXPERTS, None, f"{span.staged_route_len} routes")
                raise Rejected(Code.MISSING_FRAGMENT, f"{span.staging_key}: {detail}")
            routes = fragment.routes
            verify(fragment, span)
            dims = _shape_of(routes, span, dims)
            _check_sidecar(fragment, span, dims)
            for tensor in (routes, fragment.boundary):
                if tensor is not None:
                    check_ids(tensor, span.staging_key, num_experts, allow_repeated_experts)
            device = device or routes.device
        used.append((use, routes))
    total = sum(use.unrouted + use.rows for use, _ in used)
    if used and total != canonical_len:
        raise Rejected(Code.ASSEMBLED_LENGTH_MISMATCH, fault("tokens of all spans", total, str(canonical_len)))
    if dims is None:
        raise ValueError("(L, K) is unknown, and no fragment says it")
    row = out
    if row is None:
        shape, here = (canonical_len, *dims), device is None or device.type == "cpu"
        row = empty(shape, torch.int16) if here else torch.empty(shape, dtype=torch.int16, device=device)
    lay_out(used, row)
    for position, key in repaired_positions(plan):
        sidecar = fragments[key].boundary
        assert sidecar is not None
        row[position].copy_(sidecar[0])
    if route_boundary == UNREPAIRED_SENTINEL:
        row[unrepaired_positions(plan)] = ROUTE_SENTINEL
    return row


def lay_out(used: Sequence[tuple[Use, torch.Tensor | None]], row: torch.Tensor) -> None:
    """Write verified fragments, each with what its span takes from it, into ``row``: int16 ``[tokens, L, K]``.

    On an accelerator one kernel does it, where Triton is installed; fragments on other devices are copied there.
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
    """Do the same by ``kernels.gather``, into a contiguous ``row``."""
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
    where = span.staging_key
    if routes.dim() != 3:
        shape = tuple(routes.shape)
        raise Rejected(Code.FRAGMENT_RANK, f"{where}: {fault('shape', shape, '[tokens, layers, experts]')}")
    tokens, layers, experts = routes.shape
    if tokens != span.staged_route_len:
        expected = f"{span.staged_route_len}, as planned"
        raise Rejected(Code.FRAGMENT_LENGTH, f"{where}: {fault('routes', tokens, expected)}")
    if dims not in (None, (layers, experts)):
        raise Rejected(Code.FRAGMENT_MODEL_SHAPE, f"{where}: {fault('(L, K)', (layers, experts), show(dims))}")
    return layers, experts


def _check_sidecar(fragment: RouteFragment, span: RouteSpan, dims: Dims) -> None:
    """Check that a verified fragment's sidecar is of the planned token, and the route of one token of the model."""
    index = fragment.extras.get(ROUTE_BOUNDARY_INDEX)
    if (type(index), index) != (type(span.boundary_token_index), span.boundary_token_index):
        detail = fault(ROUTE_BOUNDARY_INDEX, index, f"{span.boundary_token_index}, as planned")
        raise Rejected(Code.FRAGMENT_BOUNDARY, f"{span.staging_key}: {detail}")
    if fragment.boundary is not None and fragment.boundary.shape != (1, *dims):
        detail = fault(ROUTE_BOUNDARY, tuple(fragment.boundary.shape), f"[1, {dims[0]}, {dims[1]}]")
        raise Rejected(Code.FRAGMENT_BOUNDARY, f"{span.staging_key}: {detail}")


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_ids(
    routes: torch.Tensor, where: str, num_experts: int | None = None, allow_repeated_experts: bool = False
) -> None:
    """Check range, partial sentinels and repeated experts (D8, D7, D20) over all of ``[T, L, K]``, in this order."""
    limit = MAX_EXPERTS if num_experts is None else min(num_experts, MAX_EXPERTS)
    ids = _array_of(routes)
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < ROUTE_SENTINEL or largest >= limit:
        first = int(ids[(ids < ROUTE_SENTINEL) | (ids >= limit)][0])
        raise Rejected(
            Code.FRAGMENT_VALUE_RANGE, f"{where}: {fault('expert id', first, f'-1, or an id below {limit}')}"
        )
    sentinels = smallest == ROUTE_SENTINEL
    if largest == ROUTE_SENTINEL or not (sentinels or not allow_repeated_experts):
        return
    vectors, repeated = ids.reshape(-1, ids.shape[-1]), None
    step = max(1, (_DEVICE_CHUNK if isinstance(ids, torch.Tensor) else _HOST_CHUNK) // ids.shape[-1])
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step]
        if sentinels and _partly_sentinel(part):
            unrouted = part == ROUTE_SENTINEL
            experts = part[unrouted.any(1) & ~unrouted.all(1)][0].tolist()
            detail = fault("experts of a layer", experts, "only -1, or none")
            raise Rejected(Code.FRAGMENT_PARTIAL_SENTINEL, f"{where}: {detail}")
        if repeated is None and not allow_repeated_experts and _repeats(part, sentinels):
            repeated = next(vector for vector in part.tolist() if vector[0] >= 0 and len(set(vector)) < len(vector))
    if repeated is not None:
        detail = fault("experts of a layer", repeated, "distinct ids")
        raise Rejected(Code.FRAGMENT_DUPLICATE_EXPERT, f"{where}: {detail}")


def _array_of(routes: torch.Tensor) -> Any:
    """Return ids in the host's memory as a numpy view, others as the tensor; both support the same expressions.

    On the host the steps are small. Torch would spread each over its threads and wait for all of them, which takes many
    times as long as the step itself as soon as another process has one of the cores.
    """
    return routes.numpy() if routes.device.type == "cpu" else routes


def _partly_sentinel(vectors: Any) -> bool:
    """Return whether one of ``[n, K]`` is sentinel in some slots only."""
    unrouted = vectors == ROUTE_SENTINEL
    if isinstance(vectors, torch.Tensor):
        return bool((unrouted.any(1) != unrouted.all(1)).any())
    flat = unrouted.reshape(-1)
    return bool(((flat[1:] != flat[:-1]) & _together(vectors, 1)).any())


def _repeats(vectors: Any, sentinels: bool) -> bool:
    """Return whether one of ``[n, K]`` holds an id twice that is not the sentinel."""
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
    """Return, per flat position of ``[n, K]`` that has one, whether the one ``shift`` later is in the same vector."""
    count, width = vectors.shape
    return _inside(width, shift, max(1, _HOST_CHUNK // width))[: count * width - shift]


@lru_cache(maxsize=64)
def _inside(width: int, shift: int, count: int) -> NDArray[np.bool_]:
    """Return, per position in ``count`` vectors, whether ``shift`` more is in the same one."""
    return np.tile(np.arange(width) < width - shift, count)


# ── integrity ───────────────────────────────────────────────────────────────────────────────────────────────────────


def verify(fragment: RouteFragment, span: RouteSpan) -> None:
    """Check that the extras rebuilt around the fragment digest to the commitment, else ``FRAGMENT_INTEGRITY``."""
    try:
        _expect_announced(fragment)
        expect_commitment(routed_extras_digest(fragment), span.extras_digest)
    except ValueError as error:
        raise Rejected(Code.FRAGMENT_INTEGRITY, f"{span.staging_key}: {error}") from None


def _expect_announced(fragment: RouteFragment) -> None:
    """Raise ``ValueError`` unless a fragment has a sidecar iff its extras have an index."""
    extras = fragment.extras
    if ROUTE_BOUNDARY in extras:
        raise ValueError(fault(_METADATA, ROUTE_BOUNDARY, "a sidecar in its own column only"))
    if (ROUTE_BOUNDARY_INDEX in extras) != (fragment.boundary is not None):
        raise ValueError(fault(ROUTE_BOUNDARY_INDEX, extras.get(ROUTE_BOUNDARY_INDEX), "an index iff a sidecar"))


def expect_commitment(actual: str, commitment: str) -> None:
    """Raise ``ValueError`` unless extras digest to what their call committed to."""
    if actual != commitment:
        raise ValueError(fault("extras digest", actual, f"{show(commitment)}, the call's commitment"))


def routed_extras_digest(fragment: RouteFragment) -> str:
    """Return the digest of a call's extras with its routes put back, as hex; ``ValueError`` where they cannot be.

    A sidecar is put back as an envelope, even beside routes that are lists.
    """
    extras = fragment.extras
    writers = {ROUTED_EXPERTS: _route_writer(fragment.routes, fragment.encoding)}
    if fragment.boundary is not None:
        writers[ROUTE_BOUNDARY] = _route_writer(fragment.boundary, ROUTE_ENCODING_ENVELOPE)
    state = sha256(EXTRAS_PREFIX + b"D" + u64(len(extras) + len(writers)))
    for name in in_order((*extras, *writers)):
        state.update(encode_text(name))
        if name in writers:
            writers[name](state.update)
        else:
            encoded = bytearray()
            encode_extra(extras[name], encoded, MAX_EXTRAS_DEPTH - 1)
            state.update(encoded)
    return state.hexdigest()


def read_metadata(data: bytes) -> dict[str, Any] | None:
    """Read staged extras without routes: null, or an object with distinct names throughout; else ``ValueError``."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError(fault(_METADATA, data, f"at most {MAX_EXTRAS_DEPTH} levels")) from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(fault(_METADATA, data, "JSON in UTF-8")) from None
    if value is None:
        return None
    if type(value) is not dict:
        raise ValueError(fault(_METADATA, value, "an object or null"))
    if ROUTED_EXPERTS in value:
        raise ValueError(fault(_METADATA, ROUTED_EXPERTS, "routes in their own column only"))
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(fault(_METADATA, names[first_repeated(names) or 0], "distinct names"))
    return found


def _route_writer(routes: torch.Tensor, encoding: int) -> Callable[[Callable[[Any], None]], None]:
    """Return a function that writes the extras encoding of a fragment into a hash."""
    if encoding == ROUTE_ENCODING_ENVELOPE:
        head = envelope_head(routes.dtype, tuple(routes.shape)).encode()
        return lambda update: _write_envelope(update, head, little_endian(routes))
    if encoding != ROUTE_ENCODING_LIST or routes.dtype is not torch.int16:
        dtype = str(routes.dtype).removeprefix("torch.")
        raise ValueError(fault("routed_experts_encoding", encoding, f"1, or 2 for int16 routes (these are {dtype})"))
    if routes.dim() >= MAX_EXTRAS_DEPTH or not routes.numel():
        expected = f"at most {MAX_EXTRAS_DEPTH} dimensions, none of them 0"
        raise ValueError(fault("shape", tuple(routes.shape), expected))
    ids = np.ascontiguousarray(routes.numpy(force=True))
    return lambda update: _write_lists(update, ids.reshape(routes.shape))


def _write_envelope(update: Callable[[Any], None], head: bytes, data: memoryview) -> None:
    update(b"S" + u64(len(head) + base64.encoded_length(len(data))) + head)
    for start in range(0, len(data), _HASH_CHUNK):
        update(base64.encode(data[start : start + _HASH_CHUNK]))


def _write_lists(update: Callable[[Any], None], ids: NDArray[np.int16]) -> None:
    """Write nested lists of ints: as many items at a time as fit into a chunk, a larger item piece by piece."""
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
    """Return the bytes of one item of nested lists; None where they are too many to be handled at once."""
    size = 9
    item = np.dtype([("tag", "S1"), ("id", ">i8")])
    for count in reversed(shape):
        size = 9 + count * size
        if size > _HASH_CHUNK:
            return None
        item = np.dtype([("head", "V9"), ("items", item, (count,))])
    return item
