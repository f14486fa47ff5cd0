"""Media arithmetic (section 7): patches, embedding runs, placeholders, restored weight versions."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.rule import rule
from rollproof.spec.bundles import patch_count, patch_size
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES, IMAGE
from rollproof.spec.spans import MediaItem, check_runs, check_tokens, item_value, parse_items
from rollproof.spec.tensor import Tensor

POSITIONS = "positions and lengths below 2**62"
SIDES = (1, 2, 14, 16)
"""Patch sides that models use."""

ITEM = MediaItem(
    modality=IMAGE,
    placeholder_offset=0,
    placeholder_length=1,
    placeholder_digest=NO_DIGEST,
    token_id=9,
    embedding_spans=((0, 1),),
    imgs_sizes=((1, 1),),
)


def bundle(patches: int, sizes: Sequence[tuple[int, int]], frames: Sequence[int] = ()) -> dict[str, Tensor]:
    """Return a bundle of one-pixel patches, each with values of its own."""
    values = [float(value) for value in range(3 * patches)]
    tensors = {
        BUNDLE_PIXELS: Tensor.of("float32", values, (1, patches, 3)),
        BUNDLE_SIZES: Tensor.of("int32", [side for size in sizes for side in size], (len(sizes), 2)),
    }
    return tensors | ({BUNDLE_FRAMES: Tensor.of("int32", frames)} if frames else {})


@rule("7", "MEDIA-1", "feature widths up to 200", (3,))
def a_feature_width_is_a_square_patch(width: int) -> bool:
    """A feature width is accepted iff it is 3 * P * P for a P of at least 1.

    pre: 0 <= width <= 200
    post: _
    """
    return accepted(patch_size, width) == (width in [3 * side * side for side in range(1, 10)])


@rule("7", ("MEDIA-1", "MEDIA-2"), "2 images of sides below 2**31 patches, P of 1, 2, 14 or 16", (3, 5, 2, 2, 2))
def patches_add_up_exactly(height: int, width: int, next_height: int, next_width: int, patch: int) -> bool:
    """Images have as many patches as their grids, counted without a limit on the sum (decision D18).

    pre: 0 < height < 2**31 and 0 < width < 2**31
    pre: 0 < next_height < 2**31 and 0 < next_width < 2**31
    pre: 0 <= patch < 4
    post: _
    """
    side = pick(SIDES, patch)
    sizes = [(height * side, width * side), (next_height * side, next_width * side)]
    return patch_count(sizes, side) == height * width + next_height * next_width


@rule("7", "MEDIA-1", "sides below 2**31 pixels, P of 1, 2, 14 or 16", (28, 42, 2))
def sides_are_whole_patches(height: int, width: int, patch: int) -> bool:
    """An image is cut into patches iff both of its sides are multiples of P.

    pre: 0 < height < 2**31 and 0 < width < 2**31
    pre: 0 <= patch < 4
    post: _
    """
    side = pick(SIDES, patch)
    return accepted(patch_count, [(height, width)], side) == (height % side == 0 and width % side == 0)


@rule("7", "MEDIA-7", POSITIONS, (4, 6, 4, 2, 7, 3))
def embedding_runs_are_inside_and_apart(offset: int, length: int, start: int, run: int, after: int, last: int) -> bool:
    """Two embedding runs are accepted iff they ascend inside the placeholder and do not touch: touching, they are one.

    pre: 0 <= offset < 2**62 and 0 <= length < 2**62
    pre: 0 <= start < 2**62 and 0 <= run < 2**62
    pre: 0 <= after < 2**62 and 0 <= last < 2**62
    post: _
    """
    item = evolve(
        ITEM, placeholder_offset=offset, placeholder_length=length, embedding_spans=((start, run), (after, last))
    )
    inside = offset <= start and after + last <= offset + length
    return accepted(check_runs, item) == (run > 0 and last > 0 and inside and start + run < after)


@rule("7", "MEDIA-7", POSITIONS, (4, 3, 7, 2))
def items_are_disjoint(offset: int, length: int, next_offset: int, next_length: int) -> bool:
    """Two items are accepted iff the second begins where the first has ended, or later.

    pre: 0 <= offset < 2**62 and 0 < length < 2**62
    pre: 0 <= next_offset < 2**62 and 0 < next_length < 2**62
    post: _
    """
    values = [
        item_value(evolve(ITEM, placeholder_offset=start, placeholder_length=size, embedding_spans=((start, size),)))
        for start, size in ((offset, length), (next_offset, next_length))
    ]
    return accepted(parse_items, values) == (offset + length <= next_offset)


@rule("7", ("MEDIA-1", "MEDIA-7"), "sides from 0 to 2**32", (2**31 - 1, 1))
def sides_are_positive_int32(height: int, width: int) -> bool:
    """An item's height and width are accepted iff they are positive and fit into int32.

    pre: 0 <= height <= 2**32
    pre: 0 <= width <= 2**32
    post: _
    """
    value = item_value(evolve(ITEM, imgs_sizes=((height, width),)))
    return accepted(parse_items, [value]) == (1 <= height < 2**31 and 1 <= width < 2**31)


@rule("7", "MEDIA-7", "placeholders of up to 2**62 outside a carry of 4 tokens at up to 2**62", (10, 3, 12))
def a_placeholder_outside_the_carry_is_refused(offset: int, length: int, start: int) -> bool:
    """An item whose placeholder is not inside the call's own carry is refused, before a token is looked at.

    pre: 0 <= offset < 2**62
    pre: 0 < length < 2**62
    pre: 0 <= start < 2**62
    pre: offset < start or offset + length > start + 4
    post: _
    """
    item = evolve(ITEM, placeholder_offset=offset, placeholder_length=length, embedding_spans=((offset, length),))
    return not accepted(check_tokens, (item,), (9, 9, 9, 9), start)
