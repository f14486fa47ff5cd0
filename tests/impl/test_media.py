"""Media of staged rows and published groups in the implementation: the same answers as the spec."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from attrs import asdict
from cases import HYPOTHESIS
from hypothesis import given, settings
from hypothesis import strategies as st

from rollproof.impl.bundles import read_bundle, trainer_layout
from rollproof.impl.columns import column_rows
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.media import fit_into_group
from rollproof.impl.outcomes import FinalizedRow, RolloutOutcome
from rollproof.impl.packed import PackedTensor
from rollproof.impl.patches import image_bundle, video_bundle
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.staged_row import media_columns, staged_row
from rollproof.impl.staging import StagingSink
from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.ours import Ours
from rollproof.properties.adapters.tensors import from_torch, stage_rows, to_torch
from rollproof.properties.strategies.breaks.media import (
    MEDIA,
    ROLLOUT_CODES,
    broken_media,
    illustrated_chain,
    mismatched,
)
from rollproof.properties.strategies.rollouts.media import MediaKind, illustrated, media_histories
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.scalars import Bytes
from rollproof.properties.strategies.streams.media import DIMS, DIRECT, chains, damaged_chains, groups, unverifiable
from rollproof.spec.constants import MEDIA_FIELDS, MEDIA_TENSOR_COLUMNS
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.oracle import answer

OURS = Ours()
IMAGES = [torch.arange(3 * 2 * 4.0).reshape(3, 2, 4), torch.arange(3 * 4 * 2.0).reshape(3, 4, 2) - 5]
STILLS = image_bundle(IMAGES, 2)
CLIPS = video_bundle([torch.ones(2, 3, 2, 2), torch.zeros(1, 3, 2, 4)], 2)


def agrees(request):
    """Check that ours and the spec answer alike, down to the code of a refusal."""
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
    assert not sink.stage(record(root), attachments=CLIPS).ok, "other media under the same key"
    assert sink.stage(record(root), attachments=STILLS).ok
    sink.clear(keys[:1])
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
        assert media_columns(bundle, b"null", dtype).keys() < row.keys()


# ── the reassembler ─────────────────────────────────────────────────────────────────────────────────────────────────


class Counting(MemoryDataPlane):
    """A data plane that counts which media columns are requested."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.asked.append(tuple(select_fields))
        return super().get_samples(sample_ids, partition_id, select_fields)


def plane_of(*histories):
    plane = Counting()
    for history in histories:
        stage_rows(plane, "staging", history.rows())
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
    """Return what a published field consists of, call by call."""
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
    stage_rows(plane, "staging", history.rows())
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
        return RolloutOutcome(FinalizedRow("r", True, None, 1.0, media=media), **options)

    stills, clips = trainer_layout(read_bundle(STILLS)), trainer_layout(read_bundle(CLIPS))
    first = outcome(stills)
    assert fit_into_group(outcome(stills), [outcome(None), first], None).rollout.valid
    assert fit_into_group(outcome(None), [first], None).rollout.valid
    assert fit_into_group(outcome(clips, media_has_frames=True), [], None).rollout.valid
    rejected = fit_into_group(outcome(clips, media_has_frames=True, dims=(3, 2)), [first, first], (1, 1))
    assert rejected.rollout.rejection_reason.startswith("media_group_incompatible")
    assert rejected.dims == (1, 1)
