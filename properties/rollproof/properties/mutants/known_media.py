"""Mutants of media that are faults met in public, beside the one per invariant (section 7)."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant, patches
from rollproof.spec.constants import BUNDLE_PIXELS, BUNDLE_SIZES, MEDIA_TENSOR_COLUMNS
from rollproof.spec.plane import Get
from rollproof.spec.tensor import Tensor

NAN: Final = b"\x01\x00\xc0\x7f"
"""A float32 NaN with a payload."""


def wrapping(check_bundle: Any) -> Any:
    """Add areas up in 64 bits; a bundle that fails for another reason still fails."""

    def wrong(bundle: Any) -> None:
        try:
            check_bundle(bundle)
        except ValueError as error:
            sizes = bundle.get(BUNDLE_SIZES)
            values = sizes.values() if sizes is not None and sizes.dtype in ("int32", "int64") else ()
            area = sum(int(height) * int(width) for height, width in zip(values[0::2], values[1::2], strict=False))
            pixels = bundle.get(BUNDLE_PIXELS)
            fits = pixels is not None and len(pixels.shape) == 3 and 3 * area % 2**64 == pixels.count
            if not fits or area < 2**64:
                raise ValueError(str(error)) from None

    return wrong


def for_every_call(rollout_media: Any) -> Any:
    """Read the media columns of all calls of the chain, to see which have any."""

    def wrong(config: Any, row: Any, chain: Any, plane: Any) -> Any:
        media = rollout_media(config, row, chain, plane)
        if media is None:
            keys = tuple(staged.key for staged in chain)
            plane.effects.append(Get(config.staging_partition, keys, MEDIA_TENSOR_COLUMNS))
        return media

    return wrong


def shifted_rows(group_fields: Any) -> Any:
    """Leave out rows without media, so that every later row has the media of another one."""

    def wrong(rollouts: Any) -> Any:
        fields = group_fields(rollouts)
        kept = {name: [row for row in rows if row is not None] for name, rows in fields.items()}
        return {name: (*rows, *[None] * (len(rollouts) - len(rows))) for name, rows in kept.items()}

    return wrong


def blind_to_generation(check_placeholders: Any) -> Any:
    """Do not compare generated tokens with the ids that represent embeddings."""

    def wrong(row: Any, chain: Any, bundles: Any) -> None:
        hidden = [
            evolve(staged, call=evolve(staged.call, token_ids_delta=staged.call.token_ids_delta[: link.carry_len]))
            for staged, link in zip(chain, row.link_spans, strict=True)
        ]
        check_placeholders(row, hidden, bundles)

    return wrong


def runs_alone(check_tokens: Any) -> Any:
    """Compare only the hashed placeholder; a run may continue beside it."""

    def wrong(items: Any, carry: Any, start: int) -> None:
        try:
            check_tokens(items, carry, start)
        except ValueError as error:
            if "every position of" not in str(error):
                raise

    return wrong


def through_float16(tensor_bytes: Any) -> Any:
    """Convert bfloat16 to float16 first: values that are too large become infinite."""

    def narrow(number: int) -> int:
        return number if number & 0x7FFF < 0x4780 else 0x7C00

    def wrong(tensor: Tensor) -> bytes:
        if tensor.dtype == "bfloat16":
            numbers = struct.unpack(f"<{tensor.count}H", tensor.data)
            data = struct.pack(f"<{tensor.count}H", *map(narrow, numbers))
            tensor = Tensor(tensor.dtype, tensor.shape, data)
        return bytes(tensor_bytes(tensor))

    return wrong


def compared_as_numbers(media_digest: Any) -> Any:
    """Let a NaN be unequal to everything, itself included."""
    calls = count()

    def wrong(tensors: Any, *scheme: str) -> str:
        digest = str(media_digest(tensors, *scheme))
        floats = (value for value in (tensors or {}).values() if isinstance(value, Tensor) and value.dtype == "float32")
        return f"{digest}{next(calls)}" if any(NAN in value.data for value in floats) else digest

    return wrong


def pixels_on_prefix(staged_media: Any) -> Any:
    """Let the prefix row claim that it carries media."""

    def wrong(bundle: Any, pixel_dtype: str) -> Any:
        return {**staged_media(bundle, pixel_dtype), "media_present": Tensor.of("bool", [True])}

    return wrong


MUTANTS: Final = (
    Mutant(
        "media-wrapping-sums",
        "MEDIA-1",
        "contract decision D18",
        "Sixteen images of 2**30 x 2**30 pixels and one of 1 x 1 pass as one patch.",
        patches(bundles__check_bundle=wrapping),
    ),
    Mutant(
        "media-read-of-text",
        "MEDIA-5",
        "contract section 7",
        "Text rollouts read media columns, to see which call has any.",
        patches(media__rollout_media=for_every_call),
    ),
    Mutant(
        "media-expanded-twice",
        "MEDIA-7",
        "PrimeIntellect-ai/prime-rl 2786",
        "A run of placeholders may be longer than its span: 4 became 16 for one image.",
        patches(media__check_tokens=runs_alone),
    ),
    Mutant(
        "media-sampled-placeholder",
        "MEDIA-7",
        "huggingface/trl 5927",
        "The policy may sample the token that stands for embeddings.",
        patches(media__check_placeholders=blind_to_generation),
    ),
    Mutant(
        "media-rows-left-out",
        "MEDIA-8",
        "contract section 8",
        "Fields are built from the rows that have media: later rows train on the images of another one.",
        patches(media__group_fields=shifted_rows),
    ),
    Mutant(
        "retained-through-float16",
        "RETAINED-1",
        "vllm-project/vllm 23623",
        "bfloat16 is hashed through float16: 70000 and 80000 are both infinite.",
        patches(retained__tensor_bytes=through_float16),
    ),
    Mutant(
        "retained-nan-changes",
        "RETAINED-2",
        "contract decision D11",
        "Tensors are compared as torch.equal does: an image with a NaN pixel is never restored.",
        patches(judge__oracle__media_digest=compared_as_numbers),
    ),
    Mutant(
        "retained-pixels-on-prefix",
        "RETAINED-6",
        "contract section 7",
        "Prefix rows claim to carry media.",
        patches(judge__oracle__staged_media=pixels_on_prefix),
    ),
)
