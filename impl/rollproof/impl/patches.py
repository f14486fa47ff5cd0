"""From pixels to packed patches and back (section 7).

A frame of ``3 x H x W`` pixels becomes ``H/P * W/P`` patches in row-major order, each of them ``3 * P * P`` values:
channel by channel, row by row. Values are moved, never computed with, so dtype and bits stay, on whatever device they
are. ``image_bundle`` and ``video_bundle`` make what ``StagingSink`` takes as a call's attachments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES

CHANNELS = 3


def pack(frames: torch.Tensor, patch_size: int) -> torch.Tensor:
    """Return frames ``[f, 3, H, W]`` as patches ``[1, f * H/P * W/P, 3 * P * P]``.

    ``ValueError`` for another shape, or for sides that are not multiples of P.
    """
    if patch_size < 1:
        raise ValueError(f"patch_size: got {patch_size}, expected at least 1")
    if frames.dim() != 4 or frames.shape[1] != CHANNELS:
        raise ValueError(f"frames: got shape {list(frames.shape)}, expected [f, {CHANNELS}, H, W]")
    count, _, height, width = frames.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"frames: got {height} x {width} pixels, expected multiples of the patch size {patch_size}")
    grid = frames.reshape(count, CHANNELS, height // patch_size, patch_size, width // patch_size, patch_size)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(1, -1, CHANNELS * patch_size**2)


def unpack(imgs: torch.Tensor, imgs_sizes: torch.Tensor, patch_size: int) -> list[torch.Tensor]:
    """Return the frames ``[3, H, W]`` in patches ``[1, patches, 3 * P * P]``, by their sizes ``[n, 2]``.

    ``ValueError`` where patches and sizes do not agree.
    """
    if imgs_sizes.dim() != 2 or imgs_sizes.shape[1] != 2:
        raise ValueError(f"imgs_sizes: got shape {list(imgs_sizes.shape)}, expected [n, 2]")
    sizes = [(int(height), int(width)) for height, width in imgs_sizes.tolist()]
    counts = [(height // patch_size) * (width // patch_size) for height, width in sizes]
    expected = (1, sum(counts), CHANNELS * patch_size**2)
    if tuple(imgs.shape) != expected or any(height % patch_size or width % patch_size for height, width in sizes):
        wanted = f"{list(expected)} for imgs_sizes {sizes}, multiples of {patch_size}"
        raise ValueError(f"imgs: got shape {list(imgs.shape)}, expected {wanted}")
    frames = []
    for patches, (height, width) in zip(torch.split(imgs[0], counts), sizes, strict=True):
        grid = patches.reshape(height // patch_size, width // patch_size, CHANNELS, patch_size, patch_size)
        frames.append(grid.permute(2, 0, 3, 1, 4).reshape(CHANNELS, height, width))
    return frames


def image_bundle(images: Sequence[torch.Tensor], patch_size: int) -> dict[str, torch.Tensor]:
    """Return the bundle of images ``[3, H, W]`` in order, each of its own size; at least one, all of one dtype."""
    return _bundle([image[None] for image in images], patch_size)


def video_bundle(videos: Sequence[torch.Tensor], patch_size: int) -> dict[str, torch.Tensor]:
    """Return the bundle of videos ``[f, 3, H, W]`` in order, each of its own size and length; at least one."""
    bundle = _bundle(videos, patch_size)
    return bundle | {BUNDLE_FRAMES: torch.tensor([len(video) for video in videos], dtype=torch.int32)}


def _bundle(items: Sequence[torch.Tensor], patch_size: int) -> dict[str, torch.Tensor]:
    dtypes = {str(item.dtype) for item in items}
    if len(dtypes) != 1:
        raise ValueError(f"images or videos: got dtypes {sorted(dtypes)}, expected one dtype, of at least one item")
    sizes = [list(item.shape[2:]) for item in items for _ in range(len(item))]
    return {
        BUNDLE_PIXELS: torch.cat([pack(item, patch_size) for item in items], dim=1),
        BUNDLE_SIZES: torch.tensor(sizes, dtype=torch.int32),
    }
