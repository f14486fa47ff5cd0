"""Bundles of pixels, sizes and frames: what one holds, how staged columns are read, and how a chain joins them."""

from __future__ import annotations

import math
from math import prod

import pytest
from cases import HYPOTHESIS, every, refusal
from hypothesis import given

from rollproof.properties.strategies.breaks.media_columns import zeros
from rollproof.properties.strategies.rollouts.media import MediaKind, bundles, make_bundle
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.media import bundle
from rollproof.spec.bundles import (
    MAX_GEOMETRY,
    check_bundle,
    check_pixels,
    column_of,
    image_sizes,
    join,
    narrowed,
    read_media,
    staged_media,
    trainer_layout,
)
from rollproof.spec.constants import BUNDLE_PIXELS, BUNDLE_SIZES, MEDIA_FIELDS
from rollproof.spec.rejections import Code
from rollproof.spec.tensor import Tensor

ONE = [((1, 1),)]
STILL = make_bundle(MediaKind("float32", 2), [((2, 4),), ((4, 2),)], Bytes(b"\x01\x02"))
CLIP = make_bundle(MediaKind("float32", 2, video=True), [((2, 2), (2, 2)), ((2, 4),)], Bytes(b"\x03\x04"))


def sizes(*values, dtype="int32"):
    return Tensor.of(dtype, values, (len(values) // 2, 2))


@HYPOTHESIS
@given(bundles())
def test_bundles_survive_staging(bundle):
    check_bundle(bundle)
    kind = bundle["imgs"].dtype
    columns = staged_media(bundle, kind)
    assert read_media(columns, has_frames="num_frames" in bundle) == narrowed(bundle)
    assert columns["media_present"].values() == (True,)
    assert {columns[column_of(name)].dtype for name in ("imgs_sizes", "num_frames")} == {"int32"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_without_media_hold_zeros_in_their_columns_dtype(dtype):
    columns = staged_media(None, dtype)
    assert columns["media_imgs"] == zeros(dtype, (1, 1, 1))
    assert columns["media_imgs_sizes"] == zeros("int32", (1, 1, 2))
    assert columns["media_num_frames"] == zeros("int32", (1, 1))
    assert staged_media(make_bundle(MediaKind(dtype), ONE, Bytes(b"")), dtype)["media_num_frames"] == zeros(
        "int32", (1, 1)
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"imgs": None}, "got None, expected a tensor"),
        ({"imgs_sizes": None}, "got None, expected a tensor"),
        ({"pixel_values": STILL["imgs"]}, "only imgs"),
        ({"num_frames": "two"}, "expected a tensor"),
        ({"imgs": zeros("float64", (1, 4, 12))}, "float16"),
        ({"imgs": zeros("float32", (4, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (2, 2, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (1, 0, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (1, 4, 0))}, r"3 \* P\*\*2 for a patch size P"),
        ({"imgs": zeros("float32", (1, 4, 13))}, r"3 \* P\*\*2 for a patch size P"),
        ({"imgs": zeros("float32", (1, 4, 6))}, r"3 \* P\*\*2 for a patch size P"),
        ({"imgs": zeros("float32", (1, 5, 12))}, "the 4 patches"),
        ({"imgs_sizes": zeros("float32", (2, 2))}, "int32, int64"),
        ({"imgs_sizes": zeros("int32", (0, 2))}, "n > 0"),
        ({"imgs_sizes": zeros("int32", (2, 3))}, "n > 0"),
        ({"imgs_sizes": sizes(2, 0, 2, 4)}, "a positive int32"),
        ({"imgs_sizes": sizes(-2, -2, 2, 4)}, "a positive int32"),
        ({"imgs_sizes": sizes(2**31, 2, 2, 4, dtype="int64")}, "a positive int32"),
        ({"imgs_sizes": sizes(1, 4, 2, 6)}, "multiples of 2"),
        ({"imgs_sizes": sizes(2, 2, 2, 4)}, "the 3 patches"),
        ({"num_frames": Tensor.of("int16", [2])}, "int32, int64"),
        ({"num_frames": Tensor.of("int32", [2], (1, 1))}, r"\[videos\]"),
        ({"num_frames": Tensor.of("int32", [2, 0])}, "a positive int32"),
        ({"num_frames": Tensor.of("int32", [1, 2])}, "a sum of 2"),
        ({"num_frames": Tensor.of("int32", [])}, "a sum of 2"),
    ],
)
def test_check_bundle_names_what_is_wrong(change, complaint):
    bundle = {name: value for name, value in {**STILL, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=complaint):
        check_bundle(bundle)
    with pytest.raises(ValueError, match=complaint):
        staged_media(bundle, "float32")


def test_bundle_sizes_are_summed_without_wrapping():
    wrapped = {"imgs": zeros("float32", (1, 1, 3)), "imgs_sizes": sizes(*[2**30] * 32, 1, 1)}
    assert (16 * 2**60 + 1) % 2**64 == 1
    with pytest.raises(ValueError, match="patches"):
        check_bundle(wrapped)


def test_a_partition_has_one_pixel_dtype():
    with pytest.raises(ValueError, match="imgs: got 'float32', expected bfloat16"):
        staged_media(STILL, "bfloat16")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"media_imgs": None}, "media_imgs: got None, expected a column"),
        ({"media_imgs_sizes": None}, "media_imgs_sizes: got None, expected a column"),
        ({"media_num_frames": None}, "media_num_frames: got None, expected a column"),
        ({"media_imgs_sizes": zeros("int64", (1, 2, 2))}, "expected int32"),
        ({"media_imgs_sizes": zeros("int32", (2, 1, 2))}, "a batch of one"),
        ({"media_num_frames": Tensor.of("int32", [2], (1, 1))}, "one zero for stills"),
        ({"media_num_frames": zeros("int32", (1, 2))}, "one zero for stills"),
    ],
)
def test_staged_columns_are_read_strictly(columns, complaint):
    row = {name: value for name, value in {**staged_media(STILL, "float32"), **columns}.items() if value is not None}
    with pytest.raises(ValueError, match=complaint):
        read_media(row, has_frames=False)


def test_a_chain_keeps_every_patch_in_order():
    other = make_bundle(MediaKind("float32", 2), [((2, 2),)], Bytes(b"\x30\x05"))
    whole = trainer_layout(join([STILL, other, STILL]))
    assert whole["pixel_values"].shape == (9, 12)
    assert whole["pixel_values"].data == STILL["imgs"].data + other["imgs"].data + STILL["imgs"].data
    assert whole["imgs_sizes"].values() == (2, 4, 4, 2, 2, 2, 2, 4, 4, 2)
    assert whole["num_frames"] == Tensor.of("int32", [1] * 5)
    assert list(whole) == list(MEDIA_FIELDS)


def test_videos_keep_their_frame_counts():
    whole = trainer_layout(join([CLIP, CLIP]))
    assert whole["num_frames"] == Tensor.of("int32", [2, 1, 2, 1])
    assert whole["imgs_sizes"].shape == (6, 2)


@pytest.mark.parametrize(
    "other",
    [
        CLIP,
        make_bundle(MediaKind("bfloat16", 2), [((2, 2),)], Bytes(b"")),
        make_bundle(MediaKind("float32", 1), ONE, Bytes(b"")),
    ],
)
def test_join_refuses_parts_that_do_not_go_together(other):
    assert refusal(join, [STILL, other]).code is Code.MEDIA_CHAIN_INCOMPATIBLE


@every(height=range(1, 5), width=range(1, 5))
def test_a_bundle_has_the_patches_of_its_sizes(height: int, width: int) -> bool:
    """A bundle is accepted iff its sizes add up to exactly the patches that it holds."""
    size = pick(range(5), height), pick(range(5), width)
    return accepted(check_bundle, bundle(4, [size])) == (height * width == 4)


@every(first=range(1, 3), second=range(1, 3), sizes=range(1, 5))
def test_frames_add_up_to_the_sizes(first: int, second: int, sizes: int) -> bool:
    """A bundle of videos is accepted iff it has one size for each frame of all videos."""
    count, frames = pick(range(7), sizes), [pick(range(4), first), pick(range(4), second)]
    return accepted(check_bundle, bundle(count, [(1, 1)] * count, frames)) == (sum(frames) == count)


@every(first=range(1, 4), second=range(1, 4))
def test_a_chain_keeps_every_image(first: int, second: int) -> bool:
    """Joining calls keeps all patches and all sizes, and their order."""
    counts = pick(range(4), first), pick(range(4), second)
    sizes = [(1, side) for side in range(1, 1 + sum(counts))]
    parts = [bundle(sum(map(prod, of)), of) for of in (sizes[: counts[0]], sizes[counts[0] :])]
    joined = join(parts)
    check_bundle(joined)
    return image_sizes(joined[BUNDLE_SIZES]) == sizes and joined[BUNDLE_PIXELS].data == b"".join(
        part[BUNDLE_PIXELS].data for part in parts
    )


def test_image_sizes_are_at_most_the_largest_int32() -> None:
    assert MAX_GEOMETRY == 2_147_483_647
    assert image_sizes(Tensor.of("int64", [2_147_483_647, 1], (1, 2))) == [(2_147_483_647, 1)]
    with pytest.raises(ValueError, match="positive int32"):
        image_sizes(Tensor.of("int64", [2_147_483_648, 1], (1, 2)))


@pytest.mark.parametrize("shape", [(1, 0, 3), (0, 1, 3), (2, 1, 3), (1, 3)])
def test_pixels_are_one_batch_of_at_least_one_patch(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="patches, features"):
        check_pixels(Tensor.of("float32", [0.0] * math.prod(shape), shape))
