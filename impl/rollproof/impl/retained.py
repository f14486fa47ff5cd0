"""Retained media on tensors (section 7): hash at the generation cut, hash again at the restore, and no pixel copy.

A contiguous tensor in the host's memory is hashed where it lies. Everything else is brought there piece by piece, so
that neither an accelerator's memory nor an expanded view is ever copied as a whole.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import torch
from attrs import field, frozen

from rollproof.impl.assembly import RouteFragment, read_metadata, routed_extras_digest
from rollproof.impl.checks import is_hash, is_text, show
from rollproof.impl.digest import encode_text, extras_digest, u64
from rollproof.impl.spans import Item, read_items
from rollproof.spec.constants import (
    MEDIA_DIGEST_DOMAIN,
    MEDIA_DIGEST_SCHEME,
    MEDIA_SPANS,
    MEDIA_TENSOR_SHA256,
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


def media_digest(tensors: Mapping[str, torch.Tensor] | None) -> str:
    """``media-sha256-v1:<hex>`` of named tensors, or of none at all.

    Tensors may be on any device, of any number of dimensions, empty, strided, expanded, conjugated or negated; the
    digest is that of dtype, shape and row-major bytes. Raises ``Rejected(MEDIA_CAPTURE_REJECTED)``, and nothing else,
    for sparse, nested, quantized and meta tensors, for other dtypes, for null entries and for names that are no text.
    """
    state = hashlib.sha256(MEDIA_DIGEST_DOMAIN)
    if tensors is None:
        state.update(b"\x00")
    else:
        checked = _checked(tensors)
        state.update(b"\x01" + u64(len(checked)))
        for name in sorted(checked, key=str.encode):
            tensor = checked[name]
            size = tensor.numel() * tensor.element_size()
            shape = b"".join(map(u64, (tensor.dim(), *tensor.shape, size)))
            state.update(encode_text(name) + encode_text(DTYPES[tensor.dtype]) + shape)
            try:
                for piece in _pieces(tensor):
                    state.update(_little_endian(piece))
            except (RuntimeError, TypeError, NotImplementedError) as error:
                raise _rejected(f"{name}: cannot be read ({error})") from None
    return f"{MEDIA_DIGEST_SCHEME}:{state.hexdigest()}"


def _checked(tensors: Any) -> dict[str, torch.Tensor]:
    """The named tensors, each of which has bytes of its own."""
    if not isinstance(tensors, Mapping):
        raise _rejected(f"a {type(tensors).__name__}, expected named tensors")
    checked = {}
    for name, tensor in tensors.items():
        if not is_text(name):
            raise _rejected(f"name {show(name)}")
        if not isinstance(tensor, torch.Tensor):
            raise _rejected(f"{name}: a {type(tensor).__name__}")
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else tensor.layout
            raise _rejected(f"{name}: a tensor without bytes of its own ({kind}, {tensor.dtype})")
        if tensor.dtype not in DTYPES:
            raise _rejected(f"{name}: dtype {tensor.dtype}")
        checked[name] = tensor.detach()
    return checked


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Contiguous tensors in the host's memory that hold the elements in row-major order."""
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
    """The bytes of a contiguous tensor in the host's memory: a view, where the host's own order is the digest's."""
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
    """What a restore reads of a call's first prefix row: its extras as staged, and their commitment, in hex."""

    extras_metadata_json: bytes
    extras_digest: str
    routes: torch.Tensor | None = None
    """``[T, L, K]``, where the row staged routes: the commitment covers them too."""
    routed_experts_encoding: int = ROUTE_ENCODING_NONE


def cut_extras(extras: Mapping[str, Any] | None, media: CallMedia | None) -> dict[str, Any] | None:
    """The extras of the prefix row that a generation cut stages: the call's own, with spans and digest, and no pixels.

    ``media`` None is a call outside media capture. Raises ``Rejected(MEDIA_CAPTURE_REJECTED)`` for spans that are none
    and for tensors that cannot be hashed.
    """
    if media is None:
        return None if extras is None else dict(extras)
    _read(media.spans, Code.MEDIA_CAPTURE_REJECTED)
    return {**(extras or {}), MEDIA_SPANS: media.spans, MEDIA_TENSOR_SHA256: media_digest(media.tensors)}


def restore(row: PrefixRow, fresh: CallMedia) -> CallMedia | None:
    """``fresh``, once it is what the cut saw; None for a call that has no media, then and now.

    Raises ``Rejected`` with ``MEDIA_CAPTURE_REJECTED`` where the row is not what was committed to or not what a cut
    writes, or ``fresh`` cannot be hashed, and with ``RETAINED_MEDIA_CHANGED`` where spans or tensors differ.
    """
    extras = _committed(row)
    kept = [name for name in (MEDIA_SPANS, MEDIA_TENSOR_SHA256) if name in extras]
    if not kept:
        if fresh.spans or fresh.tensors:
            raise _rejected("the request has media, the prefix row has none")
        return None
    if len(kept) == 1:
        raise _rejected(f"the prefix row has {kept[0]} alone")
    items, digest = _read(extras[MEDIA_SPANS], Code.MEDIA_CAPTURE_REJECTED), extras[MEDIA_TENSOR_SHA256]
    head = f"{MEDIA_DIGEST_SCHEME}:"
    if type(digest) is not str or not digest.startswith(head) or not is_hash(digest.removeprefix(head)):
        raise _rejected(f"{MEDIA_TENSOR_SHA256}: {show(digest)}")
    found = media_digest(fresh.tensors)
    if _read(fresh.spans, Code.RETAINED_MEDIA_CHANGED) != items:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, "other spans")
    if found != digest:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, f"tensors digest to {found}, the cut's to {digest}")
    return fresh


def _committed(row: PrefixRow) -> dict[str, Any]:
    """The row's extras, if they digest to its commitment."""
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
        raise _rejected(f"extras digest to {actual}, the row commits to {row.extras_digest}")
    return extras or {}


def _read(spans: Any, code: Code) -> list[Item]:
    try:
        return read_items(spans)
    except ValueError as error:
        raise Rejected(code, str(error)) from None
