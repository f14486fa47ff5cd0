"""Retained media: a digest in place of pixels, from the generation cut to the restore (section 7).

A generation can be cut while it runs, and be taken up again later, elsewhere, with the request processed anew. What was
generated before the cut is only continued if the fresh media are the ones that the cut saw. The prefix row that the cut
stages therefore carries no pixels, which it would only be compared with, but their digest (decision D11). Pixels are
staged once, with the call's final row.

The digest is bitwise: stricter than comparing numbers, where +0.0 is -0.0 and float16 equals the same number in
float32, and wider, because a NaN has bits and equals nothing. It comes in two schemes over the same bytes: SHA-256, and
BLAKE3, which an accelerator can compute where the tensors are. The name of the extras field says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from rollproof.spec.assembly import RouteFragment
from rollproof.spec.blake3 import blake3
from rollproof.spec.constants import (
    MEDIA_DIGEST_FIELDS,
    MEDIA_SHA256,
    MEDIA_SPANS,
    ROUTE_ENCODING_NONE,
)
from rollproof.spec.digest import sized, text, u64
from rollproof.spec.extras import committed_extras
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.spans import MediaItem, parse_items
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import is_digest, is_text, show

# ── the digest (decision D11) ───────────────────────────────────────────────────────────────────────────────────────


def media_digest(tensors: Mapping[Any, Any] | None, scheme: str = MEDIA_SHA256) -> str:
    """``<scheme>:<hex>`` of named tensors, or of none at all; the hash is over ``rollproof-<scheme>`` and their bytes.

    Equal iff names, dtypes, shapes and bytes are. An entry that is no ``Tensor`` stands for what has no dtype, shape
    and row-major bytes of its own: null, or a sparse, nested, quantized or meta tensor, or one of a dtype that the
    contract does not name. Raises ``Rejected(MEDIA_CAPTURE_REJECTED)`` for that, and for a name that is no text.
    """
    payload = b"\x00" if tensors is None else b"\x01" + named_tensors(tensors)
    framed = f"rollproof-{scheme}".encode("ascii") + payload
    digest = hashlib.sha256(framed).digest() if scheme == MEDIA_SHA256 else blake3(framed)
    return f"{scheme}:{digest.hex()}"


def named_tensors(tensors: Mapping[Any, Any]) -> bytes:
    """Their number, then each in the order of its name's UTF-8 bytes."""
    for name, value in tensors.items():
        if not is_text(name):
            raise Rejected(Code.MEDIA_CAPTURE_REJECTED, f"name {show(name)} is no text")
        if not isinstance(value, Tensor):
            raise Rejected(Code.MEDIA_CAPTURE_REJECTED, f"{name}: {show(value)} cannot be hashed")
    names = sorted(tensors, key=lambda name: name.encode("utf-8"))
    return u64(len(names)) + b"".join(text(name) + tensor_bytes(tensors[name]) for name in names)


def tensor_bytes(tensor: Tensor) -> bytes:
    """One tensor: dtype, rank, dimensions, and its elements after their length in bytes."""
    shape = u64(len(tensor.shape)) + b"".join(u64(dimension) for dimension in tensor.shape)
    return text(tensor.dtype) + shape + sized(tensor.data)


def is_media_digest(value: Any, scheme: str = MEDIA_SHA256) -> bool:
    """Whether ``value`` is a text that ``media_digest`` could have written under ``scheme``."""
    return type(value) is str and value.startswith(f"{scheme}:") and is_digest(value.removeprefix(f"{scheme}:"))


# ── the cut ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class CallMedia:
    """The media that are new to one call: where they stand in its prompt, and their tensors.

    ``spans`` is the value of ``media_spans`` as JSON. The tensors are whatever the engine made of the request; None
    where there are none.
    """

    spans: Any = field(factory=list)
    tensors: Mapping[Any, Any] | None = None


def cut_extras(
    extras: Mapping[str, Any] | None, media: CallMedia | None, scheme: str = MEDIA_SHA256
) -> dict[str, Any] | None:
    """The extras of the prefix row that a generation cut stages: the call's own, with spans and digest; no pixels.

    ``media`` is None for a call outside media capture; its extras stay as they are. Raises
    ``Rejected(MEDIA_CAPTURE_REJECTED)`` for media that have no digest or no well-formed spans.
    """
    if media is None:
        return None if extras is None else dict(extras)
    read_spans(media.spans, Code.MEDIA_CAPTURE_REJECTED)
    field_name = MEDIA_DIGEST_FIELDS[scheme]
    return {**(extras or {}), MEDIA_SPANS: media.spans, field_name: media_digest(media.tensors, scheme)}


def read_spans(spans: Any, code: Code) -> tuple[MediaItem, ...]:
    """The items of a ``media_spans`` value; that they fit the call's tokens is not asked here."""
    try:
        return parse_items(spans)
    except ValueError as error:
        raise Rejected(code, str(error)) from None


# ── the restore ─────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class PrefixRow:
    """What a restore reads of the first prefix row of a call: its extras as staged, and their commitment."""

    extras_metadata_json: bytes
    extras_digest: str
    routes: Tensor | None = None
    """``[T, L, K]``, where the row staged routes: the commitment covers them too."""
    routed_experts_encoding: int = ROUTE_ENCODING_NONE


def restore(row: PrefixRow, fresh: CallMedia) -> CallMedia | None:
    """The media to go on with: the fresh ones, once they are the ones that the cut saw; None for a call without.

    Raises ``Rejected`` with the first failure: ``MEDIA_CAPTURE_REJECTED`` for a row that is not what was committed to
    or holds no well-formed spans and digest, and for fresh tensors that cannot be hashed; then
    ``RETAINED_MEDIA_CHANGED``, for other spans, missing ones included, then for other tensors.
    """
    try:
        extras = committed_extras(fragment_of(row), row.extras_metadata_json, row.extras_digest)
    except ValueError as error:
        raise Rejected(Code.MEDIA_CAPTURE_REJECTED, str(error)) from None
    schemes = [scheme for scheme, name in MEDIA_DIGEST_FIELDS.items() if name in extras]
    if MEDIA_SPANS not in extras and not schemes:
        if has_media(fresh):
            raise Rejected(Code.MEDIA_CAPTURE_REJECTED, "the prefix row knows of no media, the request has some")
        return None
    if MEDIA_SPANS not in extras or len(schemes) != 1:
        raise Rejected(Code.MEDIA_CAPTURE_REJECTED, f"expected {MEDIA_SPANS} and one digest, got {sorted(extras)}")
    items = read_spans(extras[MEDIA_SPANS], Code.MEDIA_CAPTURE_REJECTED)
    scheme = schemes[0]
    retained = extras[MEDIA_DIGEST_FIELDS[scheme]]
    if not is_media_digest(retained, scheme):
        raise Rejected(Code.MEDIA_CAPTURE_REJECTED, f"{MEDIA_DIGEST_FIELDS[scheme]} is {show(retained)}")
    found = media_digest(fresh.tensors, scheme)
    if read_spans(fresh.spans, Code.RETAINED_MEDIA_CHANGED) != items:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, f"{len(items)} items retained, {len(fresh.spans)} others found")
    if found != retained:
        raise Rejected(Code.RETAINED_MEDIA_CHANGED, f"tensors digest to {found}, retained was {retained}")
    return fresh


def fragment_of(row: PrefixRow) -> RouteFragment | None:
    """The routes that a prefix row staged."""
    if row.routes is None:
        return None
    return RouteFragment(row.routes, row.routed_experts_encoding, row.extras_metadata_json)


def has_media(media: CallMedia) -> bool:
    """Whether there is an item or a tensor. No tensors and an empty mapping of them are both nothing to lose."""
    return bool(media.spans) or bool(media.tensors)


def restored_weight_version(prefix_versions: Sequence[int]) -> int:
    """The weight version of a restored call: the oldest under which a part of its prefix was generated."""
    return min(prefix_versions)
