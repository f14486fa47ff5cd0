"""Media bundles on tensors (section 7): checked, joined along a chain, laid out for a trainer, staged and read back.

Pixels are never touched: they are moved, concatenated where a chain has several parts, and hashed elsewhere. Sizes and
frames are few, and are counted as Python integers, which do not wrap (D18).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import torch
from attrs import frozen

from rollproof.impl.checks import fault, first_of
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
    def kind(self) -> str:
        """Return what the parts of a chain share, in words: pixel dtype and feature width."""
        return f"{str(self.imgs.dtype).removeprefix('torch.')}, {self.imgs.shape[2]} features"

    @property
    def modality(self) -> str:
        """Return whether these are images or videos."""
        return "images" if self.frames is None else "videos"

    @property
    def patch_area(self) -> int:
        """Return P * P, the pixels of one patch."""
        return self.imgs.shape[2] // 3


def read_bundle(attachments: Any) -> Bundle:
    """Read a mapping of named tensors as a bundle. ``ValueError`` for anything that is not one."""
    if not isinstance(attachments, Mapping):
        raise ValueError(fault("bundle", attachments, "named tensors"))
    for name in attachments:
        if name not in BUNDLE_NAMES:
            raise ValueError(fault("bundle", name, f"only {', '.join(BUNDLE_NAMES)}"))
    for name in (BUNDLE_PIXELS, BUNDLE_SIZES):
        if name not in attachments:
            raise ValueError(fault(name, None, "a tensor"))
    for name, tensor in attachments.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(fault(name, tensor, "a tensor"))
        if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta:
            raise ValueError(f"{name}: got {described(tensor)}, expected a strided tensor with data")
    imgs = attachments[BUNDLE_PIXELS]
    if imgs.dtype not in _PIXELS or imgs.dim() != 3 or imgs.shape[0] != 1 or imgs.shape[1] < 1:
        dtypes = " or ".join(PIXEL_DTYPES)
        raise ValueError(f"{BUNDLE_PIXELS}: got {described(imgs)}, expected {dtypes} of shape [1, patches, features]")
    side = math.isqrt(imgs.shape[2] // 3)
    if not side or side * side * 3 != imgs.shape[2]:
        raise ValueError(fault(f"{BUNDLE_PIXELS}: features", imgs.shape[2], "3 * P**2 for a patch size P"))
    sizes = _geometry(attachments, BUNDLE_SIZES, (2,))
    if not sizes:
        raise ValueError(fault(BUNDLE_SIZES, sizes, "height and width of at least one image"))
    for size in sizes:
        if size[0] % side or size[1] % side:
            raise ValueError(fault(BUNDLE_SIZES, size, f"multiples of the patch size {side}"))
    patches = sum(height * width for height, width in sizes) // side**2
    if patches != imgs.shape[1]:
        raise ValueError(fault(BUNDLE_PIXELS, imgs.shape[1], f"the {patches} patches that {BUNDLE_SIZES} adds up to"))
    frames = _geometry(attachments, BUNDLE_FRAMES, ()) if BUNDLE_FRAMES in attachments else None
    if frames is not None and sum(frames) != len(sizes):
        raise ValueError(fault(BUNDLE_FRAMES, sum(frames), f"a sum of {len(sizes)}, one size per frame"))
    return Bundle(imgs, sizes, frames)


def described(tensor: torch.Tensor) -> str:
    """Return what an error says of a tensor: its dtype and shape, and its layout where that is not the usual one."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        return f"a nested {dtype} tensor"
    kind = "a meta tensor, " if tensor.is_meta else "" if tensor.layout is torch.strided else f"{tensor.layout}, "
    return f"{kind}{dtype} of shape {list(tensor.shape)}"


def _geometry(attachments: Mapping[str, torch.Tensor], name: str, entry: tuple[int, ...]) -> list[Any]:
    """Return sizes or counts ``[n, *entry]`` as Python integers, each a positive int32.

    The shape is checked first: ``[2**31, 0]`` has no elements, but two thousand million rows.
    """
    tensor = attachments[name]
    if tensor.dtype not in _GEOMETRY or not tensor.dim() or tensor.shape[1:] != entry:
        shape = f"[n, {entry[0]}]" if entry else "[n]"
        raise ValueError(f"{name}: got {described(tensor)}, expected {' or '.join(GEOMETRY_DTYPES)} of shape {shape}")
    values: list[Any] = tensor.tolist()
    for value in chain.from_iterable(values) if entry else values:
        if value not in _INT32:
            raise ValueError(fault(name, value, "a positive int32"))
    return values


# ── a chain ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def join(
    parts: Sequence[Bundle],
    names: Sequence[str] = (),
    *,
    copy: Callable[[list[torch.Tensor]], torch.Tensor] | None = None,
) -> Bundle:
    """Return the bundle of a chain; one part is not copied, unless ``copy`` says where patches ``[p, features]`` go.

    Raises ``Rejected(MEDIA_CHAIN_INCOMPATIBLE)``; ``names`` are how it names the parts.
    """
    for kinds in ([part.kind for part in parts], [part.modality for part in parts]):
        row = next((row for row, kind in enumerate(kinds) if kind != kinds[0]), None)
        if row is not None:
            first, other = (names[0], names[row]) if names else ("part 0", f"part {row}")
            raise Rejected(
                Code.MEDIA_CHAIN_INCOMPATIBLE, f"{other}: {fault('media', kinds[row], f'{kinds[0]}, as in {first}')}"
            )
    if len(parts) == 1 and copy is None:
        return parts[0]
    stills = parts[0].frames is None
    return Bundle(
        (copy or torch.cat)([part.imgs[0] for part in parts])[None],
        [size for part in parts for size in part.sizes],
        None if stills else [count for part in parts for count in part.frames or ()],
    )


def trainer_layout(bundle: Bundle) -> dict[str, Any]:
    """Return a packed row per published field: pixels ``[patches, 3 * P * P]``, int32 sizes ``[n, 2]`` and frames."""
    frames = [1] * len(bundle.sizes) if bundle.frames is None else bundle.frames
    return {
        PIXEL_VALUES: packed_row(bundle.imgs[0]),
        BUNDLE_SIZES: packed_row(torch.tensor(bundle.sizes, dtype=torch.int32)),
        BUNDLE_FRAMES: packed_row(torch.tensor(frames, dtype=torch.int32)),
    }


def chain_media(parts: Sequence[Any]) -> dict[str, Any]:
    """Return the media of a chain in trainer layout, from the named tensors of its calls; at least one call.

    Raises ``Rejected``: ``INVALID_MEDIA_COLUMNS`` for a part that is not a bundle, then ``MEDIA_CHAIN_INCOMPATIBLE``.
    """
    bundles = []
    for index, part in enumerate(parts):
        try:
            bundles.append(read_bundle(part))
        except ValueError as error:
            raise Rejected(Code.INVALID_MEDIA_COLUMNS, f"part {index}: {error}") from None
    return trainer_layout(join(bundles))


# ── staged rows ─────────────────────────────────────────────────────────────────────────────────────────────────────


def staged_tensors(bundle: Bundle | None, pixel_dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return flags and tensor columns of one staged row, batch size 1, in the host's memory.

    A tensor that a row does not have is zeros in its column's own dtype: storage keeps one dtype per column, and no
    empty rows. ``ValueError`` for pixels of another dtype than the partition's.
    """
    held: dict[str, torch.Tensor] = {}
    if bundle is not None:
        if bundle.imgs.dtype is not pixel_dtype:
            found, expected = (str(dtype).removeprefix("torch.") for dtype in (bundle.imgs.dtype, pixel_dtype))
            raise ValueError(fault(BUNDLE_PIXELS, found, f"{expected}, the partition's dtype"))
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


def read_staged(answer: Any, keys: Sequence[str], *, has_frames: bool) -> list[Bundle]:
    """Return the bundles in a batched read of these rows, which carry media. ``ValueError`` names the row without.

    Pixels stay in the memory of the answer, which the data plane may use again.
    """
    columns = {name: _rows(answer, f"media_{name}", keys) for name in BUNDLE_NAMES}
    bundles = []
    for key, imgs, sizes, frames in zip(keys, *columns.values(), strict=True):
        try:
            bundles.append(read_bundle(_named(imgs, sizes, frames, has_frames)))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return bundles


def _named(imgs: torch.Tensor, sizes: torch.Tensor, frames: torch.Tensor, has_frames: bool) -> dict[str, torch.Tensor]:
    """Return the tensors of one row's bundle by name."""
    for name, tensor in ((BUNDLE_SIZES, sizes), (BUNDLE_FRAMES, frames)):
        if tensor.dtype is not torch.int32:
            raise ValueError(f"media_{name}: got {described(tensor)}, expected int32")
    named = {BUNDLE_PIXELS: imgs[None], BUNDLE_SIZES: sizes}
    if has_frames:
        return {**named, BUNDLE_FRAMES: frames}
    if frames.shape != (1,) or frames.item():
        raise ValueError(f"media_{BUNDLE_FRAMES}: got {described(frames)}, expected one zero for stills")
    return named


def _rows(answer: Any, name: str, keys: Sequence[str]) -> list[torch.Tensor]:
    leaf = answer.get(name, None)
    try:
        rows = [] if leaf is None else column_rows(leaf, name)
    except ValueError as error:
        raise ValueError(f"{first_of(keys)}: {error}") from None
    if len(rows) != len(keys):
        raise ValueError(f"{first_of(keys)}: {fault(name, len(rows), f'{len(keys)} rows')}")
    return rows
