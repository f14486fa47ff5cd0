"""Media bundles: the pixels that one call brought, how calls join, and the trainer's layout (section 7).

A bundle is what an engine hands over with a call: packed patches ``imgs`` ``[1, patches, 3*P*P]``, their sizes in
pixels ``imgs_sizes`` ``[n, 2]`` (height, width), and for videos the frames of each, ``num_frames`` ``[videos]``. Pixels
are never converted. Sizes and frames are counted in exact integers (decision D18): in 64 bits, sixteen images of 2**30
by 2**30 pixels and one of 1 by 1 add up to one patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    BUNDLE_NAMES,
    BUNDLE_PIXELS,
    BUNDLE_SIZES,
    GEOMETRY_DTYPES,
    PIXEL_DTYPES,
    PIXEL_VALUES,
    STAGED_GEOMETRY_DTYPE,
)
from rollproof.spec.rejections import Code
from rollproof.spec.staged import Row, column
from rollproof.spec.tensor import ITEM_SIZES, Tensor
from rollproof.spec.values import expect, fault, refusing, show

Bundle: TypeAlias = Mapping[str, Tensor]

CHANNELS: Final = 3
MAX_GEOMETRY: Final = 2**31 - 1
"""Largest size or number of frames: geometry is staged as int32."""

# ── validity; each function raises ``ValueError`` ───────────────────────────────────────────────────────────────────


def check_bundle(bundle: Mapping[Any, Any]) -> None:
    """Check that the bundle is well-formed: its tensors, their dtypes and shapes, and numbers that add up."""
    for name in bundle:
        expect(name in BUNDLE_NAMES, "bundle", name, f"only {', '.join(BUNDLE_NAMES)}")
    for name in (BUNDLE_PIXELS, BUNDLE_SIZES):
        expect(name in bundle, name, None, "a tensor")
    for name, value in bundle.items():
        expect(isinstance(value, Tensor), name, value, "a tensor")
    patches, patch = check_pixels(bundle[BUNDLE_PIXELS])
    sizes = image_sizes(bundle[BUNDLE_SIZES])
    held = patch_count(sizes, patch)
    expect(held == patches, BUNDLE_PIXELS, patches, f"the {show(held)} patches that {BUNDLE_SIZES} adds up to")
    if BUNDLE_FRAMES in bundle:
        frames = sum(frame_counts(bundle[BUNDLE_FRAMES]))
        expect(frames == len(sizes), BUNDLE_FRAMES, frames, f"a sum of {len(sizes)}, one size per frame")


def check_pixels(imgs: Tensor) -> tuple[int, int]:
    """Return the number of patches, and the width and height of one in pixels."""
    expect(imgs.dtype in PIXEL_DTYPES, BUNDLE_PIXELS, imgs.dtype, ", ".join(PIXEL_DTYPES))
    shape = imgs.shape
    expect(len(shape) == 3 and shape[0] == 1 and shape[1] > 0, BUNDLE_PIXELS, shape, "[1, patches, features]")
    return shape[1], patch_size(shape[2])


def patch_size(width: int) -> int:
    """Return the P of a feature width ``3 * P**2``."""
    patch = math.isqrt(width // CHANNELS)
    square = patch >= 1 and CHANNELS * patch**2 == width
    expect(square, f"{BUNDLE_PIXELS}: features", width, "3 * P**2 for a patch size P")
    return patch


def image_sizes(sizes: Tensor) -> list[tuple[int, int]]:
    """Return height and width of every image or frame, in pixels."""
    expect(sizes.dtype in GEOMETRY_DTYPES, BUNDLE_SIZES, sizes.dtype, ", ".join(GEOMETRY_DTYPES))
    shape = sizes.shape
    expect(len(shape) == 2 and shape[0] > 0 and shape[1] == 2, BUNDLE_SIZES, shape, "[n, 2] with n > 0")
    positive(BUNDLE_SIZES, sizes)
    return [(height, width) for height, width in sizes.rows(2)]


def patch_count(sizes: Sequence[tuple[int, int]], patch: int) -> int:
    """Return how many patches images of these sizes in pixels are cut into, as an exact integer (decision D18)."""
    for height, width in sizes:
        expect(height % patch == 0 and width % patch == 0, BUNDLE_SIZES, (height, width), f"multiples of {patch}")
    return sum(height * width for height, width in sizes) // patch**2


def frame_counts(frames: Tensor) -> list[int]:
    """Return the number of frames of every video."""
    expect(frames.dtype in GEOMETRY_DTYPES, BUNDLE_FRAMES, frames.dtype, ", ".join(GEOMETRY_DTYPES))
    expect(len(frames.shape) == 1, BUNDLE_FRAMES, frames.shape, "[videos]")
    return positive(BUNDLE_FRAMES, frames)


def positive(name: str, geometry: Tensor) -> list[int]:
    """Return the elements, each in ``[1, 2**31)``."""
    values = [int(value) for value in geometry.values()]
    for value in values:
        expect(1 <= value <= MAX_GEOMETRY, name, value, "a positive int32")
    return values


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def narrowed(bundle: Bundle) -> dict[str, Tensor]:
    """Return a valid bundle as it is staged: sizes and frames as int32, pixels untouched."""
    return {
        name: value if name == BUNDLE_PIXELS else Tensor.of(STAGED_GEOMETRY_DTYPE, value.values(), value.shape)
        for name, value in bundle.items()
    }


def join(parts: Sequence[Bundle], names: Sequence[str] = ()) -> dict[str, Tensor]:
    """Return the bundle of a chain from the valid bundles of its calls, in order; at least one.

    Patches follow patches, sizes sizes, frames frames. Raises ``Rejected(MEDIA_CHAIN_INCOMPATIBLE)`` where the parts
    differ in pixel dtype or feature width, or only some of them have frames; ``names`` are how it names the parts.
    """
    names = names or [f"part {index}" for index in range(len(parts))]
    kinds = [media_kind(part[BUNDLE_PIXELS], videos=BUNDLE_FRAMES in part) for part in parts]
    for each in zip(*kinds, strict=True):
        for name, kind in zip(names, each, strict=True):
            with refusing(Code.MEDIA_CHAIN_INCOMPATIBLE, where=name):
                expect(kind == each[0], "media", kind, f"{each[0]}, as in {names[0]}")
    staged = [narrowed(part) for part in parts]
    return {
        name: append([part[name] for part in staged], dimension=1 if name == BUNDLE_PIXELS else 0)
        for name in BUNDLE_NAMES
        if name in staged[0]
    }


def media_kind(pixels: Tensor, *, videos: bool) -> tuple[str, str]:
    """Return what media must share to be put together, in words: pixel dtype and feature width, and modality."""
    return f"{pixels.dtype}, {pixels.shape[-1]} features", "videos" if videos else "images"


def append(tensors: Sequence[Tensor], dimension: int) -> Tensor:
    """Join tensors along ``dimension``; all dimensions before it are 1, so their bytes are joined too."""
    shape = list(tensors[0].shape)
    shape[dimension] = sum(tensor.shape[dimension] for tensor in tensors)
    return Tensor(tensors[0].dtype, tuple(shape), b"".join(tensor.data for tensor in tensors))


def trainer_layout(bundle: Bundle) -> dict[str, Tensor]:
    """Return a row's media in the layout that a trainer gets.

    ``pixel_values`` ``[patches, 3*P*P]``, ``imgs_sizes`` int32 ``[n, 2]``, ``num_frames`` int32: per video its frames,
    per still image 1.
    """
    pixels, sizes = bundle[BUNDLE_PIXELS], bundle[BUNDLE_SIZES]
    stills = Tensor.of(STAGED_GEOMETRY_DTYPE, [1] * sizes.shape[0])
    return {
        PIXEL_VALUES: Tensor(pixels.dtype, pixels.shape[1:], pixels.data),
        BUNDLE_SIZES: sizes,
        BUNDLE_FRAMES: bundle.get(BUNDLE_FRAMES, stills),
    }


def chain_media(parts: Sequence[Mapping[Any, Any]]) -> dict[str, Tensor]:
    """Return the media of a chain in trainer layout, from what its calls brought; at least one part.

    Raises ``Rejected``: ``INVALID_MEDIA_COLUMNS`` for a part that is not a bundle, then ``MEDIA_CHAIN_INCOMPATIBLE``.
    """
    for index, part in enumerate(parts):
        with refusing(Code.INVALID_MEDIA_COLUMNS, where=f"part {index}"):
            check_bundle(part)
    return trainer_layout(join(parts))


# ── staged columns (section 9) ──────────────────────────────────────────────────────────────────────────────────────


def column_of(name: str) -> str:
    """Return the staged column of one tensor of a bundle."""
    return f"media_{name}"


def absent(name: str, pixel_dtype: str) -> Tensor:
    """Return a column's value for a row without that tensor: zeros, in the column's own dtype.

    Storage keeps one dtype per column over all live rows, and no empty rows.
    """
    dtype = pixel_dtype if name == BUNDLE_PIXELS else STAGED_GEOMETRY_DTYPE
    shape = {BUNDLE_PIXELS: (1, 1, 1), BUNDLE_SIZES: (1, 1, 2), BUNDLE_FRAMES: (1, 1)}[name]
    return Tensor(dtype, shape, bytes(math.prod(shape) * ITEM_SIZES[dtype]))


def staged_media(bundle: Mapping[Any, Any] | None, pixel_dtype: str) -> dict[str, Tensor]:
    """Return the media columns of one staged call except the metadata's digest; ``bundle`` is None without media.

    ``pixel_dtype`` is the partition's. Raises ``ValueError`` for what is not a bundle, or has other pixels.
    """
    if bundle is not None:
        check_bundle(bundle)
        expect(bundle[BUNDLE_PIXELS].dtype == pixel_dtype, BUNDLE_PIXELS, bundle[BUNDLE_PIXELS].dtype, pixel_dtype)
    held = {} if bundle is None else narrowed(bundle)
    columns = {
        "media_present": Tensor.of("bool", [bundle is not None]),
        "media_has_frames": Tensor.of("bool", [BUNDLE_FRAMES in held]),
    }
    for name in BUNDLE_NAMES:
        if name not in held:
            columns[column_of(name)] = absent(name, pixel_dtype)
        elif name == BUNDLE_PIXELS:
            columns[column_of(name)] = held[name]
        else:
            columns[column_of(name)] = Tensor(held[name].dtype, (1, *held[name].shape), held[name].data)
    return columns


def read_media(row: Row, *, has_frames: bool) -> dict[str, Tensor]:
    """Return the valid bundle in the staged columns of a row that carries media. Raises ``ValueError``.

    No digest covers ``media_has_frames``: a video whose flag was lost is recognised by its frames, which stills do
    not have.
    """
    pixels = row.get(column_of(BUNDLE_PIXELS))
    if pixels is None:
        raise ValueError(fault(column_of(BUNDLE_PIXELS), None, "a column"))
    bundle = {BUNDLE_PIXELS: pixels, BUNDLE_SIZES: geometry(row, BUNDLE_SIZES)}
    frames = geometry(row, BUNDLE_FRAMES)
    if has_frames:
        bundle[BUNDLE_FRAMES] = frames
    else:
        expect(frames == Tensor.of(STAGED_GEOMETRY_DTYPE, [0]), BUNDLE_FRAMES, frames.shape, "one zero for stills")
    check_bundle(bundle)
    return bundle


def geometry(row: Row, name: str) -> Tensor:
    """Return the geometry in a staged column of batch size 1."""
    found = column(row, column_of(name), STAGED_GEOMETRY_DTYPE)
    expect(found.shape[:1] == (1,), column_of(name), found.shape, "a batch of one")
    return Tensor(found.dtype, found.shape[1:], found.data)
