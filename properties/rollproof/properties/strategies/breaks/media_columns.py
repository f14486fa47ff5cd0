"""Media columns of one staged call that are not a bundle, for ``invalid_media_columns``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rollproof.properties.strategies.rollouts.history import Call
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.bundles import absent
from rollproof.spec.constants import BUNDLE_FRAMES, BUNDLE_PIXELS, BUNDLE_SIZES, MEDIA_TENSOR_COLUMNS
from rollproof.spec.tensor import ITEM_SIZES, Tensor

ColumnEdit = Callable[[Bytes, Call], Mapping[str, Tensor | None]]
"""Columns to overwrite, or to drop, in the staged row of a call with media."""


def pixels_of(call: Call) -> Tensor:
    """Return the staged pixels of a call with media."""
    assert call.media is not None
    return call.media["media_imgs"]


def zeros(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of zeros."""
    count = 1
    for dimension in shape:
        count *= dimension
    return Tensor(dtype, shape, bytes(count * ITEM_SIZES[dtype]))


def dropped_column(decide: Bytes, _: Call) -> Mapping[str, Tensor | None]:
    """Drop a column."""
    return {decide.choose(MEDIA_TENSOR_COLUMNS): None}


def odd_pixels(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Return pixels of another dtype, rank or feature width, no pixels, or one patch more."""
    dtype, (_, patches, width) = pixels_of(call).dtype, pixels_of(call).shape
    options = (
        zeros("uint8", (1, patches, width)),
        zeros("float64", (1, patches, width)),
        zeros(dtype, (1, patches * width)),
        zeros(dtype, (1,)),
        zeros(dtype, (1, patches, width, 1)),
        zeros(dtype, (1, 0, width)),
        zeros(dtype, (1, patches + 1, width)),
        zeros(dtype, (1, patches, 0)),
        zeros(dtype, (1, patches, 4)),
        zeros(dtype, (1, patches, 6)),
        absent(BUNDLE_PIXELS, dtype),
    )
    return {"media_imgs": decide.choose(options)}


def odd_sizes(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Return sizes of another dtype or rank, none, not positive, or that do not add up to the pixels."""
    assert call.media is not None
    sizes = call.media["media_imgs_sizes"]
    values, count = list(sizes.values()), sizes.shape[1]
    options = (
        Tensor.of("int64", values, sizes.shape),
        Tensor.of("float32", values, sizes.shape),
        Tensor.of("int32", values, (1, 2 * count)),
        Tensor.of("int32", [], (1, 0, 2)),
        Tensor.of("int32", [0, *values[1:]], sizes.shape),
        Tensor.of("int32", [-values[0], -values[1], *values[2:]], sizes.shape),
        Tensor.of("int32", [2**31 - 1, *values[1:]], sizes.shape),
        Tensor.of("int32", [*values, *values[:2]], (1, count + 1, 2)),
        absent(BUNDLE_SIZES, "float32"),
    )
    return {"media_imgs_sizes": decide.choose(options)}


def wrapping_sizes(_: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Return seventeen sizes that add up to one patch in 64 bits, and actually to 2**64 + 1 (decision D18)."""
    sizes = [2**30] * 32 + [1, 1]
    return {
        "media_imgs": zeros(pixels_of(call).dtype, (1, 1, 3)),
        "media_imgs_sizes": Tensor.of("int32", sizes, (1, 17, 2)),
        "media_has_frames": Tensor.of("bool", [False]),
        "media_num_frames": absent(BUNDLE_FRAMES, "float32"),
    }


def indivisible(_: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Return sizes whose area is right but which do not consist of whole patches."""
    return {
        "media_imgs": zeros(pixels_of(call).dtype, (1, 1, 12)),
        "media_imgs_sizes": Tensor.of("int32", [1, 4], (1, 1, 2)),
        "media_has_frames": Tensor.of("bool", [False]),
        "media_num_frames": absent(BUNDLE_FRAMES, "float32"),
    }


def odd_frames(decide: Bytes, call: Call) -> Mapping[str, Tensor | None]:
    """Return frame counts of another dtype or rank, not positive, that do not add up, or where there should be none."""
    assert call.media is not None
    counts = [int(count) for count in call.media["media_num_frames"].values()]
    options = [
        Tensor.of("int64", counts, (1, len(counts))),
        Tensor.of("int32", counts[:1], (1,)),
        Tensor.of("int32", [count + 1 for count in counts], (1, len(counts))),
        Tensor.of("int32", [*counts, 1], (1, len(counts) + 1)),
        Tensor.of("int32", [*counts, 0], (1, len(counts) + 1)),
        Tensor.of("int32", [], (1, 0)),
    ]
    return {"media_num_frames": decide.choose(options)}


COLUMN_EDITS: Final[tuple[ColumnEdit, ...]] = (
    dropped_column, odd_pixels, odd_sizes, odd_frames, wrapping_sizes, indivisible,
)  # fmt: skip
