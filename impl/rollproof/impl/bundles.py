"""Media bundles on tensors (section 7): checked, joined along a chain, laid out for a trainer, staged and read back.

Pixels are never touched: they are moved, concatenated where a chain has several parts, and hashed elsewhere. Sizes and
frames are few, and are counted as Python integers, which do not wrap (D18).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import torch
from attrs import frozen

from rollproof.impl.columns import column_rows
from rollproof.impl.packed import packed_row
from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    BUNDLE_NAMES,
    BUNDLE_PIXELS,
    BUNDLE_SIZES,
    GEOMETRY_DTYPES,
    PIXEL_DTYPES,
    PIXEL_VALUES,
)
from rollproof.spec.rejections import Code, Rejected

_PIXELS: Final = tuple(getattr(torch, name) for name in PIXEL_DTYPES)
_GEOMETRY: Final = tuple(getattr(torch, name) for name in GEOMETRY_DTYPES)
_INT32: Final = range(1, 2**31)
_SENTINELS: Final = {BUNDLE_PIXELS: (1, 1, 1), BUNDLE_SIZES: (1, 1, 2), BUNDLE_FRAMES: (1, 1)}


@frozen(eq=False)
class Bundle:
    """The valid media of one call or chain."""

    imgs: torch.Tensor
    """``[1, patches, 3 * P * P]``, as it was handed over."""
    sizes: list[list[int]]
    """Height and width of every image or frame."""
    frames: list[int] | None
    """Frames per video; None for stills."""

    @property
    def kind(self) -> tuple[torch.dtype, int]:
        """What the parts of a chain share: pixel dtype and feature width."""
        return self.imgs.dtype, self.imgs.shape[2]


def read_bundle(attachments: Any) -> Bundle:
    """A mapping of named tensors as a bundle. ``ValueError`` for anything that is none."""
    if not isinstance(attachments, Mapping):
        raise ValueError(f"media: a {type(attachments).__name__}, expected named tensors")
    names = set(attachments)
    if not {BUNDLE_PIXELS, BUNDLE_SIZES} <= names <= set(BUNDLE_NAMES):
        raise ValueError(f"media: names {sorted(map(repr, names))}")
    for name, tensor in attachments.items():
        if not isinstance(tensor, torch.Tensor) or tensor.is_nested or tensor.layout is not torch.strided:
            raise ValueError(f"{name}: not a strided tensor")
        if tensor.is_meta:
            raise ValueError(f"{name}: a tensor without data")
    imgs = attachments[BUNDLE_PIXELS]
    if imgs.dtype not in _PIXELS or imgs.dim() != 3 or imgs.shape[0] != 1 or imgs.shape[1] < 1:
        raise ValueError(f"{BUNDLE_PIXELS}: {imgs.dtype} of shape {list(imgs.shape)}")
    side = math.isqrt(imgs.shape[2] // 3)
    if not side or side * side * 3 != imgs.shape[2]:
        raise ValueError(f"{BUNDLE_PIXELS}: {imgs.shape[2]} features are no square patch of three channels")
    sizes = _geometry(attachments, BUNDLE_SIZES, (2,))
    if not sizes:
        raise ValueError(f"{BUNDLE_SIZES}: expected height and width of at least one image")
    if any(height % side or width % side for height, width in sizes):
        raise ValueError(f"{BUNDLE_SIZES}: no multiples of the patch size {side}")
    area = sum(height * width for height, width in sizes)
    if area != imgs.shape[1] * side * side:
        raise ValueError(f"{BUNDLE_SIZES}: {area} pixels in {imgs.shape[1]} patches of {side * side}")
    frames = _geometry(attachments, BUNDLE_FRAMES, ()) if BUNDLE_FRAMES in names else None
    if frames is not None and sum(frames) != len(sizes):
        raise ValueError(f"{BUNDLE_FRAMES}: {sum(frames)} frames, {len(sizes)} sizes")
    return Bundle(imgs, sizes, frames)


def _geometry(attachments: Mapping[str, torch.Tensor], name: str, entry: tuple[int, ...]) -> list[Any]:
    """Sizes or counts ``[n, *entry]`` as Python integers, each a positive int32.

    The shape is checked first: ``[2**31, 0]`` has no elements, and still two thousand million rows.
    """
    tensor = attachments[name]
    if tensor.dtype not in _GEOMETRY or not tensor.dim() or tensor.shape[1:] != entry:
        raise ValueError(f"{name}: {tensor.dtype} of shape {list(tensor.shape)}")
    values: list[Any] = tensor.tolist()
    if not all(value in _INT32 for value in (chain.from_iterable(values) if entry else values)):
        raise ValueError(f"{name}: expected positive int32 values")
    return values


# ── a chain ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def join(parts: Sequence[Bundle]) -> Bundle:
    """The bundle of a chain; one part is not copied. Raises ``Rejected(MEDIA_CHAIN_INCOMPATIBLE)``."""
    if len({part.kind for part in parts}) > 1:
        raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, f"{[part.kind for part in parts]}")
    if len({part.frames is None for part in parts}) > 1:
        raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, "stills and videos")
    if len(parts) == 1:
        return parts[0]
    stills = parts[0].frames is None
    return Bundle(
        torch.cat([part.imgs for part in parts], dim=1),
        [size for part in parts for size in part.sizes],
        None if stills else [count for part in parts for count in part.frames or ()],
    )


def trainer_layout(bundle: Bundle) -> dict[str, Any]:
    """One packed row per published field: pixels ``[patches, 3 * P * P]``, sizes ``[n, 2]`` and frames, int32."""
    frames = [1] * len(bundle.sizes) if bundle.frames is None else bundle.frames
    return {
        PIXEL_VALUES: packed_row(bundle.imgs[0]),
        BUNDLE_SIZES: packed_row(torch.tensor(bundle.sizes, dtype=torch.int32)),
        BUNDLE_FRAMES: packed_row(torch.tensor(frames, dtype=torch.int32)),
    }


def chain_media(parts: Sequence[Any]) -> dict[str, Any]:
    """The media of a chain in trainer layout, from the named tensors of its calls; at least one call.

    Raises ``Rejected``: ``INVALID_MEDIA_COLUMNS`` for a part that is no bundle, then ``MEDIA_CHAIN_INCOMPATIBLE``.
    """
    try:
        bundles = [read_bundle(part) for part in parts]
    except ValueError as error:
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, str(error)) from None
    return trainer_layout(join(bundles))


# ── staged rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_tensors(bundle: Bundle | None, pixel_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Flags and tensor columns of one staged row, batch size 1, in the host's memory.

    What a row does not have is zeros in its column's own dtype: storage keeps one dtype per column, and no empty rows.
    ``ValueError`` for pixels of another dtype than the partition's.
    """
    held: dict[str, torch.Tensor] = {}
    if bundle is not None:
        if bundle.imgs.dtype is not pixel_dtype:
            raise ValueError(f"{BUNDLE_PIXELS}: {bundle.imgs.dtype}, the partition holds {pixel_dtype}")
        held[BUNDLE_PIXELS] = bundle.imgs.detach().cpu()
        held[BUNDLE_SIZES] = torch.tensor([bundle.sizes], dtype=torch.int32)
        if bundle.frames is not None:
            held[BUNDLE_FRAMES] = torch.tensor([bundle.frames], dtype=torch.int32)
    columns = {
        "media_present": torch.tensor([bundle is not None]),
        "media_has_frames": torch.tensor([BUNDLE_FRAMES in held]),
    }
    for name in BUNDLE_NAMES:
        dtype = pixel_dtype if name == BUNDLE_PIXELS else torch.int32
        columns[f"media_{name}"] = held[name] if name in held else torch.zeros(_SENTINELS[name], dtype=dtype)
    return columns


def read_staged(answer: Any, count: int, *, has_frames: bool) -> list[Bundle]:
    """The bundles in a batched read of ``count`` rows that carry media. ``ValueError`` where one has none."""
    columns = {name: _rows(answer, f"media_{name}", count) for name in BUNDLE_NAMES}
    bundles = []
    for imgs, sizes, frames in zip(*columns.values(), strict=True):
        if sizes.dtype is not torch.int32 or frames.dtype is not torch.int32:
            raise ValueError(f"media geometry: {sizes.dtype} and {frames.dtype}, expected int32")
        named = {BUNDLE_PIXELS: imgs[None], BUNDLE_SIZES: sizes}
        if has_frames:
            named[BUNDLE_FRAMES] = frames
        elif frames.shape != (1,) or frames.item():
            raise ValueError(f"media_{BUNDLE_FRAMES}: expected one zero for stills")
        bundles.append(read_bundle(named))
    return bundles


def _rows(answer: Any, name: str, count: int) -> list[torch.Tensor]:
    leaf = answer.get(name, None)
    rows = [] if leaf is None else column_rows(leaf)
    if len(rows) != count:
        raise ValueError(f"{name}: {len(rows)} rows of {count}")
    return rows
