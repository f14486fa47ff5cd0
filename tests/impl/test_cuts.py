"""Generation cuts over data planes: what is put, promised, taken back, restored and completed (section 11)."""

from __future__ import annotations

import threading

import pytest
import torch
from attrs import define, evolve, field

from rollproof.impl.cuts import CutStore, Generation
from rollproof.impl.dataplane.memory import MemoryDataPlane
from rollproof.impl.reassembler import RolloutReassembler
from rollproof.impl.retained import CallMedia
from rollproof.impl.staging import StagingSource
from rollproof.properties.strategies.rollouts.staged_calls import raw_receipt
from rollproof.spec.cut_records import CutOrder, DurableFailure, DurablePrefix, RunningCall
from rollproof.spec.rejections import Code, Rejected

pytestmark = pytest.mark.xdist_group("ray")

STAGING = "staging"
CALL = RunningCall("g_g0", "c1", None, None, (), (10, 11))
ORDER = CutOrder("step_1", 16)
IDS, LOG_PROBS = tuple(range(20, 28)), tuple(-0.125 * (index + 1) for index in range(8))


@define(eq=False, slots=False)
class Spying:
    """A data plane that keeps what was put, and does something in the middle of a put."""

    inner: MemoryDataPlane = field(factory=MemoryDataPlane)
    puts: list[list[str]] = field(factory=list)
    gets: int = 0
    meanwhile: object = None

    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        self.puts.append(list(sample_ids))
        self.inner.put_samples(sample_ids, partition_id, fields, tags)
        if self.meanwhile is not None:
            self.meanwhile()

    def get_samples(self, sample_ids, partition_id, select_fields):
        self.gets += 1
        return self.inner.get_samples(sample_ids, partition_id, select_fields)

    def clear_samples(self, sample_ids, partition_id):
        self.inner.clear_samples(sample_ids, partition_id)


def append(generation, start, end, version=4):
    text = "".join(chr(97 + index) for index in range(start, end)).encode()
    generation.append(IDS[start:end], LOG_PROBS[start:end], version, text)


def cut_at(store, *places, call=CALL, media=None):
    """Return a call that was cut at these places, and the last acknowledgement."""
    generation, before, acknowledged = Generation(call), 0, None
    for place in places:
        append(generation, before, place)
        acknowledged = store.cut(generation, ORDER, media)
        assert isinstance(acknowledged, DurablePrefix), acknowledged
        before = place
    return generation, acknowledged


def staged_ids(plane):
    return plane.sample_ids(STAGING)


def published(plane, record):
    """Return the row that a group of one rollout publishes, without its tags."""
    reassembler = RolloutReassembler(
        plane, partition_id="train", staging_partition=STAGING, pad_token_id=0, max_seq_len=64
    )
    receipts = [raw_receipt([record], reward=1.0)]
    reassembler.finalize_group(
        "g", ["g_g0"], receipts, [1.0], mask_sample=[False], fallback_weight_version=0, prompt_idx=0
    )
    names = ["input_ids", "token_mask", "generation_logprobs", "sample_mask"]
    answer = plane.get_samples(["g_g0"], "train", names)
    return {name: answer.get(name)[0].tolist() for name in names}


def uninterrupted():
    plane = MemoryDataPlane()
    generation = Generation(CALL)
    append(generation, 0, 8)
    return published(plane, CutStore(plane, STAGING).complete(generation, "c1").record)


@pytest.fixture(params=["memory", "queue"])
def plane(request):
    if request.param == "memory":
        yield MemoryDataPlane()
        return
    queue = request.getfixturevalue("queue")
    yield queue
    for partition in (STAGING, "train"):
        queue.clear_samples(None, partition)


@pytest.mark.parametrize("places", [(1,), (3, 4, 7), tuple(range(1, 9))])
def test_a_restored_call_trains_as_one_that_was_never_cut(plane, places):
    _, acknowledged = cut_at(CutStore(plane, STAGING), *places)
    store = CutStore(plane, STAGING)
    restored = store.restore(CALL, acknowledged, weight_version=5)
    assert restored.token_ids.tolist() == [10, 11, *IDS[: places[-1]]]
    assert restored.tokens_left == 16 - places[-1]
    append(restored.generation, places[-1], 8, version=5)
    completed = store.complete(restored.generation, "c1-again")
    assert (completed.failed_clears, completed.record.weight_version) == (0, 4)
    assert staged_ids(plane) == [completed.staging_key] == ["g_g0/c1-again"]
    assert published(plane, completed.record) == uninterrupted()


def test_calls_are_cut_by_one_put_of_what_is_new():
    plane = Spying()
    store = CutStore(plane, STAGING)
    generations = [Generation(evolve(CALL, model_call_id=name)) for name in ("a", "b", "c")]
    for length, generation in enumerate(generations[:2], start=1):
        append(generation, 0, length)
    answers = store.cut_all([(generation, ORDER, None) for generation in generations])
    assert [isinstance(answer, DurablePrefix) for answer in answers] == [True, True, False]
    append(generations[1], 2, 4)
    store.cut_all([(generation, ORDER, None) for generation in generations[:2]])
    keys = [f"__generation_cut__/step_1/g_g0/{name}/{sequence}" for name, sequence in (("a", 0), ("b", 0), ("b", 1))]
    assert plane.puts == [keys[:2], keys[2:]]
    lengths = StagingSource(plane, STAGING).read(keys, ["delta_len"]).get("delta_len")
    assert lengths.reshape(-1).tolist() == [3, 4, 2]


def test_a_failed_put_fails_every_call_of_it_and_leaves_nothing():
    plane = Spying()
    store = CutStore(plane, STAGING)
    generations = [Generation(evolve(CALL, model_call_id=name)) for name in "ab"]
    for generation in generations:
        append(generation, 0, 2)

    def fail():
        raise TimeoutError("no answer")

    plane.meanwhile = fail
    answers = store.cut_all([(generation, ORDER, None) for generation in generations])
    assert answers == [DurableFailure()] * 2
    assert "TimeoutError" in answers[0].reason
    assert not staged_ids(plane.inner)
    plane.meanwhile = None
    append(generations[0], 2, 3)
    acknowledged = store.cut(generations[0], ORDER)
    assert store.restore(generations[0].call, acknowledged, weight_version=4).token_ids.tolist() == [10, 11, *IDS[:3]]


def test_tokens_that_arrive_during_a_put_belong_to_the_next_cut():
    plane = Spying()
    store, generation = CutStore(plane, STAGING), Generation(CALL)
    append(generation, 0, 2)
    plane.meanwhile = lambda: append(generation, len(generation.token_ids), len(generation.token_ids) + 1, version=6)
    assert store.cut(generation, ORDER).prefix_token_count == 2
    plane.meanwhile = None
    second = store.cut(generation, ORDER)
    assert second.prefix_token_count == 3
    restored = store.restore(CALL, second, weight_version=6)
    assert (restored.token_ids.tolist(), restored.weight_version) == ([10, 11, *IDS[:3]], 4)


def test_a_cut_during_a_cut_is_a_failure():
    plane = Spying()
    store, generation, inner = CutStore(plane, STAGING), Generation(CALL), []
    append(generation, 0, 2)
    plane.meanwhile = lambda: inner.append(store.cut(generation, ORDER))
    outer = store.cut(generation, ORDER)
    assert (inner, outer.prefix_token_count) == ([DurableFailure()], 2)
    assert len(plane.puts) == 1
    twice = store.cut_all([(generation, ORDER, None), (generation, ORDER, None)])
    assert [isinstance(answer, DurablePrefix) for answer in twice] == [True, False]


def test_a_completion_waits_for_a_cut():
    plane = Spying()
    store, generation, done = CutStore(plane, STAGING), Generation(CALL), []
    append(generation, 0, 2)
    completing = threading.Thread(target=lambda: done.append(store.complete(generation, "c1")))
    plane.meanwhile = lambda: plane.puts[1:] or completing.start()
    assert isinstance(store.cut(generation, ORDER), DurablePrefix)
    completing.join(10)
    assert [completed.failed_clears for completed in done] == [0]
    assert staged_ids(plane.inner) == ["g_g0/c1"]


def test_a_restore_is_one_read():
    plane = Spying()
    _, acknowledged = cut_at(CutStore(plane, STAGING), 1, 2, 3)
    before = plane.gets
    CutStore(plane, STAGING).restore(CALL, acknowledged, weight_version=4)
    assert plane.gets == before + 1


def test_an_outage_of_a_restore_is_not_a_missing_chunk():
    plane = Spying()
    _, acknowledged = cut_at(CutStore(plane, STAGING), 1)

    def fail(*_, **__):
        raise ConnectionError("down")

    plane.get_samples = fail
    with pytest.raises(ConnectionError):
        CutStore(plane, STAGING).restore(CALL, acknowledged, weight_version=4)


def test_a_worker_that_was_replaced_completes_its_own_call_or_none(plane):
    stale, acknowledged = cut_at(CutStore(plane, STAGING), 2)
    store = CutStore(plane, STAGING)
    restored = store.restore(CALL, acknowledged, weight_version=4)
    append(restored.generation, 2, 8)
    append(stale, 2, 3)
    first = store.complete(restored.generation, "c2")
    with pytest.raises(ValueError, match="another call is staged under this key"):
        store.complete(stale, "c2")
    assert store.complete(restored.generation, "c2") == first
    assert store.complete(stale, "c3").staging_key == "g_g0/c3"
    assert staged_ids(plane) == ["g_g0/c2", "g_g0/c3"]
    assert published(plane, first.record) == uninterrupted()


def test_a_worker_that_was_replaced_and_cuts_again_makes_the_other_restore_nothing(plane):
    stale, acknowledged = cut_at(CutStore(plane, STAGING), 2)
    store = CutStore(plane, STAGING)
    other = store.restore(CALL, acknowledged, weight_version=4).generation
    append(other, 2, 4)
    promise = store.cut(other, ORDER)
    stale.append([99], [-0.5], 4, b"x")
    store.cut(stale, ORDER)
    with pytest.raises(Rejected) as caught:
        store.restore(CALL, promise, weight_version=4)
    assert caught.value.code is Code.TOKEN_COUNT
    assert store.restore(CALL, acknowledged, weight_version=4).tokens_left == 14


def test_a_failed_clear_is_counted_and_not_fatal():
    plane = Spying()
    store = CutStore(plane, STAGING)
    generation, _ = cut_at(store, 2)

    def fail(*_, **__):
        raise ConnectionError("down")

    plane.clear_samples = fail
    assert store.complete(generation, "c1").failed_clears == 1
    assert "g_g0/c1" in staged_ids(plane.inner)


def media_of(value):
    item = {
        "modality": "image",
        "placeholder_offset": 0,
        "placeholder_length": 1,
        "placeholder_digest": "6ec91ed8b8a2d60d7b1eeaaa7d4a8bf2ea4b5b2b94f1ea8bc9e4b21b8ab12bc3",
        "token_id": 10,
        "embedding_spans": [[0, 1]],
        "imgs_sizes": [[2, 2]],
    }
    pixels = torch.full((1, 4, 3), value, dtype=torch.bfloat16)
    return CallMedia([item], {"imgs": pixels, "imgs_sizes": torch.tensor([[2, 2]])})


def test_pixels_are_staged_once_and_only_the_ones_that_the_cut_saw_are_continued():
    plane = MemoryDataPlane()
    store = CutStore(plane, STAGING, torch.bfloat16)
    media = media_of(0.5)
    _, acknowledged = cut_at(store, 2, 4, media=media)
    columns = ["media_present", "media_imgs"]
    chunks = StagingSource(plane, STAGING).read(list(acknowledged.staging_keys), columns)
    assert not chunks.get("media_present").any()
    assert sum(row.numel() for row in chunks.get("media_imgs").unbind()) == 2
    with pytest.raises(Rejected) as caught:
        store.restore(CALL, acknowledged, weight_version=4, fresh=media_of(0.25))
    assert caught.value.code is Code.RETAINED_MEDIA_CHANGED
    fresh = media_of(0.5)
    restored = store.restore(CALL, acknowledged, weight_version=4, fresh=fresh)
    assert restored.media is fresh
    key = store.complete(restored.generation, "c2", restored.media).staging_key
    final = StagingSource(plane, STAGING).read([key], columns)
    assert final.get("media_imgs")[0].numel() == 12


def test_a_restored_prefix_has_the_routes_of_one_prefill_or_none():
    routes = torch.arange(16, dtype=torch.int16).reshape(8, 1, 2)
    for prefills, kept in (([(0, 6)], True), ([(0, 3), (3, 8)], False)):
        plane = MemoryDataPlane()
        store = CutStore(plane, STAGING)
        _, acknowledged = cut_at(store, 4)
        generation = store.restore(CALL, acknowledged, weight_version=4).generation
        append(generation, 4, 6)
        key = store.complete(generation, "c2", routes=routes, prefills=prefills).staging_key
        (staged,) = StagingSource(plane, STAGING).read([key], ["routed_experts"]).get("routed_experts").unbind()
        assert torch.equal(staged[[0, 1, 6, 7]], routes[[0, 1, 6, 7]])
        assert torch.equal(staged[2:6], routes[2:6]) if kept else bool((staged[2:6] == -1).all())


def test_an_abandoned_call_leaves_nothing(plane):
    store = CutStore(plane, STAGING)
    generation, _ = cut_at(store, 2, 3)
    assert store.abandon(generation) == 0
    assert not staged_ids(plane)


@pytest.mark.parametrize(
    ("arguments", "named"), [((object(), STAGING), "dp_client"), ((MemoryDataPlane(), ""), "staging_partition")]
)
def test_wrong_arguments_are_refused(arguments, named):
    with pytest.raises(ValueError, match=named):
        CutStore(*arguments)
