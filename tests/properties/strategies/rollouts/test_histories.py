"""Valid histories are valid, agree with the spec in every derivation, and show the shapes they promise."""

from __future__ import annotations

import itertools
import math

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from rollproof.properties.strategies import scalars as values
from rollproof.properties.strategies.rollouts.histories import History, histories, rehash
from rollproof.properties.strategies.rollouts.history import layout_digest
from rollproof.properties.strategies.rollouts.worked import WORKED_EXAMPLE, worked_example
from rollproof.spec.digest import call_digest, extras_digest
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted
from rollproof.spec.receipt import parse_receipt
from rollproof.spec.tensor import is_float32
from rollproof.spec.values import is_length

FIND = settings(
    max_examples=4000,
    database=None,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def staged(history: History):
    return [call.staged for call in history.calls]


@given(histories())
def test_a_history_is_valid_and_its_derivations_agree(history):
    receipt = parse_receipt(history.raw_receipt())
    assert receipt == history.receipt()
    row = answer(history.linearize())
    assert isinstance(row, Accepted)
    chain = history.chain()
    assert row.value.model_call_ids == tuple(call.id for call in chain)
    assert row.value.token_ids == tuple(token for call in chain for token in call.staged.token_ids_delta)
    rollout = answer(history.finalize(reward=1)).value.rollout
    assert rollout.valid
    assert rollout.token_ids == row.value.token_ids
    assert set(rollout.staging_keys) == set(history.rows())


@given(histories())
def test_hashes_are_the_specs(history):
    assert rehash(history) == history
    for call in history.calls:
        assert call.staged.digest == call_digest(call.staged) == layout_digest(call.staged)
        assert call.staged.extras_digest == extras_digest(call.extras)


@given(histories(max_calls=3), st.sampled_from(["r", "other", "g_g0"]))
def test_a_renamed_history_is_valid_under_its_new_id(history, rollout_id):
    renamed = history.renamed(rollout_id)
    assert answer(renamed.finalize()).value.rollout.valid
    assert all(key.startswith(f"{rollout_id}/") for key in renamed.rows())


def test_rehash_makes_an_edited_history_valid_again():
    first = WORKED_EXAMPLE.calls[0]
    edited = WORKED_EXAMPLE.with_call(evolve(first, staged=evolve(first.staged, token_ids_delta=(7, 7, 7, 7))))
    assert not answer(edited.finalize()).value.rollout.valid
    assert answer(rehash(edited).finalize()).value.rollout.token_ids == (7, 7, 7, 7, 20, 21, 22)


def test_the_worked_example():
    rollout = answer(WORKED_EXAMPLE.finalize(reward=1.0)).value.rollout
    assert (rollout.prompt_len, len(rollout.token_ids), rollout.min_wv, rollout.max_wv) == (2, 7, 4, 4)
    mixed = answer(worked_example(second_version=5).finalize()).value.rollout
    assert (mixed.min_wv, mixed.max_wv) == (4, 5)


def test_the_smallest_history_reads_well():
    smallest = find(histories(), lambda _: True)
    assert (smallest.rollout_id, [call.id for call in smallest.calls]) == ("r", ["c0"])
    assert smallest.calls[0].staged.token_ids_delta == (0,)
    assert list(smallest.raw_receipt()) == ["rollout_id", "terminal_model_call_id", "terminal_selection", "manifest"]


def parents_of(history):
    return [call.parent_call_id for call in staged(history)]


def chain_ids(history):
    return [call.id for call in history.chain()]


SHAPES = {
    "several roots": lambda h: parents_of(h).count(None) > 1,
    "several extended roots": lambda h: len({c.staged.parent_call_id for c in h.calls} & roots(h)) > 1,
    "a branch": lambda h: len(set(parents_of(h)) - {None}) < len(parents_of(h)) - parents_of(h).count(None),
    "a dead branch": lambda h: len(h.chain()) < len(h.calls),
    "a chain of all calls": lambda h: len(h.chain()) == len(h.calls) == 5,
    "a retry with equal tokens": lambda h: any(
        a.parent_call_id == b.parent_call_id and a.token_ids_delta == b.token_ids_delta != (0,)
        for a, b in itertools.combinations(staged(h), 2)
    ),
    "a falling weight version": lambda h: any(
        a.staged.weight_version > b.staged.weight_version for a, b in itertools.pairwise(h.chain())
    ),
    "a weight version beyond float64": lambda h: any(call.weight_version > 2**53 for call in staged(h)),
    "an empty prompt": lambda h: h.chain()[0].staged.token_mask_delta[0] == 1.0,
    "a call of one token": lambda h: any(call.delta_len == 1 for call in staged(h)),
    "a child without carry": lambda h: any(c.parent_call_id and 0.0 not in c.token_mask_delta for c in staged(h)),
    "a child before its parent": lambda h: any(
        c.staged.parent_call_id in [later.id for later in h.calls[at:]] for at, c in enumerate(h.calls)
    ),
    "an inner terminal": lambda h: h.terminal_call_id in parents_of(h),
    "a terminal that is not the last": lambda h: h.terminal_call_id != h.calls[-1].id,
    "a slash in a call id": lambda h: "/" in h.calls[0].id,
    "a long id": lambda h: len(h.calls[0].id) > 255,
    "an id beyond ASCII": lambda h: not h.calls[0].id.isascii() and not h.rollout_id.isascii(),
    "NUL as an id": lambda h: "\x00" in [call.id for call in h.calls] and "\x00" in parents_of(h),
    "the largest token id": lambda h: any(2**63 - 1 in call.token_ids_delta for call in staged(h)),
    "a positive log-probability": lambda h: any(max(c.generation_log_probs_delta) > 0 for c in staged(h)),
    "a generated -0.0": lambda h: any(
        math.copysign(1, lp) < 0 and lp == 0 for c in staged(h) for lp in c.generation_log_probs_delta
    ),
    "a denormal": lambda h: any(0 < abs(lp) < 1e-38 for c in staged(h) for lp in c.generation_log_probs_delta),
    "the largest float32": lambda h: any(-values.MAX_FLOAT32 in c.generation_log_probs_delta for c in staged(h)),
    "a log-probability of seven digits": lambda h: any(
        float(f"{lp:.6g}") != lp for c in staged(h) for lp in c.generation_log_probs_delta
    ),
    "nested extras": lambda h: any(call.extras and "tool" in call.extras for call in h.calls),
    "stamps as int and float": lambda h: {int, float} <= {type(call.admitted_at) for call in h.calls},
    "fingerprints": lambda h: any(call.output_fingerprint for call in h.calls),
    "versions written out": lambda h: "schema_version" in h.raw_receipt() and "mode" in h.raw_receipt()["manifest"][0],
    "a reward of the receipt's own": lambda h: h.reward is not None,
    "a witness disagreement": lambda h: "witness_disagreement" in (h.terminal_attribution_reason or ""),
}


def roots(history):
    return {call.id for call in history.calls if call.staged.parent_call_id is None}


@pytest.mark.parametrize("shape", SHAPES)
def test_histories_have_this_shape(shape):
    assert find(histories(), SHAPES[shape], settings=FIND)


@given(
    histories(rollout_id="x", min_calls=3, max_calls=3, min_chain=3, max_carry=0, min_generation=2, max_generation=2)
)
def test_arguments_are_kept(history):
    assert history.rollout_id == "x"
    assert len(history.calls) == 3
    assert len(history.path(max(history.calls, key=lambda call: call.staged.cum_len).id)) == 3
    assert all(call.staged.token_mask_delta == (1.0, 1.0) for call in history.calls)


@given(histories(extras=st.just({"own": 1}), rollout_id=st.sampled_from(["a", "b"])))
def test_extras_and_ids_may_be_strategies(history):
    assert all(call.extras == {"own": 1} for call in history.calls)
    assert history.rollout_id in "ab"


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_calls": 0},
        {"min_calls": 3, "max_calls": 2},
        {"max_calls": 2.0},
        {"max_calls": True},
        {"max_calls": 1000},
        {"max_carry": -1},
        {"min_generation": 0},
        {"min_chain": 2},
        {"rollout_id": ""},
        {"rollout_id": "a/b"},
    ],
)
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(InvalidArgument, match=next(iter(arguments)).removeprefix("min_").removeprefix("max_")):
        histories(**arguments)


@given(st.binary(max_size=8))
def test_values_are_inside_their_domains(data):
    assert is_length(values.token_id(values.Bytes(data)))
    assert is_length(values.weight_version(values.Bytes(data)))
    assert is_float32(values.log_prob(values.Bytes(data)))


@given(values.json_objects())
def test_json_objects_have_a_digest(extras):
    assert len(extras_digest(extras)) == 64


@given(values.rewards())
def test_usable_rewards_are_published(reward):
    rollout = answer(WORKED_EXAMPLE.finalize(reward=reward)).value.rollout
    assert rollout.valid


@given(values.unusable_rewards())
def test_unusable_rewards_reject(reward):
    rollout = answer(WORKED_EXAMPLE.finalize(reward=reward)).value.rollout
    assert rollout.rejection_reason.startswith("invalid_reward")
