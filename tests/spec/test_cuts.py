"""Section 11: chunks, their acknowledgement, and what completion leaves behind."""

from __future__ import annotations

import pytest
from attrs import define, evolve

from rollproof.spec.chunks import capture_key, cut_key, ends_inside_character, parse_cut_key
from rollproof.spec.cut_records import CutKey, CutOrder, DurableFailure, RunningCall
from rollproof.spec.cut_restore import restore_cut, restored_routes
from rollproof.spec.cuts import Generation, Partition, abandon, complete, cut
from rollproof.spec.plane import Clear, DataPlane, Outage, Put
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.retained import CallMedia
from rollproof.spec.tensor import Tensor, to_float32

CALL = RunningCall("g7_g0", "c1", None, None, (), (10, 11))
KEYS = tuple(f"__generation_cut__/ck/g7_g0/c1/{sequence}" for sequence in range(2))
ORDER = CutOrder("ck", 10)
STAGING = Partition()
NO_MEDIA = CallMedia()


@define
class Plane(DataPlane):
    """Holds what is put, unless it is to fail."""

    failing: bool = False

    def put(self, partition, sample_ids, rows):
        super().put(partition, sample_ids, rows)
        self.rows = {**self.rows, **{key: row.columns for key, row in zip(sample_ids, rows, strict=True)}}
        if self.failing:
            raise Outage("the answer was lost")


def cut_twice(plane):
    generation = Generation(CALL).with_tokens((12,), (to_float32(-0.1),), b"a", 4)
    _, generation = cut(generation, ORDER, None, plane, STAGING)
    return cut(generation.with_tokens((13,), (to_float32(-0.2),), b"b", 4), ORDER, None, plane, STAGING)


def test_the_worked_example_has_the_contracts_digests():
    acknowledged, generation = cut_twice(Plane())
    assert [chunk.digest for chunk in generation.chunks] == [
        "c24e1b17c42058f717d196df469fa52797f548d5bbed37a04758b07a49d7be52",
        "2d1e93878c3bdbb0714583231e2fc7fabf7b01171ee697d974f964f2f81471fd",
    ]
    assert acknowledged.prefix_digest == "8322169f99c30b020056435990f22f78b9ac97aeb2989928bc4c68f543976e61"
    assert acknowledged.staging_keys == KEYS
    assert acknowledged.prefix_token_count == 2


def test_a_cut_stages_only_what_is_new():
    plane = Plane()
    cut_twice(plane)
    rows = [row.columns["token_ids_delta"].values() for put in plane.effects for row in put.rows]
    assert rows == [(10, 11, 12), (13,)]


def test_a_restored_call_goes_on_where_it_was_cut():
    plane = Plane()
    acknowledged, _ = cut_twice(plane)
    restored = restore_cut(CALL, acknowledged, NO_MEDIA, 5, plane, STAGING)
    assert (restored.token_ids, restored.token_mask) == ((10, 11, 12, 13), (0.0, 0.0, 1.0, 1.0))
    assert (restored.tokens_left, restored.weight_version, restored.media) == (8, 4, None)
    generation = restored.generation.with_tokens((14,), (-0.5,), b"c", 5)
    final, failed = complete(generation, "c2", None, plane, STAGING)
    assert (final.token_ids_delta, final.weight_version, failed) == ((10, 11, 12, 13, 14), 4, 0)
    assert final.generation_log_probs_delta[2:] == (to_float32(-0.1), to_float32(-0.2), -0.5)
    assert isinstance(plane.effects[-2], Put)
    assert plane.effects[-1] == Clear("staging", KEYS)
    assert set(plane.rows) == {"g7_g0/c2"}


def test_a_failed_put_is_taken_back_and_its_tokens_stay_in_front():
    plane = Plane(failing=True)
    acknowledged, generation = cut_twice(plane)
    assert acknowledged == DurableFailure()
    assert generation.pending_ids == (12, 13)
    assert not plane.rows
    plane.failing = False
    acknowledged, generation = cut(generation, ORDER, None, plane, STAGING)
    assert acknowledged.staging_keys == KEYS[:1]
    assert acknowledged.prefix_digest == "8322169f99c30b020056435990f22f78b9ac97aeb2989928bc4c68f543976e61"


def test_a_cut_without_new_tokens_writes_nothing():
    plane = Plane()
    before, generation = cut_twice(plane)
    writes = list(plane.effects)
    terminal = evolve(ORDER, terminal=True, finish_reason="stop")
    after, same = cut(generation, terminal, None, plane, STAGING)
    assert (same, plane.effects) == (generation, writes)
    assert after == evolve(before, terminal=True, finish_reason="stop")


@pytest.mark.parametrize(
    ("generation", "order"),
    [
        (Generation(CALL), ORDER),
        (Generation(CALL).with_tokens((12,), (), b"a", 4), ORDER),
        (Generation(CALL).with_tokens((12,), (-0.5, -0.5), b"a", 4), ORDER),
        (Generation(CALL).with_tokens((12,), (-0.5, -0.5), b"a", 4).with_tokens((13, 14), (-0.5,), b"b", 4), ORDER),
        (Generation(CALL).with_tokens((12,), (-0.5,), "é".encode()[:1], 4), ORDER),
        (Generation(CALL).with_tokens((12,), (-0.5,), b"a", 4), evolve(ORDER, effective_output_limit=None)),
        (Generation(CALL).with_tokens((12,), (-0.5,), b"a", 4), evolve(ORDER, effective_output_limit=0)),
        (Generation(CALL).with_tokens((12,), (-0.5,), b"a", 4), evolve(ORDER, finish_reason="stop")),
        (
            Generation(CALL).with_tokens((12,), (-0.5,), b"a", 4),
            evolve(ORDER, terminal=True, finish_reason="abort"),
        ),
        (Generation(CALL).with_tokens((12,), (-0.5,), b"a", 4), evolve(ORDER, checkpoint="a/b")),
        (Generation(evolve(CALL, model_call_id="a/b")).with_tokens((12,), (-0.5,), b"a", 4), ORDER),
        (Generation(CALL).with_tokens((2**63,), (-0.5,), b"a", 4), ORDER),
    ],
)
def test_what_cannot_be_cut_is_a_failure_and_writes_nothing(generation, order):
    plane = Plane()
    assert cut(generation, order, None, plane, STAGING) == (DurableFailure(), generation)
    assert not plane.effects


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (b"", False),
        (b"a", False),
        ("é".encode(), False),
        ("é".encode()[:1], True),
        ("€".encode()[:2], True),
        ("😀".encode()[:3], True),
        (b"\xe0\x80", False),
        (b"\xed\xa0", False),
        (b"\xff", False),
        (b"\x80", False),
        (b"\xf4\x90", False),
        (b"\xf4\x8f", True),
    ],
)
def test_text_ends_inside_a_character_that_may_still_become_whole(text, inside):
    assert ends_inside_character(text) is inside


def test_keys_have_one_spelling():
    key = CutKey("ck", capture_key("r", 2), "c", 10)
    assert cut_key(key) == "__generation_cut__/ck/r-a2/c/10"
    assert parse_cut_key(cut_key(key)) == key
    assert capture_key("r") == "r"


@pytest.mark.parametrize(
    "key",
    [
        "__generation_cut__/ck/r/c",
        "__generation_cut__/ck/r/c/01",
        "__generation_cut__/ck/r/c/",
        "__generation_cut__/ck/r/c/-1",
        "__generation_cut__/ck/r/c/+1",
        "__generation_cut__/ck/r/c/1\n",
        "__generation_cut__/ck/r/c/\u0661",
        "__generation_cut__/ck/r/a/b/0",
        "__generation_cut__//r/c/0",
        "__generation_cut__/ck//c/0",
        "__generation_cut__/ck/r//0",
        "__generation_cut__/ck/__generation_cut__/c/0",
        "r/ck/r/c/0",
        "",
        None,
        0,
    ],
)
def test_other_keys_are_not_read(key):
    with pytest.raises(ValueError, match="expected"):
        parse_cut_key(key)


def lost(plane, acknowledged):
    plane.clear("staging", KEYS[:1])
    return acknowledged


def swapped(plane, acknowledged):
    plane.rows = {KEYS[0]: plane.rows[KEYS[1]], KEYS[1]: plane.rows[KEYS[0]]}
    return acknowledged


def repeated(plane, acknowledged):
    plane.rows = {**plane.rows, KEYS[1]: plane.rows[KEYS[0]]}
    return acknowledged


def key_twice(_, acknowledged):
    return evolve(acknowledged, staging_keys=(KEYS[0], KEYS[0]))


def dropped(_, acknowledged):
    return evolve(acknowledged, staging_keys=KEYS[:1])


def overwritten(plane, acknowledged):
    generation = Generation(CALL).with_tokens((12,), (to_float32(-0.1),), b"a", 4)
    _, generation = cut(generation, ORDER, None, plane, STAGING)
    cut(generation.with_tokens((99,), (to_float32(-0.2),), b"b", 4), ORDER, None, plane, STAGING)
    return acknowledged


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lost, Code.CUT_CHUNK_MISSING),
        (swapped, Code.CUT_MASK_ORDER),
        (repeated, Code.CUT_MASK_ORDER),
        (key_twice, Code.CUT_IDENTITY_MISMATCH),
        (dropped, Code.TOKEN_COUNT),
        (overwritten, Code.RETAINED_PREFIX_CHANGED),
        (lambda _, given: evolve(given, staging_keys=()), Code.CUT_CHUNK_MISSING),
        (lambda _, given: evolve(given, prefix_token_count=3), Code.TOKEN_COUNT),
        (lambda _, given: evolve(given, prefix_digest="0" * 64), Code.RETAINED_PREFIX_CHANGED),
        (lambda _, given: evolve(given, effective_output_limit=1), Code.CUT_LIMIT_EXCEEDED),
    ],
)
def test_restore_refuses_what_is_not_what_was_acknowledged(change, code):
    plane = Plane()
    acknowledged, _ = cut_twice(plane)
    acknowledged = change(plane, acknowledged)
    with pytest.raises(Rejected) as caught:
        restore_cut(CALL, acknowledged, NO_MEDIA, 4, plane, STAGING)
    assert caught.value.code is code


def test_restore_refuses_chunks_of_newer_weights():
    plane = Plane()
    acknowledged, _ = cut_twice(plane)
    with pytest.raises(Rejected) as caught:
        restore_cut(CALL, acknowledged, NO_MEDIA, 3, plane, STAGING)
    assert caught.value.code is Code.CUT_VERSION_ORDER


def test_an_abandoned_call_leaves_nothing():
    plane = Plane()
    _, generation = cut_twice(plane)
    assert abandon(generation, plane, STAGING) == 0
    assert not plane.rows
    assert abandon(Generation(CALL), plane, STAGING) == 0
    assert plane.effects.count(Clear("staging", KEYS)) == 1


def test_a_restored_prefix_has_the_routes_of_one_prefill_or_none():
    routes = Tensor.of("int16", range(8), (4, 1, 2))
    assert restored_routes(routes, 1, 3, [(0, 4)]) == restored_routes(routes, 1, 3, [(1, 3)]) == routes
    masked = restored_routes(routes, 1, 3, [(0, 2), (2, 4)])
    assert masked.values() == (0, 1, -1, -1, -1, -1, 6, 7)
