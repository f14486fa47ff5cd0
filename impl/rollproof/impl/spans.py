"""Media spans of a call against its tokens and its bundle (section 7).

A span says where in the prompt an image or video stands; tokens, pixels and spans travel apart. Offsets count from the
start of the sequence, so they are shifted once, and the rest is array expressions over the call's carry.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from rollproof.impl.bundles import Bundle
from rollproof.impl.checks import is_hash, is_length, show
from rollproof.spec.constants import IMAGE, MODALITIES, VIDEO

_FIELDS: Final = {
    "modality",
    "placeholder_offset",
    "placeholder_length",
    "placeholder_digest",
    "token_id",
    "embedding_spans",
    "imgs_sizes",
}
_INT32: Final = range(1, 2**31)


@frozen
class Item:
    """One image or video in a call's prompt."""

    modality: str
    offset: int
    length: int
    digest: str
    token_id: int
    runs: tuple[tuple[int, int], ...]
    sizes: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        """The position after the placeholder."""
        return self.offset + self.length


def read_items(value: Any) -> list[Item]:
    """The items of a ``media_spans`` value, any JSON value: well-formed, ascending, disjoint, of one modality.

    ``ValueError`` for anything else.
    """
    if type(value) is not list:
        raise ValueError(f"media_spans: {show(value)}, expected a list")
    items = [_item(entry) for entry in value]
    if any(before.end > after.offset for before, after in pairwise(items)):
        raise ValueError("media_spans: items overlap or do not ascend")
    if len({item.modality for item in items}) > 1:
        raise ValueError("media_spans: images and videos in one call")
    return items


def _item(value: Any) -> Item:
    if type(value) is not dict or value.keys() != _FIELDS:
        raise ValueError("media item: expected an object with exactly the fields of one")
    modality, digest = value["modality"], value["placeholder_digest"]
    offset, length, token_id = value["placeholder_offset"], value["placeholder_length"], value["token_id"]
    if type(modality) is not str or modality not in MODALITIES:
        raise ValueError(f"modality: {show(modality)}")
    if not (is_length(offset) and is_length(length) and is_length(token_id) and length):
        raise ValueError("media item: offset, length and token_id are no positions, no length or no id")
    if not is_hash(digest):
        raise ValueError(f"placeholder_digest: {show(digest)}")
    item = Item(
        modality, offset, length, digest, token_id, _pairs(value, "embedding_spans"), _pairs(value, "imgs_sizes")
    )
    position = offset
    for number, (start, count) in enumerate(item.runs):
        if not count or start < position + (number > 0) or start + count > item.end:
            raise ValueError("embedding_spans: expected ascending runs inside the placeholder that do not touch")
        position = start + count
    if not all(height in _INT32 and width in _INT32 for height, width in item.sizes):
        raise ValueError("imgs_sizes: expected positive int32 values")
    if modality == IMAGE and len(item.sizes) != 1:
        raise ValueError(f"imgs_sizes: {len(item.sizes)} sizes of one image")
    return item


def _pairs(value: dict[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    pairs = value[name]
    if type(pairs) is not list or not pairs:
        raise ValueError(f"{name}: expected a list that is not empty")
    if not all(type(pair) is list and len(pair) == 2 and is_length(pair[0]) and is_length(pair[1]) for pair in pairs):
        raise ValueError(f"{name}: expected pairs of lengths")
    return tuple((first, second) for first, second in pairs)


def check_items(items: Sequence[Item], carry: NDArray[np.int64], start: int, bundle: Bundle | None) -> None:
    """The items describe a call: its carry ``[C]``, which begins at position ``start``, and its bundle, None for none.

    Raises ``ValueError`` with the first disagreement.
    """
    embedded = np.zeros(len(carry), dtype=np.bool_)
    for item in items:
        if item.offset < start or item.end > start + len(carry):
            raise ValueError(f"placeholder of {item.length} at {item.offset}: not inside the call's carry")
        for first, count in item.runs:
            embedded[first - start : first - start + count] = True
    for item in items:
        at, end = item.offset - start, item.end - start
        if placeholder_digest(carry[at:end]) != item.digest:
            raise ValueError(f"placeholder at {item.offset}: its tokens are not the ones that were hashed")
        for first, count in item.runs:
            if (carry[first - start : first - start + count] != item.token_id).any():
                raise ValueError(f"embeddings at {first}: not token {item.token_id} throughout")
        around = slice(max(0, at - 1), end + 1)
        if ((carry[around] == item.token_id) & ~embedded[around]).any():
            raise ValueError(f"placeholder at {item.offset}: token {item.token_id} in it or beside it has no embedding")
    _check_bundle(items, bundle)


def _check_bundle(items: Sequence[Item], bundle: Bundle | None) -> None:
    if (bundle is None) == bool(items):
        raise ValueError(f"{len(items)} media items, but {'no' if bundle is None else 'a'} bundle")
    if bundle is None:
        return
    if items[0].modality != (IMAGE if bundle.frames is None else VIDEO):
        raise ValueError(f"modality: {items[0].modality} for {'stills' if bundle.frames is None else 'videos'}")
    if [list(size) for item in items for size in item.sizes] != bundle.sizes:
        raise ValueError("imgs_sizes: not those of the bundle, in order")
    if bundle.frames not in (None, [len(item.sizes) for item in items]):
        raise ValueError("imgs_sizes: not as many as the videos have frames")


def placeholder_digest(ids: NDArray[np.int64]) -> str:
    """SHA-256 of token ids as a compact JSON array, in hex."""
    return sha256(json.dumps(ids.tolist(), separators=(",", ":")).encode()).hexdigest()
