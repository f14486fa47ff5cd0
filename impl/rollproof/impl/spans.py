"""Media spans of a call against its tokens and its bundle (section 7).

A span gives the position of an image or video in the prompt; tokens, pixels and spans travel apart. Offsets count from
the start of the sequence, so they are shifted once, and the rest is array expressions over the call's carry.
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
from rollproof.impl.checks import fault, is_hash, is_length, show
from rollproof.spec.constants import IMAGE, MODALITIES, VIDEO

ITEM_FIELDS: Final = (
    *("modality", "placeholder_offset", "placeholder_length", "placeholder_digest", "token_id"),
    *("embedding_spans", "imgs_sizes"),
)
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
    """Return the items of a ``media_spans`` value, any JSON value: well-formed, ascending, disjoint, of one modality.

    ``ValueError`` for anything else.
    """
    if type(value) is not list:
        raise ValueError(fault("media_spans", value, "a list"))
    items = [_item(entry) for entry in value]
    for before, after in pairwise(items):
        if before.end > after.offset:
            raise ValueError(fault("placeholder_offset", after.offset, "ascending items that do not overlap"))
    for item in items:
        if item.modality != items[0].modality:
            raise ValueError(
                fault("modality", item.modality, f"{show(items[0].modality)}, as in the call's first item")
            )
    return items


def _item(value: Any) -> Item:
    if type(value) is not dict:
        raise ValueError(fault("media item", value, "an object"))
    for name in value:
        if name not in ITEM_FIELDS:
            raise ValueError(fault("media item", name, f"only {', '.join(ITEM_FIELDS)}"))
    for name in ITEM_FIELDS:
        if name not in value:
            raise ValueError(fault(name, None, "a value; the field is missing"))
    modality, digest = value["modality"], value["placeholder_digest"]
    offset, length, token_id = value["placeholder_offset"], value["placeholder_length"], value["token_id"]
    if type(modality) is not str or modality not in MODALITIES:
        raise ValueError(fault("modality", modality, " or ".join(MODALITIES)))
    for name in ("placeholder_offset", "token_id"):
        if not is_length(value[name]):
            raise ValueError(fault(name, value[name], "an integer in [0, 2**63)"))
    if not is_length(length) or not length:
        raise ValueError(fault("placeholder_length", length, "a length > 0"))
    if not is_hash(digest):
        raise ValueError(fault("placeholder_digest", digest, "64 lowercase hex characters"))
    item = Item(
        modality, offset, length, digest, token_id, _pairs(value, "embedding_spans"), _pairs(value, "imgs_sizes")
    )
    for start, count in item.runs:
        if not count:
            raise ValueError(fault("embedding_spans", count, "runs of at least one position"))
        if start < offset or start + count > item.end:
            raise ValueError(fault("embedding_spans", (start, count), "runs inside the placeholder"))
    for (start, count), (following, _) in pairwise(item.runs):
        if start + count >= following:
            raise ValueError(fault("embedding_spans", following, "ascending runs that do not touch"))
    for size in item.sizes:
        if not (size[0] in _INT32 and size[1] in _INT32):
            raise ValueError(fault("imgs_sizes", size, "positive int32 values"))
    if modality == IMAGE and len(item.sizes) != 1:
        raise ValueError(fault("imgs_sizes", item.sizes, "one size per image"))
    return item


def _pairs(value: dict[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    pairs = value[name]
    if type(pairs) is not list or not pairs:
        raise ValueError(fault(name, pairs, "a list that is not empty"))
    for pair in pairs:
        if not (type(pair) is list and len(pair) == 2 and is_length(pair[0]) and is_length(pair[1])):
            raise ValueError(fault(name, pair, "two lengths"))
    return tuple((first, second) for first, second in pairs)


def check_items(items: Sequence[Item], carry: NDArray[np.int64], start: int, bundle: Bundle | None) -> None:
    """Check items against a call: its carry ``[C]``, which begins at position ``start``, and its bundle, None for none.

    Raises ``ValueError`` with the first disagreement.
    """
    embedded = np.zeros(len(carry), dtype=np.bool_)
    for item in items:
        if item.offset < start or item.end > start + len(carry):
            raise ValueError(fault("placeholder_offset", item.offset, "a placeholder inside the call's carry"))
        for first, count in item.runs:
            embedded[first - start : first - start + count] = True
    for item in items:
        at, end = item.offset - start, item.end - start
        actual = placeholder_digest(carry[at:end])
        if actual != item.digest:
            raise ValueError(fault("placeholder_digest", item.digest, f"{show(actual)}, that of the call's tokens"))
        for first, count in item.runs:
            run = carry[first - start : first - start + count]
            if (run != item.token_id).any():
                raise ValueError(fault("embedding_spans", run.tolist(), f"token {item.token_id} at every position"))
        around = slice(max(0, at - 1), end + 1)
        beside = (carry[around] == item.token_id) & ~embedded[around]
        if beside.any():
            position = start + around.start + int(beside.argmax())
            raise ValueError(fault("embedding_spans", position, f"a run over every position of token {item.token_id}"))
    _check_bundle(items, bundle)


def _check_bundle(items: Sequence[Item], bundle: Bundle | None) -> None:
    if (bundle is None) == bool(items):
        expected = f"one that agrees with {len(items)} media items"
        raise ValueError(fault("media_present", bundle is not None, expected))
    if bundle is None:
        return
    modality = IMAGE if bundle.frames is None else VIDEO
    if items[0].modality != modality:
        raise ValueError(fault("modality", items[0].modality, f"{show(modality)}, as in the bundle"))
    sizes = [size for item in items for size in item.sizes]
    if list(map(list, sizes)) != bundle.sizes:
        raise ValueError(fault("imgs_sizes", sizes, "the sizes of the bundle, in order"))
    frames = [len(item.sizes) for item in items]
    if bundle.frames not in (None, frames):
        raise ValueError(fault("imgs_sizes per video", frames, f"one size per frame, {show(bundle.frames)}"))


def merge_factor(item: Item, patch_area: int, factor: int | None) -> int | None:
    """Return how many patches of ``patch_area`` pixels one embedding of the row represents (D37).

    ``factor`` is what is known of it, None where nothing is; an image's own number must be that, and whole. Videos only
    have no more embeddings than it allows, and teach nothing. Raises ``ValueError``.
    """
    patches = sum(height * width for height, width in item.sizes) // patch_area
    embeddings = sum(count for _, count in item.runs)
    if item.modality == VIDEO:
        most = patches // (factor or 1)
        if embeddings > most:
            raise ValueError(fault("embedding_spans", embeddings, f"at most {most} positions of {patches} patches"))
        return factor
    if patches % embeddings:
        raise ValueError(fault("embedding_spans", embeddings, f"a divisor of the image's {patches} patches"))
    if factor not in (None, patches // embeddings):
        raise ValueError(fault("embedding_spans", embeddings, f"one position for {factor} of {patches} patches"))
    return patches // embeddings


def placeholder_digest(ids: NDArray[np.int64]) -> str:
    """Return SHA-256 of token ids as a compact JSON array, in hex."""
    return sha256(json.dumps(ids.tolist(), separators=(",", ":")).encode()).hexdigest()
