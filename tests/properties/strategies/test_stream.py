"""Streams are complete and named; every request survives being written down."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from rollproof.properties.gate.plain import plainest
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import BigInt, JsonText, Nest, Repeat, Rows, realize_request
from rollproof.properties.strategies.stream import Stream
from rollproof.properties.strategies.streams.digest import (
    refused_call_digests,
    refused_extras_digests,
    refused_token_digests,
)
from rollproof.properties.strategies.streams.terminal import broken_manifests, manifests
from rollproof.properties.wire.codec import decode_value, dump, encode_value, load
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, LinearizeGrowth, Refused, SelectTerminal
from rollproof.spec.judge.rules.records import GOLDEN

OWN_AREAS = (Area.DIGEST, Area.RECEIPT, Area.TERMINAL, Area.LINEAGE, Area.ROLLOUT, Area.GROUP)
STREAMS = {f"{stream.area}-{stream.name}": stream for area in OWN_AREAS for stream in request_streams(area)}
FAST = settings(
    max_examples=12, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("name", STREAMS)
def test_requests_survive_being_written_down(name):
    @FAST
    @given(STREAMS[name].strategy)
    def check(request):
        again = load(json.loads(json.dumps(dump(request), allow_nan=False)))
        assert difference(again, request) is None

    check()


def test_only_a_field_that_has_its_default_is_left_out():
    record = plainest()[SelectTerminal].records[0]
    written = dump(SelectTerminal((record, evolve(record, fingerprint_version=False))))
    plain, odd = written["records"]
    assert not {"fingerprint_version", "admitted_at", "schema_version"} & plain.keys()
    assert odd == {**plain, "fingerprint_version": False}
    assert load(written).records[1].fingerprint_version is False
    assert load({**written, "records": [{**plain, "admitted_at": None}]}).records == (record,)


@pytest.mark.parametrize("name", [name for name in STREAMS if "hostile" not in name])
def test_a_read_request_is_answered_as_the_written_one(name):
    @settings(FAST, max_examples=5)
    @given(STREAMS[name].strategy)
    def check(request):
        again = load(json.loads(json.dumps(dump(request))))
        left, right = answer(realize_request(request)), answer(realize_request(again))
        assert difference(left, right) is None

    check()


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -0.0,
        5e-324,
        float("inf"),
        2**64 - 1,
        2**64,
        -(2**63) - 1,
        10**5000,
        "a\ud800",
        "\U0001f600",
        (1, [2, (3,)]),
        b"\x00\xff",
        {"$float": "nan"},
        {1: "a", None: "b", "c": {b"d": ()}},
        {"\ud800": 1},
        Nest("list", 100_000, BigInt(5000, negative=True)),
        [Repeat("\ud800", 5), JsonText('{"a":1,"a":2}')],
        Rows({"model_call_id": "c", "reward": float("-inf")}, 1000, distinct=False),
        {Repeat("k", 9): 1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_survive_being_written_down(value):
    again = decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False)))
    assert difference(value, again) is None


def test_nan_survives_being_written_down():
    assert repr(decode_value(encode_value([float("nan")]))) == "[nan]"


def test_other_values_cannot_be_written_down():
    with pytest.raises(TypeError, match="cannot write a set"):
        encode_value({1, 2})


@pytest.mark.parametrize("content", [{}, {"kind": "Nothing"}, {"kind": "PrefixDigest"}, 5])
def test_what_is_no_request_is_not_read(content):
    with pytest.raises(Exception):  # noqa: B017, PT011 - cattrs has its own kinds, the caller catches them all
        load(content)


def test_unknown_fields_are_not_read():
    with pytest.raises(Exception, match="PrefixDigest"):
        load({"kind": "PrefixDigest", "token_ids": [], "more": 1})


def test_every_area_has_valid_and_wrong_requests():
    for area in OWN_AREAS:
        names = [stream.name for stream in request_streams(area)]
        assert any(name.startswith("valid") for name in names)
        assert any(name.startswith(("break", "broken", "refused", "hostile")) for name in names)


def test_the_golden_values_and_the_growth_are_asked_for():
    asked = set()

    @settings(FAST, max_examples=50)
    @given(STREAMS["digest-golden"].strategy)
    def collect(request):
        asked.add(type(request))

    collect()
    assert asked == {type(request) for request, _ in GOLDEN}
    assert STREAMS["lineage-growth"].weight == 0
    assert find(STREAMS["lineage-growth"].strategy, lambda _: True) == LinearizeGrowth()


def test_a_stream_has_a_weight_that_is_not_negative():
    with pytest.raises(ValueError, match="weight"):
        Stream("s", Area.DIGEST, st.nothing(), -1.0)


@pytest.mark.parametrize("refused", [refused_token_digests(), refused_extras_digests(), refused_call_digests()])
def test_values_without_a_digest_are_refused(refused):
    @settings(FAST, max_examples=150)
    @given(refused)
    def check(request):
        assert isinstance(answer(realize_request(request)), Refused)

    check()


@pytest.mark.parametrize("name", ["digest-valid:tokens", "digest-valid:extras", "digest-valid:calls"])
def test_values_of_the_domains_have_a_digest(name):
    @settings(FAST, max_examples=150)
    @given(STREAMS[name].strategy)
    def check(request):
        assert isinstance(answer(realize_request(request)), Accepted)

    check()


def test_terminal_selection_reaches_every_reason():
    reasons = set()

    @settings(FAST, max_examples=600)
    @given(manifests() | broken_manifests())
    def collect(request):
        reasons.add(answer(request).value.reason)

    collect()
    assert reasons == {"selected", "no_records", "duplicate_call_id", "orphaned_row", "no_root", "ambiguous_terminal"}
