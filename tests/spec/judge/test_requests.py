"""The table of request kinds is complete, and whatever answers, carries or draws requests covers it."""

from __future__ import annotations

import pytest

from rollproof.properties.adapters.asking import ask
from rollproof.properties.adapters.protocol import Adapter, offers
from rollproof.properties.adapters.reference import Reference
from rollproof.properties.evidence.counts import counted
from rollproof.properties.gate.load import AdapterError, load_implementation
from rollproof.properties.wire.messages import OPERATIONS, REQUESTS
from rollproof.properties.wire.schema import answer_schema, request_schema
from rollproof.spec.judge import oracle, requests
from rollproof.spec.judge.portable import MergeTwice
from rollproof.spec.judge.requests import CAPABILITIES, KIND_OF, KINDS, Accepted, Area, PrefixDigest, Request

CLASSES = {
    value
    for value in vars(requests).values()
    if isinstance(value, type) and issubclass(value, Request) and value is not Request
}


def test_table_lists_every_kind_of_request_once():
    assert len(CLASSES) > 20
    assert set(KIND_OF) == CLASSES
    assert len(KINDS) == len(CLASSES)
    assert {kind.area for kind in KINDS} >= set(Area) - set(CAPABILITIES)


def test_oracle_answers_exactly_the_kinds_of_the_table():
    assert set(oracle._HANDLERS) == CLASSES


def test_wire_carries_every_kind_that_is_not_measured_under_a_name_of_its_own():
    carried = {kind.request for kind in KINDS if not kind.measured}
    assert set(OPERATIONS) == set(REQUESTS.values()) == carried
    assert {kind.request for kind in KINDS if kind.measured} == {requests.LinearizeGrowth, MergeTwice}
    for schema in (request_schema(), answer_schema()):
        assert set(REQUESTS) <= set(schema["$defs"])


def test_streams_draw_every_kind_of_the_table():
    drawn = {name for stream in counted() for name, number in stream.kinds.items() if number}
    assert drawn == {kind.__name__ for kind in CLASSES}


def test_adapters_answer_by_the_method_that_the_table_names():
    class Digests(Adapter):
        name = "digests"
        areas = frozenset({Area.DIGEST})

        def prefix_digest(self, token_ids):
            return f"{token_ids}"

    assert [kind.method for kind in KINDS if offers(Digests(), kind.request)] == ["prefix_digest"]
    assert ask(Digests(), PrefixDigest((1, 2))) == Accepted("(1, 2)")
    assert all(offers(Reference(), kind) for kind in CLASSES)


class WrongParameters(Adapter):
    name = "wrong"
    areas = frozenset({Area.DIGEST})

    def chain_digest(self, token_ids):
        return ""


def test_load_implementation_refuses_a_method_that_does_not_take_the_fields_of_its_request():
    with pytest.raises(AdapterError, match=r"chain_digest: .*; expected the arguments parent_chain_hash, token_ids"):
        load_implementation(f"{__name__}:WrongParameters")
