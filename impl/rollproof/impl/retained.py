"""Retained media on tensors (section 7): hash at the generation cut, hash again at the restore, and no pixel copy.

A contiguous tensor is hashed in place: with SHA-256 or BLAKE3 in the host's memory, with BLAKE3 in an
accelerator's. For SHA-256 an accelerator's tensors are brought to the host piece by piece; nothing is ever copied there
as a whole.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from attrs import astuple, field, frozen
from blake3 import blake3

from rollproof.impl import kernels
from rollproof.impl.assembly import RouteFragment, read_metadata, routed_extras_digest
from rollproof.impl.checks import fault, is_hash, is_text, show
from rollproof.impl.digest import encode_text, extras_digest, u64
from rollproof.impl.spans import ITEM_FIELDS, Item, read_items
from rollproof.spec.constants import (
    MEDIA_BLAKE3,
    MEDIA_DIGEST_FIELDS,
    MEDIA_SHA256,
    MEDIA_SPANS,
    ROUTE_ENCODING_NONE,
)
from rollproof.spec.rejections import Code, Rejected

DTYPES: Final = {
    getattr(torch, name): name
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
}
"""The dtypes that have a digest, with their names (decision D11)."""

_PIECE: Final = 2**25
"""Bytes that are brought into the host's memory, or laid out anew, at a time."""


def media_digest(tensors: Mapping[str, torch.Tensor] | None, scheme: str = MEDIA_SHA256) -> str:
    """Return ``<scheme>:<hex>`` of named tensors, or of none; by ``media-sha256-v1`` or ``media-blake3-v1``.

    Tensors may be on any device, of any number of dimensions, empty, strided, expanded, conjugated or negated; the
    digest is that of dtype, shape and row-major bytes. BLAKE3 is computed in an accelerator's memory for tensors there.
    Raises ``Rejected(MEDIA_CAPTURE_REJECTED)``, and nothing else, for sparse, nested, quantized and meta tensors, for
    other dtypes, for null entries and for names that are not strings.
    """
    if scheme not in MEDIA_DIGEST_FIELDS:
        raise ValueError(fault("scheme", scheme, " or ".join(MEDIA_DIGEST_FIELDS)))
    checked = None if tensors is None else _checked(tensors)
    device = _accelerator(checked) if scheme == MEDIA_BLAKE3 else None
    parts = _framed(checked, scheme)
    try:
        return f"{scheme}:{_on_host(parts, scheme) if device is None else _on_device(parts, device)}"
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise _rejected(f"tensors: got {type(error).__name__} ({error}), expected tensors that can be read") from None


def default_scheme(tensors: Mapping[str, Any] | None) -> str:
    """Return ``media-blake3-v1`` if a tensor is in an accelerator's memory and can be hashed there, else SHA-256's."""
    held = {name: one for name, one in (tensors or {}).items() if isinstance(one, torch.Tensor)}
    return MEDIA_SHA256 if _accelerator(held) is None else MEDIA_BLAKE3


def _accelerator(tensors: Mapping[str, torch.Tensor] | None) -> torch.device | None:
    """Return the one accelerator that tensors are on and that Triton can hash on, if there is one."""
    devices = {tensor.device for tensor in (tensors or {}).values()} - {torch.device("cpu")}
    if len(devices) != 1 or next(iter(devices)).type != "cuda" or not kernels.available():
        return None
    return devices.pop()


def _framed(tensors: Mapping[str, torch.Tensor] | None, scheme: str) -> Iterator[bytes | torch.Tensor]:
    """Yield what is hashed, back to back: lengths, names and shapes as bytes, and the tensors' elements."""
    head = f"rollproof-{scheme}".encode()
    if tensors is None:
        yield head + b"\x00"
        return
    yield head + b"\x01" + u64(len(tensors))
    for name in sorted(tensors, key=str.encode):
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        shape = b"".join(map(u64, (tensor.dim(), *tensor.shape, size)))
        yield encode_text(name) + encode_text(DTYPES[tensor.dtype]) + shape
        yield tensor


def _on_host(parts: Iterable[bytes | torch.Tensor], scheme: str) -> str:
    state: Any = hashlib.sha256() if scheme == MEDIA_SHA256 else blake3()
    for part in parts:
        for piece in (part,) if isinstance(part, bytes) else map(_little_endian, _pieces(part)):
            state.update(piece)
    digest: str = state.hexdigest()
    return digest


def _on_device(parts: Iterable[bytes | torch.Tensor], device: torch.device) -> str:
    from rollproof.impl.kernels.blake3 import blake3_hex

    return blake3_hex([_where_it_is(part, device) for part in parts], device)


def _where_it_is(part: bytes | torch.Tensor, device: torch.device) -> bytes | torch.Tensor:
    """Return a part for the kernel: a contiguous tensor of the device as it is, what the host holds as bytes."""
    if isinstance(part, bytes):
        return part
    if part.device == device:
        return part.resolve_conj().resolve_neg().contiguous()
    return b"".join(_little_endian(piece) for piece in _pieces(part))


def _checked(tensors: Any) -> dict[str, torch.Tensor]:
    """Return the named tensors, each of which has bytes of its own."""
    if not isinstance(tensors, Mapping):
        raise _rejected(fault("tensors", tensors, "named tensors"))
    checked = {}
    for name, tensor in tensors.items():
        if not is_text(name):
            raise _rejected(fault("name of a tensor", name, "a string"))
        if not isinstance(tensor, torch.Tensor):
            raise _rejected(fault(name, tensor, "a tensor with bytes of its own"))
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else tensor.layout
            raise _rejected(f"{name}: got {kind} {tensor.dtype}, expected a tensor with bytes of its own")
        if tensor.dtype not in DTYPES:
            raise _rejected(f"{name}: got {tensor.dtype}, expected a dtype that the contract names")
        checked[name] = tensor.detach()
    return checked


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield contiguous tensors in the host's memory that hold the elements in row-major order."""
    lazy = tensor.is_conj() or tensor.is_neg()
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy:
        yield tensor
    elif tensor.dim() == 0 or tensor.numel() * tensor.element_size() <= _PIECE:
        yield tensor.resolve_conj().resolve_neg().cpu().contiguous()
    else:
        step = _PIECE * len(tensor) // (tensor.numel() * tensor.element_size())
        parts: Iterable[torch.Tensor] = torch.split(tensor, step) if step else tensor.unbind()
        for part in parts:
            yield from _pieces(part)


def _little_endian(tensor: torch.Tensor) -> memoryview:
    """Return a contiguous host tensor's bytes: a view, where the host's own order is the digest's."""
    # Not reshape: a dimension of one element may have any stride and still count as contiguous.
    raw = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    if sys.byteorder == "big":
        unit = tensor.element_size() // (2 if tensor.is_complex() else 1)
        raw = raw.reshape(-1, unit)[:, ::-1]
    return np.ascontiguousarray(raw).data


def _rejected(detail: str) -> Rejected:
    return Rejected(Code.MEDIA_CAPTURE_REJECTED, detail)


# ── cut and restore ─────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class CallMedia:
    """The media that are new to one call: the value of ``media_spans``, as JSON, and the named tensors."""

    spans: Any = field(factory=list)
    tensors: Mapping[str, torch.Tensor] | None = None


@frozen(eq=False)
class PrefixRow:
    """The part of a call's first prefix row that a restore reads: its staged extras, and their commitment in hex."""

    extras_metadata_json: bytes
    extras_digest: str
    routes: torch.Tensor | None = None
    """``[T, L, K]``, where the row staged routes: the commitment covers them too."""
    routed_experts_encoding: int = ROUTE_ENCODING_NONE


def cut_extras(
    extras: Mapping[str, Any] | None, media: CallMedia | None, scheme: str | None = None
) -> dict[str, Any] | None:
    """Return the extras of the prefix row that a cut stages: the call's own, with spans and digest, and no pixels.

    ``scheme`` None takes the one that hashes the tensors where they are, see ``default_scheme``.
    ``media`` None is a call outside media capture. Raises ``Rejected(MEDIA_CAPTURE_REJECTED)`` for invalid spans
    and for tensors that cannot be hashed.
    """
    if media is None:
        return None if extras is None else dict(extras)
    _read(media.spans, Code.MEDIA_CAPTURE_REJECTED)
    scheme = default_scheme(media.tensors) if scheme is None else scheme
    digest = media_digest(media.tensors, scheme)
    return {**(extras or {}), MEDIA_SPANS: media.spans, MEDIA_DIGEST_FIELDS[scheme]: digest}


def restore(row: PrefixRow, fresh: CallMedia) -> CallMedia | None:
    """Return ``fresh`` once it is verified equal to the cut's media; None for a call without media then and now.

    Raises ``Rejected`` with ``MEDIA_CAPTURE_REJECTED`` where the row is not what was committed to or not what a cut
    writes, or ``fresh`` cannot be hashed, and with ``RETAINED_MEDIA_CHANGED`` where spans or tensors differ.
    """
    extras = _committed(row)
    schemes = [scheme for scheme, name in MEDIA_DIGEST_FIELDS.items() if name in extras]
    if MEDIA_SPANS not in extras and not schemes:
        if fresh.spans or fresh.tensors:
            expected = "spans and a digest in the prefix row, as the request has media"
            raise _rejected(fault(MEDIA_SPANS, None, expected))
        return None
    if MEDIA_SPANS not in extras or len(schemes) != 1:
        raise _rejected(fault("extras", ", ".join(sorted(extras)), f"{MEDIA_SPANS} and one digest"))
    scheme = schemes[0]
    items, digest = _read(extras[MEDIA_SPANS], Code.MEDIA_CAPTURE_REJECTED), extras[MEDIA_DIGEST_FIELDS[scheme]]
    head = f"{scheme}:"
    if type(digest) is not str or not digest.startswith(head) or not is_hash(digest.removeprefix(head)):
        raise _rejected(fault(MEDIA_DIGEST_FIELDS[scheme], digest, f"{head} and 64 lowercase hex characters"))
    found = media_digest(fresh.tensors, scheme)
    difference = _difference(_read(fresh.spans, Code.RETAINED_MEDIA_CHANGED), items)
    if difference is not None:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, difference)
    if found != digest:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, fault("tensors", found, f"{show(digest)}, the cut's digest"))
    return fresh


def _difference(fresh: Sequence[Item], retained: Sequence[Item]) -> str | None:
    """Return the first field of the fresh items that is not as at the cut."""
    if len(fresh) != len(retained):
        return fault(MEDIA_SPANS, len(fresh), f"{len(retained)} items, as at the cut")
    for index, (found, wanted) in enumerate(zip(fresh, retained, strict=True)):
        values = zip(ITEM_FIELDS, astuple(found, recurse=False), astuple(wanted, recurse=False), strict=True)
        for name, value, expected in values:
            if value != expected:
                return fault(f"{MEDIA_SPANS}[{index}]: {name}", value, f"{show(expected)}, as at the cut")
    return None


def _committed(row: PrefixRow) -> dict[str, Any]:
    """Return the row's extras, if they digest to its commitment."""
    try:
        extras = read_metadata(row.extras_metadata_json)
        if row.routes is None or row.routed_experts_encoding == ROUTE_ENCODING_NONE:
            actual = extras_digest(extras)
        else:
            fragment = RouteFragment(row.routes, row.routed_experts_encoding, row.extras_metadata_json)
            actual = routed_extras_digest(fragment)
    except ValueError as error:
        raise _rejected(str(error)) from None
    if actual != row.extras_digest:
        raise _rejected(fault("extras digest", actual, f"{show(row.extras_digest)}, the call's commitment"))
    return extras or {}


def _read(spans: Any, code: Code) -> list[Item]:
    try:
        return read_items(spans)
    except ValueError as error:
        raise Rejected(code, str(error)) from None
