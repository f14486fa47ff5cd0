"""Retained media: a digest in place of pixels, from the generation cut to the restore (section 7).

A generation can be interrupted, and resumed elsewhere after processing the request again. What was generated before the
cut is only continued if the fresh media are the ones that the cut saw. The prefix row that the cut stages therefore
carries a digest instead of the pixels, which would only be compared (decision D11). Pixels are staged once, with the
call's final row.

The digest is bitwise: stricter than comparing numbers, where +0.0 is -0.0 and float16 equals the same number in
float32, and wider, because a NaN has bits and equals nothing. It comes in two schemes over the same bytes: SHA-256, and
BLAKE3, which an accelerator can compute where the tensors are. The name of the extras field says which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from rollproof.spec.blake3 import blake3
from rollproof.spec.constants import MEDIA_DIGEST_FIELDS, MEDIA_SHA256, MEDIA_SPANS, ROUTE_ENCODING_NONE
from rollproof.spec.digest import sized, text, u64
from rollproof.spec.extras import RouteFragment, committed_extras
from rollproof.spec.rejections import Code
from rollproof.spec.spans import ITEM_FIELDS, MediaItem, parse_items
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import expect, is_digest, is_text, refusing, show

# ── the digest (decision D11) ───────────────────────────────────────────────────────────────────────────────────────


def media_digest(tensors: Mapping[Any, Any] | None, scheme: str = MEDIA_SHA256) -> str:
    """Return ``<scheme>:<hex>`` of named tensors, or of none; the hash is over ``rollproof-<scheme>`` and their bytes.

    Equal iff names, dtypes, shapes and bytes are. An entry that is not a ``Tensor`` represents a value that has no
    dtype, shape and row-major bytes of its own: null, or a sparse, nested, quantized or meta tensor, or one of a dtype
    that the contract does not name. Raises ``Rejected(MEDIA_CAPTURE_REJECTED)`` for that, and for a name that is not a
    string; ``ValueError`` for another scheme.
    """
    expect(scheme in MEDIA_DIGEST_FIELDS, "scheme", scheme, " or ".join(MEDIA_DIGEST_FIELDS))
    payload = b"\x00" if tensors is None else b"\x01" + named_tensors(tensors)
    framed = f"rollproof-{scheme}".encode("ascii") + payload
    digest = hashlib.sha256(framed).digest() if scheme == MEDIA_SHA256 else blake3(framed)
    return f"{scheme}:{digest.hex()}"


def named_tensors(tensors: Mapping[Any, Any]) -> bytes:
    """Encode their number, then each in the order of its name's UTF-8 bytes."""
    with refusing(Code.MEDIA_CAPTURE_REJECTED):
        for name, value in tensors.items():
            expect(is_text(name), "name of a tensor", name, "a string")
            expect(isinstance(value, Tensor), name, value, "a tensor with bytes of its own")
    names = sorted(tensors, key=lambda name: name.encode("utf-8"))
    return u64(len(names)) + b"".join(text(name) + tensor_bytes(tensors[name]) for name in names)


def tensor_bytes(tensor: Tensor) -> bytes:
    """Encode one tensor: dtype, rank, dimensions, and its elements after their length in bytes."""
    shape = u64(len(tensor.shape)) + b"".join(u64(dimension) for dimension in tensor.shape)
    return text(tensor.dtype) + shape + sized(tensor.data)


def is_media_digest(value: Any, scheme: str = MEDIA_SHA256) -> bool:
    """Return whether ``value`` is a string that ``media_digest`` could have written under ``scheme``."""
    return type(value) is str and value.startswith(f"{scheme}:") and is_digest(value.removeprefix(f"{scheme}:"))


# ── the cut ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class CallMedia:
    """The media that are new to one call: their places in its prompt, and their tensors.

    ``spans`` is the value of ``media_spans`` as JSON. The tensors are whatever the engine made of the request; None
    where there are none.
    """

    spans: Any = field(factory=list)
    tensors: Mapping[Any, Any] | None = None


def cut_extras(
    extras: Mapping[str, Any] | None, media: CallMedia | None, scheme: str = MEDIA_SHA256
) -> dict[str, Any] | None:
    """Return the extras of the prefix row that a cut stages: the call's own, with spans and digest; no pixels.

    ``media`` is None for a call outside media capture; its extras stay as they are. Raises
    ``Rejected(MEDIA_CAPTURE_REJECTED)`` for media that have no digest or no well-formed spans.
    """
    if media is None:
        return None if extras is None else dict(extras)
    with refusing(Code.MEDIA_CAPTURE_REJECTED):
        parse_items(media.spans)
    digest = media_digest(media.tensors, scheme)
    return {**(extras or {}), MEDIA_SPANS: media.spans, MEDIA_DIGEST_FIELDS[scheme]: digest}


# ── the restore ─────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class PrefixRow:
    """What a restore reads of the first prefix row of a call: its extras as staged, and their commitment."""

    extras_metadata_json: bytes
    extras_digest: str
    routes: Tensor | None = None
    """``[T, L, K]``, where the row staged routes: the commitment covers them too."""
    routed_experts_encoding: int = ROUTE_ENCODING_NONE

    @property
    def fragment(self) -> RouteFragment | None:
        """The routes that the row staged, or None."""
        if self.routes is None or self.routed_experts_encoding == ROUTE_ENCODING_NONE:
            return None
        return RouteFragment(self.routes, self.routed_experts_encoding, self.extras_metadata_json)


def restore(row: PrefixRow, fresh: CallMedia) -> CallMedia | None:
    """Return the fresh media once they are verified equal to those at the cut; None if the call has none.

    Raises ``Rejected`` with the first failure: ``MEDIA_CAPTURE_REJECTED`` for a row that is not what was committed to
    or holds no well-formed spans and digest, and for fresh tensors that cannot be hashed; then
    ``RETAINED_MEDIA_CHANGED``, for other spans, missing ones included, then for other tensors.
    """
    with refusing(Code.MEDIA_CAPTURE_REJECTED):
        extras = committed_extras(row.extras_digest, row.extras_metadata_json, row.fragment)
        schemes = [scheme for scheme, name in MEDIA_DIGEST_FIELDS.items() if name in extras]
        if MEDIA_SPANS not in extras and not schemes:
            expected = "spans and a digest in the prefix row, as the request has media"
            # No tensors and an empty mapping of them both mean no media.
            expect(not fresh.spans and not fresh.tensors, MEDIA_SPANS, None, expected)
            return None
        whole = MEDIA_SPANS in extras and len(schemes) == 1
        expect(whole, "extras", ", ".join(sorted(extras)), f"{MEDIA_SPANS} and one digest")
        items = parse_items(extras[MEDIA_SPANS])
        scheme, field = schemes[0], MEDIA_DIGEST_FIELDS[schemes[0]]
        retained = extras[field]
        expect(is_media_digest(retained, scheme), field, retained, f"{scheme}: and 64 lowercase hex characters")
    found = media_digest(fresh.tensors, scheme)
    with refusing(Code.RETAINED_MEDIA_CHANGED):
        check_same_items(parse_items(fresh.spans), items)
        expect(found == retained, "tensors", found, f"{show(retained)}, the cut's digest")
    return fresh


def check_same_items(fresh: Sequence[MediaItem], retained: Sequence[MediaItem]) -> None:
    """Check that the fresh items are those of the cut, field by field. Raises ``ValueError``."""
    expect(len(fresh) == len(retained), MEDIA_SPANS, len(fresh), f"{len(retained)} items, as at the cut")
    for index, (found, wanted) in enumerate(zip(fresh, retained, strict=True)):
        for name in ITEM_FIELDS:
            value, expected = getattr(found, name), getattr(wanted, name)
            expect(value == expected, f"{MEDIA_SPANS}[{index}]: {name}", value, f"{show(expected)}, as at the cut")


def restored_weight_version(prefix_versions: Sequence[int]) -> int:
    """Return the weight version of a restored call: the oldest under which a part of its prefix was generated."""
    return min(prefix_versions)
