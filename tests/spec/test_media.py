"""Media of rollouts and groups (section 7), and what is shadowed by what."""

from __future__ import annotations

import pytest
from attrs import evolve
from cases import HYPOTHESIS, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.properties.strategies.breaks.media import (
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
)
from rollproof.properties.strategies.breaks.media_columns import zeros
from rollproof.properties.strategies.rollouts.media import (
    MediaKind,
    illustrated,
    make_bundle,
    media_histories,
    with_media,
)
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.strategies.streams.media import DEFERRED, DIMS, DIRECT, unverifiable
from rollproof.spec.bundles import narrowed, trainer_layout
from rollproof.spec.constants import MEDIA_FIELDS, MEDIA_TENSOR_COLUMNS
from rollproof.spec.group import finalize_group
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.staging import Staging
from rollproof.spec.media import fit_into_group, group_fields, rollout_media, row_columns, row_shape_tags
from rollproof.spec.outcomes import RolloutOutcome
from rollproof.spec.plane import DataPlane, Get
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.records import FinalizedRollout, GroupRequest, ReassemblerConfig
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.rollout import finalize_rollout
from rollproof.spec.shadowed import SHADOWED_BY
from rollproof.spec.staged import decode_row
from rollproof.spec.tensor import Tensor

ONE = [((1, 1),)]
STILL = make_bundle(MediaKind("float32", 2), [((2, 4),), ((4, 2),)], Bytes(b"\x01\x02"))
CLIP = make_bundle(MediaKind("float32", 2, video=True), [((2, 2), (2, 2)), ((2, 4),)], Bytes(b"\x03\x04"))


def verdict(request):
    return answer(request).value.rollout.rejection_reason


def media_gets(request):
    return [effect for effect in answer(request).value.effects if set(effect.columns) & set(MEDIA_TENSOR_COLUMNS)]


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
def test_broken_media_are_rejected_with_the_code_of_their_break(code):
    @HYPOTHESIS
    @given(broken_media(code))
    def check(request):
        assert verdict(request).partition(":")[0] == code.code

    check()


@pytest.mark.parametrize("edit", CALL_EDITS)
def test_media_that_disagree_with_their_call_are_rejected(edit):
    @settings(HYPOTHESIS, max_examples=15)
    @given(disagreeing(edit))
    def check(request):
        assert verdict(request).startswith("media_placeholder_mismatch:")

    check()


@HYPOTHESIS
@given(unverifiable())
def test_extras_that_were_not_committed_to_are_refused(request):
    assert verdict(request).startswith("media_commitment:")


@HYPOTHESIS
@given(st.data())
def test_media_are_compared_whether_or_not_routes_are_read(data):
    whole = data.draw(illustrated())
    history = mismatched(data.draw(st.builds(Bytes, st.binary(min_size=64, max_size=64))), whole)
    routed = data.draw(with_routes(history, DIMS, share=1.0))
    assert verdict(routed.finalize(DIRECT)).startswith("media_placeholder_mismatch")
    assert verdict(routed.finalize(DEFERRED)).startswith("media_placeholder_mismatch")
    assert verdict(routed.finalize(MEDIA)).startswith("media_placeholder_mismatch")
    assert verdict(history.finalize(DEFERRED)).startswith("media_placeholder_mismatch")
    rows = routed.rows()
    del rows[illustrated_chain(whole)[-1].key]["routed_experts"]
    assert verdict(routed.finalize(DIRECT, staging=Staging(rows))).startswith("media_placeholder_mismatch")


@HYPOTHESIS
@given(st.data())
def test_media_checks_have_an_order(data):
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
    """Return one fixed rollout with media of a kind."""
    found = []

    @settings(HYPOTHESIS, max_examples=1)
    @given(illustrated(kind, rollout_id=rollout_id))
    def draw(history):
        found.append(history)

    draw()
    return found[0]


def chain_of(history):
    request = history.finalize(MEDIA)
    row = finalize_rollout(MEDIA, history.rollout_id, request.receipt, 1.0, request.staging.plane()).row
    return row, [decode_row(request.staging.rows[call.key], media=True) for call in history.chain()], request.staging


def test_a_chain_of_other_calls_is_refused_where_it_could_arise():
    row, chain, staging = chain_of(example())
    assert Code.MEDIA_CHAIN_IDENTITY in SHADOWED_BY
    assert refusal(rollout_media, MEDIA, row, chain[:-1], staging.plane()).code is Code.MEDIA_CHAIN_IDENTITY


def test_media_that_went_missing_after_the_base_read():
    row, chain, _ = chain_of(example())
    plane = DataPlane()
    assert refusal(rollout_media, MEDIA, row, chain, plane).code is Code.INVALID_MEDIA_COLUMNS
    assert len(plane.effects) == 1


def test_only_one_code_of_media_is_shadowed():
    shadowed = {code for code in Code if code.stage is Stage.MEDIA and code in SHADOWED_BY}
    assert shadowed == {Code.MEDIA_CHAIN_IDENTITY}


# ── groups ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def group_of(*histories, config=MEDIA):
    ids = tuple(f"g_g{index}" for index in range(len(histories)))
    receipts = tuple(None if history is None else history.raw_receipt() for history in histories)
    rows = {key: row for history in histories if history is not None for key, row in history.rows().items()}
    request = GroupRequest("g", ids, receipts, (1.0,) * len(ids), (False,) * len(ids))
    return finalize_group(config, request, DataPlane(rows))


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
def test_group_media_fields_follow_the_first_media_row(other):
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
    assert fit_into_group(second, [first]).rollout.valid is False
    assert fit_into_group(second, [second]) is second


def test_fit_into_group_rejects_a_row_whole_and_keeps_its_keys():
    routes = Tensor.of("int16", [0, 1], (1, 1, 2))
    history = example()
    receipt = parse_receipt(history.raw_receipt())
    rollout = FinalizedRollout("r", True, None, 1.0, media=trainer_layout(STILL), routed_experts=routes)
    other = RolloutOutcome(FinalizedRollout("q", True, None, 1.0, media=trainer_layout(narrowed(CLIP))))
    fitted = fit_into_group(RolloutOutcome(rollout, receipt, media_has_frames=True), [other]).rollout
    assert fitted.routed_experts is None
    assert fitted.staging_keys == tuple(call.key for call in history.calls)
    text = RolloutOutcome(FinalizedRollout("t", True, None, 1.0))
    assert fit_into_group(text, [other]) is text


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
