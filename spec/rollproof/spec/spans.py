"""Media spans: the places of images and videos in a call's prompt (section 7).

An engine expands each image into placeholder tokens and puts its embeddings in their place. The span of an item says
which tokens those are; pixels, tokens and spans travel apart, and every way in which they can disagree has been met in
practice: placeholders expanded twice, pixels dropped or given to a sibling call, truncation that cuts placeholders
only, a policy that samples the image token. Offsets count from the start of the whole sequence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from attrs import fields, frozen

from rollproof.spec.bundles import MAX_GEOMETRY, Bundle, frame_counts, image_sizes, patch_count
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_SIZES, IMAGE, MODALITIES, VIDEO
from rollproof.spec.values import expect, expect_digest, expect_length, is_length, show


@frozen
class MediaItem:
    """One image or video in a call's prompt."""

    modality: str
    placeholder_offset: int
    placeholder_length: int
    placeholder_digest: str
    token_id: int
    """The token id at every embedding position."""
    embedding_spans: tuple[tuple[int, int], ...]
    """(start, length) of every run of embedding positions."""
    imgs_sizes: tuple[tuple[int, int], ...]
    """(height, width) of the image, or of every frame of the video."""

    @property
    def end(self) -> int:
        """The position after the placeholder."""
        return self.placeholder_offset + self.placeholder_length


ITEM_FIELDS: Final = tuple(field.name for field in fields(MediaItem))

# ── items on their own; each function raises ``ValueError`` ────────────────────────────────────────────────────────


def parse_items(value: Any) -> tuple[MediaItem, ...]:
    """Parse the items of a ``media_spans`` value: well-formed, ascending, disjoint and of one modality."""
    expect(type(value) is list, "media_spans", value, "a list")
    items = tuple(parse_item(entry) for entry in value)
    for before, after in pairwise(items):
        offset = after.placeholder_offset
        expect(before.end <= offset, "placeholder_offset", offset, "ascending items that do not overlap")
    for item in items:
        expected = f"{show(items[0].modality)}, as in the call's first item"
        expect(item.modality == items[0].modality, "modality", item.modality, expected)
    return items


def parse_item(value: Any) -> MediaItem:
    """Parse one item: exactly its fields, each of its own type, and embedding runs inside the placeholder."""
    expect(type(value) is dict, "media item", value, "an object")
    for name in value:
        expect(name in ITEM_FIELDS, "media item", name, f"only {', '.join(ITEM_FIELDS)}")
    for name in ITEM_FIELDS:
        expect(name in value, name, None, "a value; the field is missing")
    expect(value["modality"] in MODALITIES, "modality", value["modality"], " or ".join(MODALITIES))
    for name in ("placeholder_offset", "token_id"):
        expect_length(name, value[name])
    length = value["placeholder_length"]
    expect(is_length(length) and length > 0, "placeholder_length", length, "a length > 0")
    expect_digest("placeholder_digest", value["placeholder_digest"])
    pairs = {name: parse_pairs(name, value[name]) for name in ("embedding_spans", "imgs_sizes")}
    item = MediaItem(**{**value, **pairs})
    check_runs(item)
    for size in item.imgs_sizes:
        expect(all(1 <= side <= MAX_GEOMETRY for side in size), "imgs_sizes", size, "positive int32 values")
    expect(item.modality == VIDEO or len(item.imgs_sizes) == 1, "imgs_sizes", item.imgs_sizes, "one size per image")
    return item


def parse_pairs(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Parse a list of at least one pair of lengths."""
    expect(type(value) is list and len(value) > 0, name, value, "a list that is not empty")
    for pair in value:
        expect(type(pair) is list and len(pair) == 2 and all(map(is_length, pair)), name, pair, "two lengths")
    return tuple((first, second) for first, second in value)


def check_runs(item: MediaItem) -> None:
    """Check that runs are ascending, inside the placeholder, and maximal: two that touch would be one."""
    for start, length in item.embedding_spans:
        expect(length > 0, "embedding_spans", length, "runs of at least one position")
        inside = item.placeholder_offset <= start and start + length <= item.end
        expect(inside, "embedding_spans", (start, length), "runs inside the placeholder")
    for (start, length), (following, _) in pairwise(item.embedding_spans):
        expect(start + length < following, "embedding_spans", following, "ascending runs that do not touch")


def item_value(item: MediaItem) -> dict[str, Any]:
    """Return the JSON object of an item."""
    value = {name: getattr(item, name) for name in ITEM_FIELDS}
    for name in ("embedding_spans", "imgs_sizes"):
        value[name] = [list(pair) for pair in value[name]]
    return value


def placeholder_digest(token_ids: Sequence[int]) -> str:
    """Return the digest of a placeholder: SHA-256 of its ids as a compact JSON array."""
    return hashlib.sha256(json.dumps(list(token_ids), separators=(",", ":")).encode("ascii")).hexdigest()


# ── items against their call; each function raises ``ValueError`` ───────────────────────────────────────────────────


def embedded_positions(items: Sequence[MediaItem]) -> set[int]:
    """Return the positions at which some items have embeddings."""
    runs = [range(first, first + length) for item in items for first, length in item.embedding_spans]
    return {position for run in runs for position in run}


def check_tokens(items: Sequence[MediaItem], carry: Sequence[int], start: int) -> None:
    """Check the items against the call's carry tokens, the first of which is at position ``start`` of the sequence.

    Runs are maximal among the tokens too: ``token_id`` in a placeholder or right beside it, and in no run, is a
    placeholder that was expanded further than its pixels reach.
    """
    for item in items:
        inside = start <= item.placeholder_offset and item.end <= start + len(carry)
        expect(inside, "placeholder_offset", item.placeholder_offset, "a placeholder inside the call's carry")
    embedded = embedded_positions(items)
    for item in items:
        ids = carry[item.placeholder_offset - start : item.end - start]
        digest = placeholder_digest(ids)
        expected = f"{show(digest)}, that of the call's tokens"
        expect(digest == item.placeholder_digest, "placeholder_digest", item.placeholder_digest, expected)
        for first, length in item.embedding_spans:
            run = carry[first - start : first + length - start]
            expect(set(run) == {item.token_id}, "embedding_spans", run, f"token {item.token_id} at every position")
        for position in range(item.placeholder_offset - 1, item.end + 1):
            if start <= position < start + len(carry) and position not in embedded:
                expected = f"a run over every position of token {item.token_id}"
                expect(carry[position - start] != item.token_id, "embedding_spans", position, expected)


def check_media(items: Sequence[MediaItem], bundle: Bundle | None) -> None:
    """Check that the items describe the bundle, None if the call has none: one item per image or video, in order."""
    present = bundle is not None
    expect(present == bool(items), "media_present", present, f"one that agrees with {len(items)} media items")
    if bundle is None:
        return
    modality = VIDEO if BUNDLE_FRAMES in bundle else IMAGE
    expect(items[0].modality == modality, "modality", items[0].modality, f"{show(modality)}, as in the bundle")
    sizes = [size for item in items for size in item.imgs_sizes]
    expect(sizes == image_sizes(bundle[BUNDLE_SIZES]), "imgs_sizes", sizes, "the sizes of the bundle, in order")
    if BUNDLE_FRAMES in bundle:
        frames = [len(item.imgs_sizes) for item in items]
        held = frame_counts(bundle[BUNDLE_FRAMES])
        expect(frames == held, "imgs_sizes per video", frames, f"one size per frame, {show(held)}")


def check_embeddings(item: MediaItem, patch: int, factor: int | None) -> int | None:
    """Check how many patches of ``patch`` by ``patch`` pixels each embedding position represents (decision D37).

    ``factor`` is what is known of that number, and the result what later items of the row must agree with. Engines
    merge frames of a video in time and may drop embeddings that say little, so a video has an upper bound only.
    """
    patches, embeddings = patch_count(item.imgs_sizes, patch), sum(length for _, length in item.embedding_spans)
    if item.modality == VIDEO:
        most = patches // (factor or 1)
        expect(embeddings <= most, "embedding_spans", embeddings, f"at most {most} positions of {patches} patches")
        return factor
    expect(patches % embeddings == 0, "embedding_spans", embeddings, f"a divisor of the image's {patches} patches")
    found = patches // embeddings
    expect(factor in (None, found), "embedding_spans", embeddings, f"one position for {factor} of {patches} patches")
    return found
