"""Placeholders of media in the implementation: read and compared as the spec does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from cases import HYPOTHESIS, media_item
from hypothesis import given
from hypothesis import strategies as st

from rollproof.impl.bundles import read_bundle
from rollproof.impl.patches import image_bundle, video_bundle
from rollproof.impl.spans import check_items, merge_factor, read_items
from rollproof.properties.strategies.breaks.media import SPAN_EDITS, illustrated_chain, spans_of
from rollproof.properties.strategies.rollouts.media import illustrated
from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.spans import check_embeddings, check_tokens, parse_items, placeholder_digest

IMAGES = [torch.arange(3 * 2 * 4.0).reshape(3, 2, 4), torch.arange(3 * 4 * 2.0).reshape(3, 4, 2) - 5]
STILLS = image_bundle(IMAGES, 2)
CLIPS = video_bundle([torch.ones(2, 3, 2, 2), torch.zeros(1, 3, 2, 4)], 2)


@HYPOTHESIS
@given(st.data())
def test_spans_are_read_as_the_spec_reads_them(data):
    spans = spans_of(illustrated_chain(data.draw(illustrated()))[-1])
    edit, seed = data.draw(st.sampled_from([*SPAN_EDITS, None])), data.draw(st.binary(min_size=16, max_size=16))
    if edit is not None:
        edit(Bytes(seed), spans)

    def outcome(read):
        try:
            return len(read(spans))
        except ValueError:
            return None

    assert outcome(read_items) == outcome(parse_items)


ITEM = {
    "modality": "image",
    "placeholder_offset": 1,
    "placeholder_length": 4,
    "placeholder_digest": placeholder_digest([7, 18, 18, 8]),
    "token_id": 18,
    "embedding_spans": [[2, 2]],
    "imgs_sizes": [[1, 2]],
}


@pytest.mark.parametrize(
    ("spans", "right"),
    [
        ([ITEM], True),
        ([], True),
        (None, False),
        ([None], False),
        ([{**ITEM, "more": 1}], False),
        ([{**ITEM, "modality": ["image"]}], False),
        ([{**ITEM, "placeholder_offset": True}], False),
        ([{**ITEM, "placeholder_length": 0}], False),
        ([{**ITEM, "placeholder_digest": "A" * 64}], False),
        ([{**ITEM, "token_id": 2**63}], False),
        ([{**ITEM, "embedding_spans": []}], False),
        ([{**ITEM, "embedding_spans": [[2, 0]]}], False),
        ([{**ITEM, "embedding_spans": [[2, 1], [3, 1]]}], False),
        ([{**ITEM, "embedding_spans": [[1, 1], [3, 1]]}], True),
        ([{**ITEM, "embedding_spans": [[0, 1]]}], False),
        ([{**ITEM, "embedding_spans": [[4, 2]]}], False),
        ([{**ITEM, "embedding_spans": [[2, 2, 2]]}], False),
        ([{**ITEM, "imgs_sizes": [[0, 1]]}], False),
        ([{**ITEM, "imgs_sizes": [[1, 2**31]]}], False),
        ([{**ITEM, "imgs_sizes": [[1, 2], [1, 2]]}], False),
        ([{**ITEM, "imgs_sizes": [[1, 2], [1, 2]], "modality": "video"}], True),
        ([ITEM, {**ITEM, "placeholder_offset": 5, "embedding_spans": [[5, 1]]}], True),
        ([ITEM, {**ITEM, "placeholder_offset": 4, "embedding_spans": [[5, 1]]}], False),
        ([ITEM, {**ITEM, "placeholder_offset": 5, "embedding_spans": [[5, 1]], "modality": "video"}], False),
    ],
)
def test_items_are_judged_alike(spans, right):
    for read in (read_items, parse_items):
        if right:
            assert len(read(spans)) == len(spans)
        else:
            with pytest.raises(ValueError, match=r".+"):
                read(spans)


@pytest.mark.parametrize(
    ("carry", "start", "bundle"),
    [
        ([7, 18, 18, 8], 2, STILLS),
        ([5, 7, 18, 8, 8], 0, STILLS),
        ([5, 7, 18, 18, 8, 18], 0, STILLS),
        ([5, 7, 18, 18, 8], 0, None),
        ([5, 7, 18, 18, 8], 0, STILLS),
        ([5, 7, 18, 18, 8], 0, CLIPS),
    ],
)
def test_items_that_disagree_with_their_call(carry, start, bundle):
    read = None if bundle is None else read_bundle(bundle)
    with pytest.raises(ValueError, match=r".+"):
        check_items(read_items([ITEM]), np.array(carry), start, read)


def test_embeddings_are_compared_even_where_the_hash_agrees():
    item = {**ITEM, "placeholder_digest": placeholder_digest([7, 18, 19, 8])}
    with pytest.raises(ValueError, match="at every position"):
        check_items(read_items([item]), np.array([5, 7, 18, 19, 8]), 0, None)


def test_videos_are_compared_frame_by_frame():
    def video(at, *sizes):
        return {**ITEM, "modality": "video", "imgs_sizes": [list(size) for size in sizes], "placeholder_offset": at,
                "embedding_spans": [[at + 1, 2]]}  # fmt: skip

    carry = np.array([5, 7, 18, 18, 8, 7, 18, 18, 8])
    check_items(read_items([video(1, (2, 2), (2, 2)), video(5, (2, 4))]), carry, 0, read_bundle(CLIPS))
    with pytest.raises(ValueError, match="one size per frame"):
        check_items(read_items([video(1, (2, 2)), video(5, (2, 2), (2, 4))]), carry, 0, read_bundle(CLIPS))


def test_an_image_has_one_size_also_where_its_word_came_as_text() -> None:
    value = json.loads(json.dumps([{**media_item(1, [18], [[1, 1]]), "imgs_sizes": [[1, 2], [1, 2]]}]))
    for read in (read_items, parse_items):
        with pytest.raises(ValueError, match="imgs_sizes"):
            read(value)


def readers(runs: list[list[int]]) -> list[Any]:
    value = [media_item(2, [7, 18, 18, 18, 18, 8], runs)]
    return [lambda: read_items(value), lambda: parse_items(value)]


@pytest.mark.parametrize("runs", [[[3, 4]], [[3, 1], [5, 2]], [[2, 1], [4, 1], [6, 2]], [[2, 6]], [[3, 2], [6, 1]]])
def test_embedding_runs_ascend_and_do_not_touch(runs: list[list[int]]) -> None:
    for read in readers(runs):
        assert len(read()) == 1


@pytest.mark.parametrize(
    "runs",
    [
        *([[3, 1], [4, 1]], [[3, 2], [5, 1]], [[3, 2], [4, 1]], [[5, 1], [3, 1]], [[3, 1], [3, 1]]),
        *([[1, 1]], [[7, 2]], [[8, 1]], [[3, 0]], [[3, 1], [7, 2]], [[2, 7]]),
    ],
)
def test_embedding_runs_that_are_out_of_order_are_refused(runs: list[list[int]]) -> None:
    for read in readers(runs):
        with pytest.raises(ValueError, match="embedding_spans"):
            read()


@pytest.mark.parametrize(
    "carry, start, fits",
    [
        ([5, 7, 18, 18, 8, 5], 0, True),
        ([5, 7, 18, 18, 8, 5, 18, 18], 0, True),
        ([18, 5, 7, 18, 18, 8, 5, 18], -1, True),
        ([7, 18, 18, 8], 1, True),
        ([5, 7, 18, 18, 8, 18], 0, False),
        ([18, 7, 18, 18, 8, 5], 0, False),
        ([18, 7, 18, 18, 8], 0, False),
        ([7, 18, 18, 8, 18], 1, False),
    ],
)
def test_embedding_tokens_are_looked_for_inside_and_right_beside(carry: list[int], start: int, fits: bool) -> None:
    value = [media_item(1, [7, 18, 18, 8], [[2, 2]])]
    with pytest.raises(ValueError, match="media_present" if fits else "over every position"):
        check_items(read_items(value), np.array(carry), start, None)
    if fits:
        check_tokens(parse_items(value), carry, start)
    else:
        with pytest.raises(ValueError, match="every position"):
            check_tokens(parse_items(value), carry, start)


@pytest.mark.parametrize("modality", ["image", "video"])
@pytest.mark.parametrize("factor", [None, 1, 2, 3, 4])
def test_merge_factors_are_the_specs(modality, factor):
    for embeddings in range(1, 11):
        value = {**ITEM, "modality": modality, "placeholder_length": 12, "imgs_sizes": [[4, 8]]}
        value["embedding_spans"] = [[2, embeddings]]

        def attempt(check, item, patch):
            try:
                return check(item, patch, factor)
            except ValueError:
                return "refused"

        found = attempt(merge_factor, read_items([value])[0], 4)
        assert found == attempt(check_embeddings, parse_items([value])[0], 2)
