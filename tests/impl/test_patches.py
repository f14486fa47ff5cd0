"""Pixels to patches and back, from real image files of several sizes and orientations."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from rollproof.impl.bundles import read_bundle
from rollproof.impl.patches import image_bundle, pack, unpack, video_bundle

SIZES = [(16, 16), (32, 16), (16, 48), (64, 32)]
"""Width and height."""


def gradient(width, height):
    """Return an image whose every pixel encodes its position."""
    rows, columns = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([rows * 3, columns * 3, rows ^ columns], axis=-1).astype(np.uint8), "RGB")


def opened(image, kind, **options):
    """Return the image after a round trip through a file, the right way up."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    file.seek(0)
    return ImageOps.exif_transpose(Image.open(file)).convert("RGB")


def pixels(image, dtype=torch.float32):
    """Return ``[3, H, W]`` in [0, 1]."""
    return (torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).to(torch.float32) / 255).to(dtype)


def rotated(image, orientation):
    """Return the file of a camera that was turned: the stored pixels are rotated, and a tag says so."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    return opened(image.transpose(turned[orientation]), "PNG", exif=exif)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", SIZES)
def test_images_survive(size, kind, dtype):
    image = pixels(opened(gradient(*size), kind), dtype)
    bundle = image_bundle([image], 16)
    read_bundle(bundle)
    assert bundle["imgs"].dtype is dtype
    assert bundle["imgs"].shape == (1, size[0] * size[1] // 256, 768)
    assert bundle["imgs_sizes"].tolist() == [[size[1], size[0]]]
    (back,) = unpack(bundle["imgs"], bundle["imgs_sizes"], 16)
    assert torch.equal(back, image)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_orientation_is_the_images_not_the_files(orientation):
    image = gradient(32, 16)
    assert torch.equal(pixels(rotated(image, orientation)), pixels(image))
    bundle = image_bundle([pixels(rotated(image, orientation))], 8)
    assert bundle["imgs_sizes"].tolist() == [[16, 32]]


def test_patches_are_row_major_and_channels_come_first():
    image = torch.arange(3 * 4 * 6).reshape(3, 4, 6)
    patches = pack(image[None], 2)
    assert patches.shape == (1, 6, 12)
    for row in range(2):
        for column in range(3):
            expected = image[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].reshape(-1)
            assert torch.equal(patches[0, 3 * row + column], expected)


def test_images_of_different_sizes_follow_each_other():
    images = [pixels(gradient(*size), torch.bfloat16) for size in SIZES]
    bundle = image_bundle(images, 8)
    read_bundle(bundle)
    back = unpack(bundle["imgs"], bundle["imgs_sizes"], 8)
    assert all(torch.equal(one, other) for one, other in zip(back, images, strict=True))


def test_videos_count_their_frames():
    frames = torch.stack([pixels(gradient(16, 16)) + index for index in range(3)])
    bundle = video_bundle([frames, frames[:1]], 8)
    assert read_bundle(bundle).frames == [3, 1]
    assert bundle["imgs_sizes"].tolist() == [[16, 16]] * 4
    assert torch.equal(torch.stack(unpack(bundle["imgs"], bundle["imgs_sizes"], 8)[:3]), frames)


def test_patches_keep_every_bit():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45] * 3).reshape(3, 2, 2)
    (back,) = unpack(pack(odd[None], 1), torch.tensor([[2, 2]]), 1)
    assert torch.equal(back.view(torch.int32), odd.view(torch.int32))


@pytest.mark.parametrize(
    ("frames", "patch", "complaint"),
    [
        (torch.zeros(3, 4, 4), 2, "frames: got shape"),
        (torch.zeros(1, 4, 4, 4), 2, "frames: got shape"),
        (torch.zeros(1, 3, 4, 4, 1), 2, "frames: got shape"),
        (torch.zeros(1, 3, 4, 5), 2, "expected multiples of the patch size 2"),
        (torch.zeros(1, 3, 4, 4), 0, "at least 1"),
    ],
)
def test_pack_refuses_what_has_no_patches(frames, patch, complaint):
    with pytest.raises(ValueError, match=complaint):
        pack(frames, patch)


@pytest.mark.parametrize(
    ("shape", "sizes"), [((1, 2, 12), [[2, 2]]), ((1, 1, 3), [[2, 2]]), ((1, 1, 12), [[2, 3]]), ((2, 1, 12), [[2, 2]])]
)
def test_patches_and_sizes_must_agree(shape, sizes):
    with pytest.raises(ValueError, match="imgs"):
        unpack(torch.zeros(shape), torch.tensor(sizes), 2)


def test_a_bundle_has_something_in_it():
    with pytest.raises(ValueError, match="at least one"):
        image_bundle([], 2)
    with pytest.raises(ValueError, match="one dtype"):
        image_bundle([torch.zeros(3, 2, 2), torch.zeros(3, 2, 2, dtype=torch.float16)], 2)
