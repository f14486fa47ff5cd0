"""Bundles of media as tensors: staged, read and joined as the spec does, and not copied where one is enough."""

from __future__ import annotations

import pytest
import torch
from cases import HYPOTHESIS
from hypothesis import given
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.bundles import chain_media, join, read_bundle, read_staged, staged_tensors, trainer_layout
from rollproof.impl.patches import image_bundle, video_bundle
from rollproof.properties.adapters.tensors import from_torch, to_torch
from rollproof.properties.strategies.rollouts.media import bundles
from rollproof.spec.rejections import Rejected

IMAGES = [torch.arange(3 * 2 * 4.0).reshape(3, 2, 4), torch.arange(3 * 4 * 2.0).reshape(3, 4, 2) - 5]
STILLS = image_bundle(IMAGES, 2)
CLIPS = video_bundle([torch.ones(2, 3, 2, 2), torch.zeros(1, 3, 2, 4)], 2)


@HYPOTHESIS
@given(bundles())
def test_staged_columns_are_the_specs(bundle):
    read = read_bundle({name: to_torch(value) for name, value in bundle.items()})
    columns = staged_tensors(read, getattr(torch, bundle["imgs"].dtype))
    (back,) = read_staged(TensorDict(columns, batch_size=[1]), ["r/c0"], has_frames="num_frames" in bundle)
    assert (back.sizes, back.frames) == (read.sizes, read.frames)
    assert from_torch(back.imgs) == bundle["imgs"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        STILLS["imgs"],
        {},
        {"imgs": STILLS["imgs"]},
        {**STILLS, 1: STILLS["imgs"]},
        {**STILLS, "imgs": None},
        {**STILLS, "imgs_sizes": [[2, 4], [4, 2]]},
        {**STILLS, "imgs": STILLS["imgs"].to("meta")},
        {**STILLS, "imgs": STILLS["imgs"].to_sparse()},
        {**STILLS, "imgs": torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(2, 2)], layout=torch.jagged)},
        {**STILLS, "imgs": STILLS["imgs"].to(torch.float64)},
        {**STILLS, "imgs_sizes": STILLS["imgs_sizes"][0]},
        {**STILLS, "imgs_sizes": STILLS["imgs_sizes"][:0]},
        {**STILLS, "imgs_sizes": torch.zeros(2, 0, dtype=torch.int32)},
        {**STILLS, "num_frames": torch.tensor([[2]])},
    ],
)
def test_what_is_no_bundle(value):
    with pytest.raises(ValueError, match=r"bundle|imgs|num_frames"):
        read_bundle(value)


def test_one_part_is_not_copied():
    bundle = read_bundle(STILLS)
    assert join([bundle]).imgs.data_ptr() == STILLS["imgs"].data_ptr()
    layout = trainer_layout(bundle)
    assert layout["pixel_values"].tensors[0].data_ptr() == STILLS["imgs"].data_ptr()
    assert layout["num_frames"].as_tensor().tolist() == [1, 1]
    assert {packed.as_tensor().dtype for name, packed in layout.items() if name != "pixel_values"} == {torch.int32}


def test_chains_concatenate_in_order():
    fields = chain_media([STILLS, STILLS])
    assert torch.equal(fields["pixel_values"].as_tensor(), torch.cat([STILLS["imgs"][0]] * 2))
    with pytest.raises(Rejected, match="media_chain_incompatible"):
        chain_media([STILLS, CLIPS])
    with pytest.raises(Rejected, match="invalid_media_columns"):
        chain_media([STILLS, {}])


@pytest.mark.parametrize(
    "answered",
    [
        {},
        {"media_imgs": torch.zeros(2, 4, 12)},
        staged_tensors(None, torch.float32) | {"media_imgs_sizes": torch.zeros(1, 1, 2)},
        staged_tensors(read_bundle(STILLS), torch.float32) | {"media_num_frames": torch.ones(1, 1, dtype=torch.int32)},
        staged_tensors(read_bundle(STILLS), torch.float32) | {"media_imgs": NonTensorStack("x")},
    ],
)
def test_answers_without_bundles(answered):
    with pytest.raises(ValueError, match=r"media|imgs"):
        read_staged(answered, ["r/c0"], has_frames=False)
