"""Tensors are taken where they live: what is copied is counted, and nothing moves between devices unasked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rollproof.impl.assembly import lay_out
from rollproof.impl.bundles import chain_media
from rollproof.impl.media import group_fields, wire_columns
from rollproof.impl.outcomes import FinalizedRow
from rollproof.impl.patches import image_bundle
from rollproof.impl.plan import RouteSpan, use_of
from rollproof.impl.retained import default_scheme, media_digest
from rollproof.spec.constants import MEDIA_BLAKE3, MEDIA_SHA256

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NEEDS_CUDA])]


class Traffic(TorchDispatchMode):
    """Bytes of new tensors that operators wrote, and bytes of those that live elsewhere than what they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = self.moved = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if type(one) is torch.Tensor]
        places = {one.untyped_storage().data_ptr() for one in given}
        for one in tree_leaves(result):
            if given and type(one) is torch.Tensor and one.untyped_storage().data_ptr() not in places:
                self.copied += one.nbytes
                self.moved += one.nbytes * (one.device not in {tensor.device for tensor in given})
        return result


def bundle(device: str) -> dict[str, torch.Tensor]:
    return image_bundle([torch.rand(3, 128, 128, device=device)], 16)


PIXELS = 3 * 128 * 128 * 4
"""Bytes of an image."""
SMALL = 1024
"""Sizes, counts and offsets stay below."""


def traffic(call: Any) -> tuple[Any, int, int]:
    """Return what ``call`` returns, and how many images it copied and moved."""
    with Traffic() as found:
        result = call()
    assert found.copied % PIXELS < SMALL
    assert found.moved < SMALL
    return result, found.copied // PIXELS, found.moved // PIXELS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("calls, copied", [(1, 0), (3, 3)])
def test_the_pixels_of_a_chain_are_joined_once(calls: int, copied: int, device: str) -> None:
    parts = [bundle(device) for _ in range(calls)]
    fields, copies, _ = traffic(lambda: chain_media(parts))
    assert copies == copied
    assert fields["pixel_values"].tensors[0].device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_the_pixels_of_a_group_are_published_with_one_copy(device: str) -> None:
    media = [chain_media([bundle(device)]) for _ in range(2)]
    rollouts = [FinalizedRow(f"g{index}", True, None, 0.0, media=fields) for index, fields in enumerate(media)]
    rollouts.append(FinalizedRow("g2", False, "missing_receipt", 0.0))
    columns, copies, _ = traffic(lambda: wire_columns(group_fields(rollouts)))
    assert copies == 2
    assert columns["pixel_values"].values().device.type == device


@pytest.mark.parametrize(
    "scheme, device",
    [
        (MEDIA_SHA256, "cpu"),
        (MEDIA_BLAKE3, "cpu"),
        pytest.param(MEDIA_BLAKE3, "cuda", marks=[pytest.mark.cuda, NEEDS_CUDA]),
    ],
)
def test_pixels_are_hashed_where_they_lie(scheme: str, device: str) -> None:
    tensors = bundle(device)
    digest, copies, _ = traffic(lambda: media_digest(tensors, scheme))
    assert copies == 0
    assert digest == media_digest({name: tensor.cpu() for name, tensor in tensors.items()}, scheme)


@pytest.mark.parametrize("device", DEVICES)
def test_the_scheme_follows_the_tensors(device: str) -> None:
    assert default_scheme(bundle(device)) == (MEDIA_SHA256 if device == "cpu" else MEDIA_BLAKE3)


@pytest.mark.parametrize("device", DEVICES)
def test_routes_are_laid_out_where_they_lie(device: str) -> None:
    """Verified fragments: their extras are hashed with SHA-256, for which the host has to see them."""
    ids = torch.arange(256 * 4 * 2, dtype=torch.int16).reshape(256, 4, 2).to(device)
    use = use_of(RouteSpan("r/a", 0, len(ids), len(ids), 1, "0" * 64))
    row = torch.empty((2 * len(ids), 4, 2), dtype=torch.int16, device=device)
    with Traffic() as found:
        lay_out([(use, ids), (use, ids)], row)
    assert found.copied == 0 if device == "cpu" else found.copied < SMALL
    assert torch.equal(row, torch.cat([ids, ids]))
