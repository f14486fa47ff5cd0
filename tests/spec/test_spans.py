"""Placeholders of media in token ids: how items are read, and checked against tokens, bundles and extras."""

from __future__ import annotations

import hashlib
import json

import pytest
from attrs import evolve
from cases import HYPOTHESIS, every, media_item
from hypothesis import given

from rollproof.properties.strategies.breaks.media import illustrated_chain
from rollproof.properties.strategies.breaks.media_columns import zeros
from rollproof.properties.strategies.rollouts.media import MediaKind, illustrated, make_bundle
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.symbolic.build import accepted, pick
from rollproof.properties.symbolic.media import ITEM
from rollproof.spec.constants import IMAGE, MEDIA_SPANS, VIDEO
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import RouteFragment, committed_extras
from rollproof.spec.spans import (
    MediaItem,
    check_embeddings,
    check_media,
    check_tokens,
    item_value,
    parse_item,
    parse_items,
    placeholder_digest,
)

STILL = make_bundle(MediaKind("float32", 2), [((2, 4),), ((4, 2),)], Bytes(b"\x01\x02"))
CLIP = make_bundle(MediaKind("float32", 2, video=True), [((2, 2), (2, 2)), ((2, 4),)], Bytes(b"\x03\x04"))
IMAGE_ITEM = {
    "modality": "image",
    "placeholder_offset": 1,
    "placeholder_length": 4,
    "placeholder_digest": placeholder_digest([7, 18, 18, 8]),
    "token_id": 18,
    "embedding_spans": [[2, 2]],
    "imgs_sizes": [[1, 2]],
}


def test_placeholders_are_hashed_as_compact_json():
    assert placeholder_digest([1, 2**62]) == hashlib.sha256(b"[1,4611686018427387904]").hexdigest()


@HYPOTHESIS
@given(illustrated())
def test_items_are_read_as_they_are_written(history):
    for call in illustrated_chain(history):
        spans = call.extras[MEDIA_SPANS]
        assert [item_value(item) for item in parse_items(spans)] == spans
        assert json.loads(json.dumps(spans)) == spans


@pytest.mark.parametrize("change", [{"placeholder_offset": 2**63}, {"token_id": 2**70}, {"placeholder_length": 2**63}])
def test_parse_item_takes_lengths_as_positions(change):
    with pytest.raises(ValueError, match="got"):
        parse_item({**IMAGE_ITEM, **change})


@pytest.mark.parametrize(
    ("spans", "complaint"),
    [
        (None, "a list"),
        ({}, "a list"),
        ([None], "an object"),
        ([{**IMAGE_ITEM, "more": 1}], "only modality"),
        ([IMAGE_ITEM, IMAGE_ITEM], "do not overlap"),
        ([{**IMAGE_ITEM, "placeholder_offset": 9, "embedding_spans": [[9, 1]]}, IMAGE_ITEM], "do not overlap"),
        (
            [IMAGE_ITEM, {**IMAGE_ITEM, "modality": "video", "placeholder_offset": 5, "embedding_spans": [[5, 1]]}],
            "as in the call's first item",
        ),
        ([{**IMAGE_ITEM, "embedding_spans": [[2, 1], [3, 1]]}], "do not touch"),
        ([{**IMAGE_ITEM, "embedding_spans": [[3, 1], [1, 1]]}], "do not touch"),
        ([{**IMAGE_ITEM, "embedding_spans": [[2, 9]]}], "inside the placeholder"),
        ([{**IMAGE_ITEM, "embedding_spans": [[0, 2]]}], "inside the placeholder"),
        ([{**IMAGE_ITEM, "embedding_spans": [[2, 2**62], [2**62 + 3, 1]]}], "inside the placeholder"),
        ([{**IMAGE_ITEM, "imgs_sizes": [[1, 2], [1, 2]]}], "one size per image"),
    ],
)
def test_parse_items_names_what_is_wrong(spans, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_items(spans)


@pytest.mark.parametrize(
    ("carry", "start", "complaint"),
    [
        ([5, 7, 18, 18, 8, 5], 0, None),
        ([7, 18, 18, 8], 1, None),
        ([7, 18, 18, 8], 2, "inside the call's carry"),
        ([5, 7, 18, 18], 0, "inside the call's carry"),
        ([5, 7, 18, 8, 18], 0, "placeholder_digest"),
        ([18, 7, 18, 18, 8, 5], 0, "every position"),
        ([5, 7, 18, 18, 8, 18], 0, "every position"),
        ([18, 5, 7, 18, 18, 8, 5, 18], -1, None),
    ],
)
def test_placeholders_against_tokens(carry, start, complaint):
    items = parse_items([IMAGE_ITEM])
    if complaint is None:
        check_tokens(items, carry, start)
    else:
        with pytest.raises(ValueError, match=complaint):
            check_tokens(items, carry, start)


def test_four_placeholders_that_became_sixteen():
    item = {**IMAGE_ITEM, "placeholder_digest": placeholder_digest([18] * 4), "embedding_spans": [[1, 4]]}
    check_tokens(parse_items([item]), [5, *[18] * 4, 5], 0)
    with pytest.raises(ValueError, match="every position"):
        check_tokens(parse_items([item]), [5, *[18] * 16, 5], 0)


def test_placeholders_may_be_next_to_each_other():
    first = {**IMAGE_ITEM, "placeholder_digest": placeholder_digest([18] * 4), "embedding_spans": [[1, 4]]}
    second = {**first, "placeholder_offset": 5, "embedding_spans": [[5, 4]]}
    check_tokens(parse_items([first, second]), [5, *[18] * 8], 0)


def test_items_against_bundles():
    def items(modality, *every):
        blank = MediaItem(modality, 0, 1, "0" * 64, 0, ((0, 1),), ())
        return [evolve(blank, imgs_sizes=tuple(one)) for one in every]

    check_media((), None)
    check_media(items("image", [(2, 4)], [(4, 2)]), STILL)
    check_media(items("video", [(2, 2), (2, 2)], [(2, 4)]), CLIP)
    for wrong, bundle in [
        (items("image", [(2, 4)]), None),
        ((), STILL),
        (items("image", [(2, 4)]), STILL),
        (items("image", [(4, 2)], [(2, 4)]), STILL),
        (items("video", [(2, 4)], [(4, 2)]), STILL),
        (items("video", [(2, 2)], [(2, 2), (2, 4)]), CLIP),
        (items("video", [(2, 2), (2, 2), (2, 4)]), CLIP),
    ]:
        with pytest.raises(ValueError, match="expected"):
            check_media(wrong, bundle)


def test_extras_are_believed_only_as_they_were_committed_to():
    data, commitment = b'{"a":1}', extras_digest({"a": 1})
    assert committed_extras(commitment, data) == {"a": 1}
    assert committed_extras(extras_digest(None), b"null") == {}
    for fragment, wrong in [
        (None, b'{"a":2}'),
        (None, b'{"a":1,"a":1}'),
        (RouteFragment(zeros("float32", (1, 1, 1)), 1, data), data),
        (RouteFragment(zeros("int16", (1, 1, 1)), 1, data), data),
        (RouteFragment(zeros("int16", (1, 1, 1)), 0, data), data),
    ]:
        with pytest.raises(ValueError, match=r".+"):
            committed_extras(commitment, wrong, fragment)


@every(is_video=(False, True), sizes=range(4))
def test_an_image_has_one_size(is_video: bool, sizes: int) -> bool:
    """An image has exactly one size, a video one for each frame and at least one."""
    modality = VIDEO if is_video else IMAGE
    value = item_value(evolve(ITEM, modality=modality, imgs_sizes=((1, 1),) * pick(range(4), sizes)))
    return accepted(parse_items, [value]) == (sizes > 0 if is_video else sizes == 1)


def test_a_placeholder_has_a_token() -> None:
    with pytest.raises(ValueError, match="placeholder_length"):
        parse_items([{**media_item(1, [18], [[1, 1]]), "placeholder_length": 0}])


@pytest.mark.parametrize("digest", ["0" * 64, "f" * 64])
def test_a_placeholder_digest_is_exact(digest: str) -> None:
    described = {**media_item(1, [7, 18], [[2, 1]]), "placeholder_digest": digest}
    with pytest.raises(ValueError, match="placeholder_digest"):
        check_tokens(parse_items([described]), [5, 7, 18, 5], 0)


@pytest.mark.parametrize("runs", [[[3, 2]], [[4, 1]], [[0, 1]], [[1, 4]], [[2, 3]]])
def test_embedding_runs_end_inside_their_placeholder(runs: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="runs inside the placeholder"):
        parse_items([media_item(1, [7, 18, 18], runs)])


@pytest.mark.parametrize("carry", [[18, 18, 5], [18, 7, 18, 5], [5, 18, 18]])
def test_an_embedding_token_beside_a_placeholder_is_noticed(carry: list[int]) -> None:
    described = media_item(1, [18], [[1, 1]]) if carry[1] == 18 else media_item(1, [7, 18], [[2, 1]])
    with pytest.raises(ValueError, match="every position"):
        check_tokens(parse_items([described]), carry, 0)


@pytest.mark.parametrize(
    ("modality", "embeddings", "factor", "expected"),
    [
        ("image", 8, None, 1),
        ("image", 2, None, 4),
        ("image", 2, 4, 4),
        ("image", 3, None, None),
        ("image", 16, None, None),
        ("image", 2, 2, None),
        ("video", 3, None, "unknown"),
        ("video", 8, None, "unknown"),
        ("video", 9, None, None),
        ("video", 2, 4, 4),
        ("video", 3, 4, None),
    ],
)
def test_embeddings_are_counted_against_patches(modality, embeddings, factor, expected):
    item = evolve(
        parse_item(IMAGE_ITEM), modality=modality, embedding_spans=((2, embeddings - 1), (90, 1)), imgs_sizes=((4, 8),)
    )
    if expected is None:
        with pytest.raises(ValueError, match="embedding_spans"):
            check_embeddings(item, 2, factor)
    else:
        assert check_embeddings(item, 2, factor) == (None if expected == "unknown" else expected)
