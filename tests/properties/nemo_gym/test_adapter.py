"""nemo-gym as an implementation: it agrees where it should, and every known deviation is itself and nothing else."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

pytest.importorskip("nemo_gym.token_id_capture.staging")

from rollproof.properties.adapters.asking import ask, long_chain
from rollproof.properties.nemo_gym import adapter
from rollproof.properties.nemo_gym.adapter import NemoGym
from rollproof.properties.nemo_gym.examples import EXAMPLES, ROOT, area_of, call, receipt, rollout
from rollproof.properties.nemo_gym.layout import layout_extras_digest
from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.recipes import Nest, realize, realize_request
from rollproof.spec.digest import call_digest, extras_digest
from rollproof.spec.judge.catalogue import CATALOGUE
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    CallDigest,
    ChainDigest,
    Crashed,
    DecodeRoutes,
    ExtrasDigest,
    Linearize,
    LinearizeGrowth,
    ParseReceipt,
    PrefixDigest,
    Refused,
    Request,
    SelectTerminal,
)
from rollproof.spec.judge.rules.records import GOLDEN
from rollproof.spec.tensor import Tensor

NEMO_GYM = NemoGym()
MINUS_ZERO_MASK = {"token_mask_delta": (-0.0, 1.0)}
FLOAT64 = {"generation_log_probs_delta": (0.0, -0.1)}


def both(request: Request) -> tuple[Answer, Answer]:
    return answer(realize_request(request)), ask(NEMO_GYM, realize_request(request))


def explanations(request: Request, expected: Answer, actual: Answer) -> set[str]:
    return {known.id for known in NemoGym.deviations if known.explains(request, expected, actual)}


def complaints(request: Request, expected: Answer, actual: Answer) -> list[str]:
    found = (item.check(request, expected, actual) for item in CATALOGUE if item.covers(request))
    return [complaint for complaint in found if complaint is not None]


# ── agreement ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("request_", "value"), GOLDEN)
def test_golden_values(request_: Request, value: str) -> None:
    assert both(request_) == (Accepted(value), Accepted(value))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_valid_histories_agree(history: Any) -> None:
    request = history.linearize()
    requests = [
        request,
        ParseReceipt(history.raw_receipt()),
        SelectTerminal(request.receipt.manifest),
        *(CallDigest(one) for one in request.calls),
        *(PrefixDigest(one.token_ids_delta) for one in request.calls),
        *(ChainDigest(one.chain_hash, one.token_ids_delta) for one in request.calls),
    ]
    for one in requests:
        expected, actual = both(one)
        assert isinstance(expected, Accepted)
        assert complaints(one, expected, actual) == []


AGREED_REFUSALS = [
    PrefixDigest((2**64,)),
    PrefixDigest((True,)),
    ChainDigest("A" * 64, (1,)),
    ExtrasDigest([]),
    ExtrasDigest({"": float("nan")}),
    ExtrasDigest({"": ()}),
    ExtrasDigest({"": "\ud800"}),
    ExtrasDigest({"": 2**63}),
    CallDigest(evolve(ROOT, mode="token_in")),
    CallDigest(evolve(ROOT, weight_version=2**64)),
    CallDigest(evolve(ROOT, generation_log_probs_delta=(0.0, 4e38))),
    CallDigest(evolve(ROOT, generation_log_probs_delta=(1e-300, -0.5))),
    CallDigest(evolve(ROOT, token_mask_delta=(0.0, 0.5))),
    receipt(reward="high"),
    receipt(reward=float("inf")),
    receipt(reward=10**400),
    receipt(capture_poisoned=2),
    receipt(schema_version="2"),
    receipt(manifest=None),
    receipt(unknown=1),
    receipt({"prev_len": 2**63, "delta_len": 1, "cum_len": 2**63}),
    ParseReceipt("{}"),
    rollout(evolve(call(), digest="1" * 64)),
    rollout(call(token_mask_delta=(1.0, 0.0), generation_log_probs_delta=(-0.5, 0.0))),
    rollout(call(token_mask_delta=(0.0, 0.0), generation_log_probs_delta=(0.0, 0.0))),
    rollout(evolve(call(), weight_version=True)),
]


@pytest.mark.parametrize("request_", AGREED_REFUSALS, ids=repr)
def test_refusals_agree(request_: Request) -> None:
    expected, actual = both(request_)
    assert isinstance(expected, Refused)
    assert isinstance(actual, Refused)
    assert complaints(request_, expected, actual) == []
    assert explanations(request_, expected, actual) == set()


# ── known deviations, by their smallest inputs ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "request_"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_deviation_shows_and_is_told_apart(name: str, request_: Request) -> None:
    expected, actual = both(request_)
    assert complaints(request_, expected, actual)
    assert explanations(request_, expected, actual) == {name}


@pytest.mark.parametrize(("name", "request_"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_a_deviation_excuses_no_other_answer(name: str, request_: Request) -> None:
    expected, actual = both(request_)
    others: list[Answer] = [Crashed("KeyError"), expected]
    if not isinstance(actual, Crashed):
        others += [Accepted("f" * 64), Refused("unsupported_schema"), Accepted(None)]
    if isinstance(request_, CallDigest | ExtrasDigest):
        others.append(Accepted(with_first_digit_changed(actual)))
    if isinstance(actual, Accepted) and isinstance(request_, DecodeRoutes):
        others += [
            Accepted(evolve(actual.value, data=bytes(255 - byte for byte in actual.value.data))),
            Accepted(other_shape(actual)),
        ]
    if isinstance(actual, Accepted) and isinstance(request_, ParseReceipt):
        others.append(Accepted(evolve(actual.value, reward=0.25)))
    if isinstance(actual, Accepted) and isinstance(request_, Linearize):
        others.append(Accepted(evolve(actual.value, prompt_len=actual.value.prompt_len + 1)))
    for other in others:
        assert explanations(request_, expected, other) == set(), other


def test_every_example_belongs_to_a_declared_deviation() -> None:
    shown = {(name, area_of(request)) for name, request in EXAMPLES}
    assert {(known.id, known.area) for known in NemoGym.deviations} == shown


def with_first_digit_changed(actual: Answer) -> str:
    """Return another digest than was answered."""
    digest = actual.value if isinstance(actual, Accepted) else "0" * 64
    return ("1" if digest[0] == "0" else "0") + digest[1:]


def other_shape(actual: Accepted) -> Tensor:
    """Return the tensor that was answered, with a dimension more."""
    return evolve(actual.value, shape=(*actual.value.shape, 1))


TWO_CAUSES: list[tuple[set[str], Request]] = [
    ({"D1", "D2"}, rollout(call(token_ids_delta=(2**63, 2), **MINUS_ZERO_MASK))),
    ({"D2", "float64-log-prob"}, CallDigest(call(token_mask_delta=(-0.0, 1.0), **FLOAT64))),
    ({"D16", "rollout-id-slash"}, receipt(reward="1", rollout_id="a/b")),
]


@pytest.mark.parametrize(
    ("names", "request_"), TWO_CAUSES, ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else ""
)
def test_two_causes_are_both_named(names: set[str], request_: Request) -> None:
    assert explanations(request_, *both(request_)) == names


NOT_EXCUSED: list[tuple[str, Request, Answer]] = [
    ("-0.0 beside a wrong digest", rollout(evolve(call(**MINUS_ZERO_MASK), digest="1" * 64)), Accepted(None)),
    ("wide version healed", rollout(evolve(call(), weight_version=2**63)), ask(NEMO_GYM, rollout(call()))),
    ("deep and unsound", ExtrasDigest({"": Nest("list", 70, float("nan"))}), Accepted("f" * 64)),
    ("not deep", ExtrasDigest({"": Nest("list", 63, float("nan"))}), Crashed("RecursionError")),
    ("valid and crashed", ExtrasDigest({}), Crashed("RecursionError")),
    ("linear growth", LinearizeGrowth(), Accepted((1000, 4000))),
    ("cubic growth", LinearizeGrowth(), Accepted((1000, 64_000))),
]


@pytest.mark.parametrize(("_", "request_", "actual"), NOT_EXCUSED, ids=[name for name, _, _ in NOT_EXCUSED])
def test_other_faults_are_not_excused(_: str, request_: Request, actual: Answer) -> None:
    assert explanations(request_, answer(realize_request(request_)), actual) == set()


def test_a_tampered_wide_version_is_still_corrupt() -> None:
    """Moving 2**63 back to 0 happens to restore what was digested; the wrong digest must stay wrong."""
    request = rollout(evolve(call(), weight_version=2**63))
    expected, actual = both(request)
    assert (expected.code, actual.code) == ("invalid_snapshot", "corrupt_digest")  # type: ignore[union-attr]
    assert explanations(request, expected, actual) == {"D1"}


def test_a_rollout_id_with_a_slash_beside_a_foreign_call() -> None:
    request = rollout(call(rollout_id="a/b"), evolve(call(), model_call_id="d"))
    expected, actual = both(request)
    assert (expected.code, actual.code) == ("invalid_snapshot", "wrong_rollout")  # type: ignore[union-attr]
    assert explanations(request, expected, actual) == {"rollout-id-slash"}


def test_growth_is_quadratic() -> None:
    """Decision D5, at a size that a test can afford; the gate counts 1,000 and 4,000 calls."""
    request = LinearizeGrowth(100, 1600)
    actual = ask(NEMO_GYM, request)
    assert complaints(request, answer(request), actual)
    assert explanations(request, answer(request), actual) == {"D5"}


# ── the adapter ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r"pip install --no-deps .*nemo-gym==0\.7\.0") as raised:
        NemoGym()
    assert "\n" not in str(raised.value)


def test_records_survive_the_way_there_and_back() -> None:
    receipt_, calls = long_chain(3)
    assert adapter.receipt_of(NEMO_GYM.theirs_receipt(receipt_)) == receipt_
    assert tuple(adapter.call_of(NEMO_GYM.theirs_call(one)) for one in calls) == calls
    assert [call_digest(one) for one in calls] == [one.digest for one in calls]


def test_deviations_are_of_the_areas_that_are_offered() -> None:
    assert {known.area for known in NemoGym.deviations} <= NemoGym.areas
    assert explanations(PrefixDigest(()), Accepted("x"), Accepted("y")) == set()


DEEP = [{"": Nest("list", depth)} for depth in (64, 100, 300)]


@pytest.mark.parametrize("extras", DEEP, ids=repr)
def test_the_digest_of_deep_extras_is_computed(extras: Any) -> None:
    """Extras that are a little deeper or hold another value have another digest: it excuses neither."""
    request = ExtrasDigest(extras)
    expected = answer(realize_request(request))
    digest = layout_extras_digest(realize(extras))
    assert digest is not None
    assert explanations(request, expected, Accepted(digest)) == {"D3"}
    deeper = layout_extras_digest({"": realize(extras)})
    assert explanations(request, expected, Accepted(deeper)) == set()


def test_the_layout_gives_the_contracts_digest_where_there_is_one() -> None:
    for extras in ({}, {"b": [1, -1.5, None, {"": []}], "a": {"x": True, "": "é"}}, {"": realize(Nest("dict", 63))}):
        assert layout_extras_digest(extras) == extras_digest(extras)
    for extras in ({"": float("nan")}, {1: 2}, {"": b"x"}, {"": "\ud800"}):
        assert layout_extras_digest(extras) is None


def test_shallow_extras_do_not_die() -> None:
    request = ExtrasDigest({"": Nest("list", 64)})
    assert explanations(request, answer(realize_request(request)), Crashed("RecursionError")) == set()
