"""Section 7 in the spec: bundles, chains, spans, rollouts and groups with media, and what is shadowed by what."""

from __future__ import annotations

import hashlib
import json

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollproof.properties.strategies.media import (
    MediaKind,
    bundles,
    illustrated,
    make_bundle,
    media_histories,
    with_media,
)
from rollproof.properties.strategies.media_breaks import (
    CALL_EDITS,
    MEDIA,
    ROLLOUT_CODES,
    broken_media,
    committed,
    disagreeing,
    illustrated_chain,
    mismatched,
    overwritten,
    spans_of,
    with_spans,
    zeros,
)
from rollproof.properties.strategies.media_requests import DEFERRED, DIMS, DIRECT, unverifiable
from rollproof.properties.strategies.routed_histories import with_routes
from rollproof.properties.strategies.values import Bytes
from rollproof.spec.assembly import RouteFragment
from rollproof.spec.bundles import check_bundle, column_of, join, narrowed, read_media, staged_media, trainer_layout
from rollproof.spec.constants import MEDIA_FIELDS, MEDIA_SPANS, MEDIA_TENSOR_COLUMNS
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import committed_extras
from rollproof.spec.group import finalize_group
from rollproof.spec.media import fit_into_group, group_fields, rollout_media, row_columns, row_shape_tags
from rollproof.spec.oracle import answer
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.plane import Get, Staging
from rollproof.spec.records import FinalizedRollout, GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected, Stage
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.spans import (
    MediaItem,
    check_media,
    check_tokens,
    item_value,
    parse_item,
    parse_items,
    placeholder_digest,
)
from rollproof.spec.staged import decode_row
from rollproof.spec.tensor import Tensor

HYPOTHESIS = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
ONE = [((1, 1),)]
STILL = make_bundle(MediaKind("float32", 2), [((2, 4),), ((4, 2),)], Bytes(b"\x01\x02"))
CLIP = make_bundle(MediaKind("float32", 2, video=True), [((2, 2), (2, 2)), ((2, 4),)], Bytes(b"\x03\x04"))
IMAGE = {
    "modality": "image",
    "placeholder_offset": 1,
    "placeholder_length": 4,
    "placeholder_digest": placeholder_digest([7, 18, 18, 8]),
    "token_id": 18,
    "embedding_spans": [[2, 2]],
    "imgs_sizes": [[1, 2]],
}


def sizes(*values, dtype="int32"):
    return Tensor.of(dtype, values, (len(values) // 2, 2))


def refusal(function, *arguments):
    with pytest.raises(Rejected) as caught:
        function(*arguments)
    return caught.value.code


def verdict(request):
    return answer(request).value.rollout.rejection_reason


def media_gets(request):
    return [effect for effect in answer(request).value.effects if set(effect.columns) & set(MEDIA_TENSOR_COLUMNS)]


# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(bundles())
def test_bundles_survive_staging(bundle):
    check_bundle(bundle)
    kind = bundle["imgs"].dtype
    columns = staged_media(bundle, kind)
    assert read_media(columns, has_frames="num_frames" in bundle) == narrowed(bundle)
    assert columns["media_present"].values() == (True,)
    assert {columns[column_of(name)].dtype for name in ("imgs_sizes", "num_frames")} == {"int32"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rows_without_media_hold_zeros_in_their_columns_dtype(dtype):
    columns = staged_media(None, dtype)
    assert columns["media_imgs"] == zeros(dtype, (1, 1, 1))
    assert columns["media_imgs_sizes"] == zeros("int32", (1, 1, 2))
    assert columns["media_num_frames"] == zeros("int32", (1, 1))
    assert staged_media(make_bundle(MediaKind(dtype), ONE, Bytes(b"")), dtype)["media_num_frames"] == zeros(
        "int32", (1, 1)
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"imgs": None}, "expected imgs and imgs_sizes"),
        ({"imgs_sizes": None}, "expected imgs and imgs_sizes"),
        ({"pixel_values": STILL["imgs"]}, "only imgs"),
        ({"num_frames": "two"}, "expected a tensor"),
        ({"imgs": zeros("float64", (1, 4, 12))}, "float16"),
        ({"imgs": zeros("float32", (4, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (2, 2, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (1, 0, 12))}, r"\[1, patches, features\]"),
        ({"imgs": zeros("float32", (1, 4, 0))}, "three times a positive square"),
        ({"imgs": zeros("float32", (1, 4, 13))}, "three times a positive square"),
        ({"imgs": zeros("float32", (1, 4, 6))}, "three times a positive square"),
        ({"imgs": zeros("float32", (1, 5, 12))}, "the 4 patches"),
        ({"imgs_sizes": zeros("float32", (2, 2))}, "int32, int64"),
        ({"imgs_sizes": zeros("int32", (0, 2))}, "n > 0"),
        ({"imgs_sizes": zeros("int32", (2, 3))}, "n > 0"),
        ({"imgs_sizes": sizes(2, 0, 2, 4)}, "a positive int32"),
        ({"imgs_sizes": sizes(-2, -2, 2, 4)}, "a positive int32"),
        ({"imgs_sizes": sizes(2**31, 2, 2, 4, dtype="int64")}, "a positive int32"),
        ({"imgs_sizes": sizes(1, 4, 2, 6)}, "multiples of 2"),
        ({"imgs_sizes": sizes(2, 2, 2, 4)}, "the 3 patches"),
        ({"num_frames": Tensor.of("int16", [2])}, "int32, int64"),
        ({"num_frames": Tensor.of("int32", [2], (1, 1))}, r"\[videos\]"),
        ({"num_frames": Tensor.of("int32", [2, 0])}, "a positive int32"),
        ({"num_frames": Tensor.of("int32", [1, 2])}, "a sum of 2"),
        ({"num_frames": Tensor.of("int32", [])}, "a sum of 2"),
    ],
)
def test_what_is_no_bundle_says_why(change, complaint):
    bundle = {name: value for name, value in {**STILL, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=complaint):
        check_bundle(bundle)
    with pytest.raises(ValueError, match=complaint):
        staged_media(bundle, "float32")


def test_sums_do_not_wrap():
    wrapped = {"imgs": zeros("float32", (1, 1, 3)), "imgs_sizes": sizes(*[2**30] * 32, 1, 1)}
    assert (16 * 2**60 + 1) % 2**64 == 1
    with pytest.raises(ValueError, match="patches"):
        check_bundle(wrapped)


def test_a_partition_has_one_pixel_dtype():
    with pytest.raises(ValueError, match="imgs: got 'float32', expected bfloat16"):
        staged_media(STILL, "bfloat16")


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"media_imgs": None}, "media_imgs: the column is missing"),
        ({"media_imgs_sizes": None}, "media_imgs_sizes: the column is missing"),
        ({"media_num_frames": None}, "media_num_frames: the column is missing"),
        ({"media_imgs_sizes": zeros("int64", (1, 2, 2))}, "expected int32"),
        ({"media_imgs_sizes": zeros("int32", (2, 1, 2))}, "a batch of one"),
        ({"media_num_frames": Tensor.of("int32", [2], (1, 1))}, "one zero for stills"),
        ({"media_num_frames": zeros("int32", (1, 2))}, "one zero for stills"),
    ],
)
def test_staged_columns_are_read_strictly(columns, complaint):
    row = {name: value for name, value in {**staged_media(STILL, "float32"), **columns}.items() if value is not None}
    with pytest.raises(ValueError, match=complaint):
        read_media(row, has_frames=False)


# ── chains ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chain_keeps_every_patch_in_order():
    other = make_bundle(MediaKind("float32", 2), [((2, 2),)], Bytes(b"\x30\x05"))
    whole = trainer_layout(join([STILL, other, STILL]))
    assert whole["pixel_values"].shape == (9, 12)
    assert whole["pixel_values"].data == STILL["imgs"].data + other["imgs"].data + STILL["imgs"].data
    assert whole["imgs_sizes"].values() == (2, 4, 4, 2, 2, 2, 2, 4, 4, 2)
    assert whole["num_frames"] == Tensor.of("int32", [1] * 5)
    assert list(whole) == list(MEDIA_FIELDS)


def test_videos_keep_their_frame_counts():
    whole = trainer_layout(join([CLIP, CLIP]))
    assert whole["num_frames"] == Tensor.of("int32", [2, 1, 2, 1])
    assert whole["imgs_sizes"].shape == (6, 2)


@pytest.mark.parametrize(
    "other",
    [
        CLIP,
        make_bundle(MediaKind("bfloat16", 2), [((2, 2),)], Bytes(b"")),
        make_bundle(MediaKind("float32", 1), ONE, Bytes(b"")),
    ],
)
def test_parts_must_go_together(other):
    assert refusal(join, [STILL, other]) is Code.MEDIA_CHAIN_INCOMPATIBLE


# ── spans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_positions_are_lengths(change):
    with pytest.raises(ValueError, match="got"):
        parse_item({**IMAGE, **change})


@pytest.mark.parametrize(
    ("spans", "complaint"),
    [
        (None, "a list"),
        ({}, "a list"),
        ([None], "an object"),
        ([{**IMAGE, "more": 1}], "exactly"),
        ([IMAGE, IMAGE], "disjoint"),
        ([{**IMAGE, "placeholder_offset": 9, "embedding_spans": [[9, 1]]}, IMAGE], "disjoint"),
        ([IMAGE, {**IMAGE, "modality": "video", "placeholder_offset": 5, "embedding_spans": [[5, 1]]}], "one modality"),
        ([{**IMAGE, "embedding_spans": [[2, 1], [3, 1]]}], "do not touch"),
        ([{**IMAGE, "embedding_spans": [[3, 1], [1, 1]]}], "do not touch"),
        ([{**IMAGE, "embedding_spans": [[2, 9]]}], "inside the placeholder"),
        ([{**IMAGE, "embedding_spans": [[0, 2]]}], "inside the placeholder"),
        ([{**IMAGE, "embedding_spans": [[2, 2**62], [2**62 + 3, 1]]}], "inside the placeholder"),
        ([{**IMAGE, "imgs_sizes": [[1, 2], [1, 2]]}], "one size per image"),
    ],
)
def test_spans_that_are_none_say_why(spans, complaint):
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
    items = parse_items([IMAGE])
    if complaint is None:
        check_tokens(items, carry, start)
    else:
        with pytest.raises(ValueError, match=complaint):
            check_tokens(items, carry, start)


def test_four_placeholders_that_became_sixteen():
    item = {**IMAGE, "placeholder_digest": placeholder_digest([18] * 4), "embedding_spans": [[1, 4]]}
    check_tokens(parse_items([item]), [5, *[18] * 4, 5], 0)
    with pytest.raises(ValueError, match="every position"):
        check_tokens(parse_items([item]), [5, *[18] * 16, 5], 0)


def test_items_may_stand_side_by_side():
    first = {**IMAGE, "placeholder_digest": placeholder_digest([18] * 4), "embedding_spans": [[1, 4]]}
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
    assert committed_extras(None, data, commitment) == {"a": 1}
    assert committed_extras(None, b"null", extras_digest(None)) == {}
    unrouted = RouteFragment(zeros("int16", (1, 1, 1)), 0, data)
    assert committed_extras(unrouted, data, commitment) == {"a": 1}
    for fragment, wrong in [
        (None, b'{"a":2}'),
        (None, b'{"a":1,"a":1}'),
        (RouteFragment(zeros("float32", (1, 1, 1)), 1, data), data),
        (RouteFragment(zeros("int16", (1, 1, 1)), 1, data), data),
    ]:
        with pytest.raises(ValueError, match=r".+"):
            committed_extras(fragment, wrong, commitment)


# ── rollouts ────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(media_histories())
def test_valid_rollouts_hold_the_media_of_their_chain(history):
    outcome = answer(history.finalize(MEDIA)).value
    carriers = illustrated_chain(history)
    assert outcome.rollout.valid
    assert (outcome.rollout.media is not None) == bool(carriers)
    assert [type(effect) for effect in outcome.effects] == [Get] * (1 + bool(carriers))
    if carriers:
        pixels = b"".join(call.media["media_imgs"].data for call in carriers)
        assert outcome.rollout.media["pixel_values"].data == pixels
        assert outcome.effects[1].keys == tuple(call.key for call in carriers)


@HYPOTHESIS
@given(media_histories())
def test_a_text_only_partition_touches_no_media(history):
    outcome = answer(history.finalize(ReassemblerConfig())).value
    assert outcome.rollout.valid
    assert outcome.rollout.media is None
    assert len(outcome.effects) == 1
    assert not [column for column in outcome.effects[0].columns if column.startswith("media")]


@pytest.mark.parametrize("code", ROLLOUT_CODES)
def test_breaks_give_their_code(code):
    @HYPOTHESIS
    @given(broken_media(code))
    def check(request):
        assert verdict(request).partition(":")[0] == code.code

    check()


@pytest.mark.parametrize("edit", CALL_EDITS)
def test_disagreements_are_seen(edit):
    @settings(HYPOTHESIS, max_examples=15)
    @given(disagreeing(edit))
    def check(request):
        assert verdict(request).startswith("media_placeholder_mismatch:")

    check()


@HYPOTHESIS
@given(unverifiable())
def test_extras_that_were_not_committed_to_say_nothing(request):
    assert verdict(request) is None


@HYPOTHESIS
@given(st.data())
def test_routes_decide_what_can_be_checked(data):
    history = mismatched(data.draw(st.builds(Bytes, st.binary(min_size=64, max_size=64))), data.draw(illustrated()))
    routed = data.draw(with_routes(history, DIMS, share=1.0))
    assert verdict(routed.finalize(DIRECT)).startswith("media_placeholder_mismatch")
    assert verdict(routed.finalize(DEFERRED)) is None
    assert verdict(routed.finalize(MEDIA)) is None
    assert verdict(history.finalize(DEFERRED)).startswith("media_placeholder_mismatch")
    call = illustrated_chain(routed)[-1]
    rows = routed.rows()
    del rows[call.key]["routed_experts"]
    assert verdict(routed.finalize(DIRECT, staging=Staging(rows))).startswith("route_assembly:missing_fragment")


@HYPOTHESIS
@given(st.data())
def test_checks_have_an_order(data):
    history = data.draw(illustrated(calls=2))
    last = illustrated_chain(history)[-1]
    broken = {"media_imgs": zeros("uint8", (1, 1, 1))}
    flag = last.media["media_has_frames"].values() == (True,)
    mixed = {**broken, "media_has_frames": Tensor.of("bool", [not flag])}
    request = overwritten(history, last, mixed)
    assert verdict(request).startswith("media_chain_incompatible")
    assert media_gets(request) == []
    unexplained = committed(history, with_spans(last, []))
    assert verdict(unexplained.finalize(MEDIA)).startswith("media_placeholder_mismatch")
    assert verdict(overwritten(unexplained, last, broken)).startswith("invalid_media_columns")
    pixels = last.media["media_imgs"]
    wider = "float32" if pixels.dtype != "float32" else "float16"
    other = {"media_imgs": zeros(wider, pixels.shape)}
    assert verdict(overwritten(unexplained, last, other)).startswith("media_chain_incompatible")
    assert verdict(evolve(unexplained.finalize(MEDIA), reward=None)).startswith("media_placeholder_mismatch")


def test_text_that_spells_a_placeholder_is_text():
    @HYPOTHESIS
    @given(media_histories(share=0.0))
    def check(history):
        calls = tuple(
            evolve(call, staged=evolve(call.staged, token_ids_delta=(18,) * call.staged.delta_len))
            for call in history.calls
        )
        spelled = committed(evolve(history, calls=calls), calls[0])
        assert verdict(spelled.finalize(MEDIA)) is None

    check()


def example(kind=MediaKind("float32"), rollout_id="r"):  # noqa: B008 - frozen
    """One fixed rollout with media of a kind."""
    found = []

    @settings(HYPOTHESIS, max_examples=1)
    @given(illustrated(kind, rollout_id=rollout_id))
    def draw(history):
        found.append(history)

    draw()
    return found[0]


def chain_of(history):
    request = history.finalize(MEDIA)
    row = finalize_rollout(MEDIA, history.rollout_id, request.receipt, 1.0, request.staging).row
    return row, [decode_row(request.staging.rows[call.key], media=True) for call in history.chain()], request.staging


def test_a_chain_of_other_calls_is_refused_where_it_could_arise():
    row, chain, staging = chain_of(example())
    assert Code.MEDIA_CHAIN_IDENTITY.value.shadowed_by is not None
    assert refusal(rollout_media, MEDIA, row, chain[:-1], staging, []) is Code.MEDIA_CHAIN_IDENTITY


def test_media_that_went_missing_after_the_base_read():
    row, chain, _ = chain_of(example())
    effects = []
    assert refusal(rollout_media, MEDIA, row, chain, Staging({}), effects) is Code.INVALID_MEDIA_COLUMNS
    assert len(effects) == 1


def test_only_one_code_of_media_is_shadowed():
    shadowed = {code for code in Code if code.stage is Stage.MEDIA and code.value.shadowed_by}
    assert shadowed == {Code.MEDIA_CHAIN_IDENTITY}


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def group_of(*histories, config=MEDIA):
    ids = tuple(f"g_g{index}" for index in range(len(histories)))
    receipts = tuple(None if history is None else history.raw_receipt() for history in histories)
    rows = {key: row for history in histories if history is not None for key, row in history.rows().items()}
    request = GroupRequest("g", ids, receipts, (1.0,) * len(ids), (False,) * len(ids))
    return finalize_group(config, request, Staging(rows))


def test_rows_are_flat_and_their_tags_say_their_shapes():
    outcome = group_of(example(rollout_id="g_g0"), None, example(rollout_id="g_g2"))
    for name in MEDIA_FIELDS:
        for index in (0, 2):
            media = outcome.rollouts[index].media[name]
            assert outcome.rows[index].columns[name] == Tensor(media.dtype, (media.count,), media.data)
            tag = outcome.rows[index].tags[f"{name}__row_shapes"]
            assert tag == {"shapes": [list(media.shape)], "pad": False}
        assert outcome.rows[1].columns[name].shape == (0,)
        assert outcome.rows[1].tags[f"{name}__row_shapes"] == {"shapes": [], "pad": False}
    assert set(MEDIA_FIELDS) <= outcome.group.fields
    assert outcome.group.metrics["finalize/media_row_rate"] == 1.0


def test_a_group_without_media_has_no_media_fields():
    assert group_fields([FinalizedRollout("r", True, None, 1.0)]) == {}
    outcome = group_of(None, None)
    assert not set(MEDIA_FIELDS) & outcome.group.fields
    assert not [tag for tag in outcome.rows[0].tags if tag.endswith("__row_shapes")]


@pytest.mark.parametrize(
    "other",
    [MediaKind("bfloat16"), MediaKind("float32", 2), MediaKind("float32", video=True)],
    ids=["dtype", "width", "modality"],
)
def test_the_first_media_row_decides(other):
    outcome = group_of(
        None,
        example(rollout_id="g_g1"),
        example(other, "g_g2"),
        example(rollout_id="g_g3"),
        example(other, "g_g4"),
    )
    assert [rollout.valid for rollout in outcome.rollouts] == [False, True, False, True, False]
    assert outcome.rollouts[2].rejection_reason.startswith("media_group_incompatible")
    assert outcome.group.metrics["finalize/capture_failure_reason_media_group_incompatible_count"] == 2.0
    assert outcome.rows[2].columns["pixel_values"].shape == (0,)


def test_a_video_of_one_frame_is_no_still():
    clip = make_bundle(MediaKind("float32", video=True), ONE, Bytes(b""))
    still = make_bundle(MediaKind("float32"), ONE, Bytes(b""))
    assert trainer_layout(narrowed(clip)) == trainer_layout(narrowed(still))
    rollout = FinalizedRollout("r", True, None, 1.0, media=trainer_layout(still))
    first, second = RolloutOutcome(rollout), RolloutOutcome(rollout, media_has_frames=True)
    assert fit_into_group(second, [first], None).rollout.valid is False
    assert fit_into_group(second, [second], None) is second


def test_a_rejected_row_teaches_nothing():
    rollout = FinalizedRollout("r", True, None, 1.0, staging_keys=("r/c",), media=trainer_layout(STILL))
    other = RolloutOutcome(FinalizedRollout("q", True, None, 1.0, media=trainer_layout(narrowed(CLIP))), dims=(1, 1))
    fitted = fit_into_group(RolloutOutcome(rollout, dims=(3, 2), media_has_frames=True), [other], (1, 1))
    assert fitted.dims == (1, 1)
    assert fitted.rollout.staging_keys == ("r/c",)
    text = RolloutOutcome(FinalizedRollout("t", True, None, 1.0), dims=(3, 2))
    assert fit_into_group(text, [other], None) is text


def test_columns_and_tags_come_from_the_same_rows():
    rollouts = [
        FinalizedRollout("a", True, None, 1.0, media=trainer_layout(STILL)),
        FinalizedRollout("b", True, None, 1.0),
    ]
    fields = group_fields(rollouts)
    assert row_columns(fields, 1)["pixel_values"] == Tensor("float32", (0,), b"")
    assert row_shape_tags(fields, 0)["imgs_sizes__row_shapes"] == {"shapes": [[2, 2]], "pad": False}


@HYPOTHESIS
@given(st.data())
def test_media_can_be_attached_to_any_history(data):
    history = data.draw(media_histories())
    kind = MediaKind("float16", 3, video=True)
    again = data.draw(
        with_media(evolve(history, calls=tuple(evolve(call, extras=None) for call in history.calls)), kind)
    )
    assert verdict(again.finalize(MEDIA)) is None
    for call in illustrated_chain(again):
        assert {item["modality"] for item in spans_of(call)} == {"video"}
