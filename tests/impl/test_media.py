"""Section 7 on tensors: bundles, staging, rollouts and groups with media, against the spec."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attrs import asdict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from rollproof.impl.bundles import chain_media, join, read_bundle, read_staged, staged_tensors, trainer_layout
from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.media import fit_into_group, staged_columns
from rollproof.impl.outcomes import FinalizedRollout, RolloutOutcome
from rollproof.impl.packed import PackedTensor
from rollproof.impl.patches import image_bundle, video_bundle
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.spans import check_items, read_items
from rollproof.impl.staging import StagingSink, staged_row
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.asking import ask
from rollproof.properties.strategies.media import MediaKind, bundles, illustrated, media_histories
from rollproof.properties.strategies.media_breaks import (
    MEDIA,
    ROLLOUT_CODES,
    SPAN_EDITS,
    broken_media,
    illustrated_chain,
    mismatched,
    spans_of,
)
from rollproof.properties.strategies.media_requests import DIMS, DIRECT, chains, damaged_chains, groups, unverifiable
from rollproof.properties.strategies.routed_histories import with_routes
from rollproof.properties.strategies.values import Bytes
from rollproof.properties.tensors import from_torch, row_fields, to_torch
from rollproof.spec.constants import MEDIA_FIELDS, MEDIA_TENSOR_COLUMNS
from rollproof.spec.invariant import difference
from rollproof.spec.oracle import answer
from rollproof.spec.rejections import Rejected
from rollproof.spec.spans import parse_items, placeholder_digest

HYPOTHESIS = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
OURS = Ours()
IMAGES = [torch.arange(3 * 2 * 4.0).reshape(3, 2, 4), torch.arange(3 * 4 * 2.0).reshape(3, 4, 2) - 5]
STILLS = image_bundle(IMAGES, 2)
CLIPS = video_bundle([torch.ones(2, 3, 2, 2), torch.zeros(1, 3, 2, 4)], 2)


def agrees(request):
    """Ours and the spec answer alike, down to the code of a refusal."""
    expected, actual = answer(request), ask(OURS, request)
    if hasattr(expected, "reason"):
        assert actual.reason.partition(":")[0] == expected.reason.partition(":")[0]
        return
    wanted, found = expected.value, actual.value
    for side in (wanted, found):
        if hasattr(side, "rollout") and not side.rollout.valid:
            reason = wanted.rollout.rejection_reason.partition(":")[0]
            assert found.rollout.rejection_reason.partition(":")[0] == reason
            return
    assert difference(wanted, found) is None


# ── against the spec ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "requests",
    [
        chains(),
        damaged_chains(),
        media_histories().map(lambda history: history.finalize(MEDIA)),
        unverifiable(),
        groups(),
        *map(broken_media, ROLLOUT_CODES),
    ],
    ids=["chains", "damaged", "valid", "unverifiable", "groups", *(code.code for code in ROLLOUT_CODES)],
)
def test_ours_answers_as_the_spec_does(requests):
    HYPOTHESIS(given(requests)(agrees))()


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
    with pytest.raises(ValueError, match="throughout"):
        check_items(read_items([item]), np.array([5, 7, 18, 19, 8]), 0, None)


def test_videos_are_compared_frame_by_frame():
    def video(at, *sizes):
        return {**ITEM, "modality": "video", "imgs_sizes": [list(size) for size in sizes], "placeholder_offset": at,
                "embedding_spans": [[at + 1, 2]]}  # fmt: skip

    carry = np.array([5, 7, 18, 18, 8, 7, 18, 18, 8])
    check_items(read_items([video(1, (2, 2), (2, 2)), video(5, (2, 4))]), carry, 0, read_bundle(CLIPS))
    with pytest.raises(ValueError, match="frames"):
        check_items(read_items([video(1, (2, 2)), video(5, (2, 2), (2, 4))]), carry, 0, read_bundle(CLIPS))


# ── bundles ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@HYPOTHESIS
@given(bundles())
def test_staged_columns_are_the_specs(bundle):
    read = read_bundle({name: to_torch(value) for name, value in bundle.items()})
    columns = staged_tensors(read, getattr(torch, bundle["imgs"].dtype))
    (back,) = read_staged(TensorDict(columns, batch_size=[1]), 1, has_frames="num_frames" in bundle)
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
    with pytest.raises(ValueError, match=r"media|imgs|num_frames"):
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
    with pytest.raises(ValueError, match=r"media|imgs|not a tensor"):
        read_staged(answered, 1, has_frames=False)


# ── staging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def record(call, extras=None):
    return SimpleNamespace(**asdict(call), extras=extras)


def test_the_sink_stages_media_and_sentinels(make):
    pytest.importorskip("nemo_gym")
    plane = MemoryDataPlane()
    sink = StagingSink(plane, "staging", capture_media=True, media_pixel_dtype=torch.float32)
    root, child = make.two_calls()
    assert sink.stage(record(root), attachments={**STILLS, "num_frames": None}).ok
    assert sink.stage(record(child)).ok
    keys = [f"g_g0/{call.model_call_id}" for call in (root, child)]
    names = ["media_present", "media_has_frames", "media_metadata_digest", *MEDIA_TENSOR_COLUMNS]
    rows = plane.get_samples(sample_ids=keys, partition_id="staging", select_fields=names)
    assert [row.tolist() for row in rows["media_present"].unbind()] == [True, False]
    first, second = column_rows(rows.get("media_imgs"))
    assert torch.equal(first, STILLS["imgs"][0])
    assert second.tolist() == [[0.0]]
    assert second.dtype is torch.float32
    assert not sink.stage(record(root), attachments=image_bundle([IMAGES[0].to(torch.bfloat16)], 2)).ok
    assert "imgs" in sink.stage(record(root), attachments={"imgs": STILLS["imgs"]}).error
    assert sink.stage(record(root), attachments=CLIPS).ok


def test_a_media_partition_has_a_pixel_dtype():
    with pytest.raises(ValueError, match="media_pixel_dtype"):
        StagingSink(MemoryDataPlane(), "staging", capture_media=True)


@HYPOTHESIS
@given(illustrated())
def test_staged_rows_are_the_specs(history):
    for call in history.calls:
        dtype = getattr(torch, call.media["media_imgs"].dtype)
        bundle = None
        if call.media["media_present"].values() == (True,):
            frames = call.media["media_has_frames"].values() == (True,)
            columns = {name: to_torch(value) for name, value in call.media.items()}
            bundle = {"imgs": columns["media_imgs"], "imgs_sizes": columns["media_imgs_sizes"][0]}
            bundle |= {"num_frames": columns["media_num_frames"][0]} if frames else {}
        row = staged_row(record(call.staged, call.extras), bundle, dtype)
        expected = history.rows()[call.key]
        assert {name: from_torch(row[name]) for name in expected} == expected
        assert staged_columns(bundle, b"null", dtype).keys() < row.keys()


# ── the reassembler ─────────────────────────────────────────────────────────────────────────────────────────────────


class Counting(MemoryDataPlane):
    """A data plane that counts what media columns are asked for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.asked.append(tuple(select_fields))
        return super().get_samples(sample_ids, partition_id, select_fields)


def plane_of(*histories):
    plane = Counting()
    for history in histories:
        for key, row in history.rows().items():
            plane.put_samples(sample_ids=[key], partition_id="staging", fields=row_fields(row))
    return plane


def reassembler(plane, **changes):
    arguments = {"partition_id": "train", "staging_partition": "staging", "pad_token_id": 0, "max_seq_len": 64}
    return RolloutReassembler(plane, **arguments, **{"capture_media": True, **changes})


def drawn(strategy):
    found = []

    @settings(HYPOTHESIS, max_examples=1)
    @given(strategy)
    def draw(value):
        found.append(value)

    draw()
    return found[0]


def test_published_media_are_what_nemo_rl_reads_back():
    kind = MediaKind("bfloat16", 2)
    histories = [drawn(illustrated(kind, rollout_id=f"g_g{index}")) for index in range(3)]
    plane = plane_of(*histories)
    group = reassembler(plane).finalize_group(
        "g",
        ["g_g0", "g_g1", "g_g2"],
        [histories[0].raw_receipt(), None, histories[2].raw_receipt()],
        [1.0, 0.0, 1.0],
        mask_sample=[False] * 3,
        fallback_weight_version=0,
        prompt_idx=0,
    )
    assert set(MEDIA_FIELDS) <= set(group.meta.fields)
    assert group.metrics["finalize/media_row_rate"] == 1.0
    rows = plane.get_samples(
        sample_ids=group.meta.sample_ids, partition_id="train", select_fields=["input_ids", *MEDIA_FIELDS]
    )
    for name in MEDIA_FIELDS:
        shapes = [tag[f"{name}__row_shapes"]["shapes"] for tag in group.meta.tags]
        assert [tag[f"{name}__row_shapes"]["pad"] for tag in group.meta.tags] == [False] * 3
        back = PackedTensor.from_wire(rows[name], shapes)
        assert len(back) == 3
        assert back.logical_segment_counts_by_row() == [1, 0, 1]
        columns = [column for history in (histories[0], histories[2]) for column in staged(history, name)]
        assert torch.equal(back.as_tensor(), torch.cat(columns))
    assert len(rows["input_ids"].unbind()) == 3


def staged(history, name):
    """What a published field consists of, call by call."""
    for call in illustrated_chain(history):
        if name == "num_frames":
            yield torch.ones(call.media["media_imgs_sizes"].shape[1], dtype=torch.int32)
        else:
            yield to_torch(call.media["media_imgs" if name == "pixel_values" else "media_imgs_sizes"])[0]


def test_text_only_partitions_touch_no_media():
    plane = plane_of(drawn(illustrated(rollout_id="g_g0")))
    receipt = drawn(illustrated(rollout_id="g_g0")).raw_receipt()
    assert reassembler(plane, capture_media=False).finalize_rollout("g_g0", receipt, reward=1.0).valid
    assert not [name for asked in plane.asked for name in asked if name.startswith("media")]


def test_a_row_that_is_gone_when_its_media_are_read():
    history = drawn(illustrated())

    class Leaky(Counting):
        def get_samples(self, sample_ids, partition_id, select_fields):
            if set(select_fields) & set(MEDIA_TENSOR_COLUMNS):
                raise KeyError(sample_ids[0])
            return super().get_samples(sample_ids, partition_id, select_fields)

    plane = Leaky()
    for key, row in history.rows().items():
        plane.put_samples(sample_ids=[key], partition_id="staging", fields=row_fields(row))
    rollout = reassembler(plane).finalize_rollout("r", history.raw_receipt(), reward=1.0)
    assert rollout.rejection_reason.startswith("invalid_media_columns")


@HYPOTHESIS
@given(st.data())
def test_routes_are_read_once_more_at_most(data):
    edit = Bytes(data.draw(st.binary(min_size=64, max_size=64)))
    history = data.draw(with_routes(mismatched(edit, data.draw(illustrated(calls=2))), DIMS, share=0.5))
    outcome = ask(OURS, history.finalize(DIRECT)).value
    assert sum("routed_experts" in effect.columns for effect in outcome.effects) <= 2
    agrees(history.finalize(DIRECT))


def test_a_row_of_another_kind_does_not_fit():
    def outcome(media, **options):
        return RolloutOutcome(FinalizedRollout("r", True, None, 1.0, media=media), **options)

    stills, clips = trainer_layout(read_bundle(STILLS)), trainer_layout(read_bundle(CLIPS))
    first = outcome(stills)
    assert fit_into_group(outcome(stills), [outcome(None), first], None).rollout.valid
    assert fit_into_group(outcome(None), [first], None).rollout.valid
    assert fit_into_group(outcome(clips, media_has_frames=True), [], None).rollout.valid
    rejected = fit_into_group(outcome(clips, media_has_frames=True, dims=(3, 2)), [first, first], (1, 1))
    assert rejected.rollout.rejection_reason.startswith("media_group_incompatible")
    assert rejected.dims == (1, 1)
