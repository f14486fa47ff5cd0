"""The wire: every request and answer survives it, its schemas describe it, and bad JSON is told apart from a value."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import Phase
from jsonschema import Draft202012Validator

from rollproof.properties.gate.run import exercise
from rollproof.properties.gate.streams import request_streams
from rollproof.properties.strategies.rollouts.recipes import realize_request
from rollproof.properties.wire.bounds import nesting
from rollproof.properties.wire.codec import dump, load
from rollproof.properties.wire.converter import (
    MAX_NESTING,
    NotCarried,
    WireError,
    decode,
    decode_float,
    encode,
    encode_float,
)
from rollproof.properties.wire.messages import (
    REQUESTS,
    answer_object,
    read_answer,
    read_line,
    read_request,
    request_object,
)
from rollproof.properties.wire.schema import answer_schema, ref, request_schema
from rollproof.spec.judge.invariant import difference
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import Accepted, Area, Crashed, ExtrasDigest, PrefixDigest, Refused

REQUEST, ANSWER = request_schema(), answer_schema()
VALID_REQUEST = {name: Draft202012Validator({**REQUEST, "anyOf": [ref(name)]}) for name in REQUESTS}
VALID_ANSWER = {
    name: Draft202012Validator(
        {"$defs": ANSWER["$defs"], "properties": {"accepted": ref(name), "refused": {"type": "string"}},
         "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    )
    for name in REQUESTS
}  # fmt: skip


def through_json(content):
    return json.loads(json.dumps(content, allow_nan=False))


def as_javascript(content):
    """Return what a parser with one kind of number makes of it, written again."""
    if isinstance(content, dict):
        return {key: as_javascript(item) for key, item in content.items()}
    if isinstance(content, list):
        return [as_javascript(item) for item in content]
    if isinstance(content, int | float) and not isinstance(content, bool):
        number = float(content)
        return int(number) if number.is_integer() else number
    return content


def test_schemas_are_valid():
    Draft202012Validator.check_schema(REQUEST)
    Draft202012Validator.check_schema(ANSWER)


@pytest.mark.parametrize("examples", [1, pytest.param(4, marks=pytest.mark.deep)])
@pytest.mark.parametrize("area", Area)
def test_requests_and_answers_survive_the_wire(area, examples):
    apart = ("captured", "of arrays")  # another package's, and what no line of JSON holds
    streams = [one for one in request_streams(area) if one.weight and not any(word in one.name for word in apart)]
    validated = set()

    def check(request):
        request = realize_request(request)
        try:
            content = request_object(request)
        except NotCarried:
            return
        operation = content["operation"]
        for read in (through_json, lambda content: as_javascript(through_json(content))):
            again = read_request(read(content))
            assert difference(request, again) is None
            expected = answer(again)
            shown = answer_object(again, expected)
            assert difference(expected, read_answer(request, read(shown))) is None
        assert difference(request, load(through_json(dump(request)))) is None, "a replay file"
        if (stream.name, operation) not in validated:
            validated.add((stream.name, operation))
            VALID_REQUEST[operation].validate(content)
            VALID_ANSWER[operation].validate(shown)

    for stream in streams:
        exercise(stream.strategy, check, examples, 1, (Phase.generate,))
    assert len(validated) >= len(streams) - 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**53 - 1, 9007199254740991),
        (2**53, {"$int": "0x20000000000000"}),
        (-(2**53), {"$int": "-0x20000000000000"}),
        (0.5, 0.5),
        (2.0, {"$float": "2.0"}),
        (-0.0, {"$float": "-0.0"}),
        (1e300, {"$float": "1e+300"}),
        (math.inf, {"$float": "inf"}),
        (math.nan, {"$float": "nan"}),
        ("é", "é"),
        ("a\ud800", {"$text": [97, 0xD800]}),
        ((1, 2.0), {"$tuple": [1, {"$float": "2.0"}]}),
        (b"\x00\x01", {"$bytes": "AAE="}),
        ({"a": True}, {"a": True}),
        ({"$a": 1}, {"$dict": [["$a", 1]]}),
        ({1: None}, {"$dict": [[1, None]]}),
        pytest.param(10**5000, {"$int": hex(10**5000)}, id="more digits than Python prints"),
    ],
)
def test_values_have_one_written_form(value, written):
    assert encode(value) == written
    assert difference(value, decode(as_javascript(through_json(written)))) is None


@pytest.mark.parametrize(
    ("value", "written"),
    [(1.0, 1.0), (-0.0, {"$float": "-0.0"}), (1, {"$int": "0x1"}), (1e300, 1e300), (True, True), (None, None)],
)
def test_values_of_float_fields(value, written):
    assert encode_float(value) == written
    assert difference(value, decode_float(through_json(written))) is None
    if type(value) is float and value:
        assert difference(value, decode_float(as_javascript(through_json(written)))) is None


@pytest.mark.parametrize(
    "content",
    [
        {"$nope": 1}, {"$int": "0x1", "a": 1}, {"$int": 1}, {"$int": "12"}, {"$int": "0xFF"}, {"$float": 2.0},
        {"$float": "infinity"}, {"$float": "1_0"}, {"$text": "a"}, {"$text": [-1]}, {"$text": [0x110000]},
        {"$tuple": {}}, {"$dict": [[1]]}, {"$dict": [[[], 1]]}, {"$bytes": 1}, 2**53, 1e300, [{"a": -(2**53)}],
    ],
)  # fmt: skip
def test_wrong_tags_are_refused(content):
    with pytest.raises(WireError):
        decode(content)


def test_what_is_too_deep_is_not_carried():
    deepest = ExtrasDigest({"a": nest(MAX_NESTING - 2)})
    assert nesting(request_object(deepest)) == MAX_NESTING
    assert read_request(through_json(request_object(deepest))) == deepest
    for depth in (MAX_NESTING - 1, MAX_NESTING + 1, 100_000):
        with pytest.raises(NotCarried, match="deep"):
            request_object(ExtrasDigest({"a": nest(depth)}))
    with pytest.raises(NotCarried, match="object"):
        encode(object())


def nest(depth):
    value = None
    for _ in range(depth):
        value = [value]
    return value


def test_answers_of_another_type_are_crashes():
    request = PrefixDigest((1,))
    assert answer_object(request, Accepted([[]]))["accepted"] == [[]], "a value that JSON can hold is passed on"
    assert answer_object(request, Accepted(object()))["crashed"]["error"] == "NotCarried"
    assert read_answer(request, {"id": 4, "refused": "no"}) == Refused("no")
    assert read_answer(request, {"error": {"code": "bad_request", "message": "x"}}) == Crashed("error bad_request")
    for content in ({}, {"accepted": "a", "refused": "b"}, {"refused": 1}, {"crashed": 1}, {"error": {}}):
        with pytest.raises(WireError):
            read_answer(request, content)
    with pytest.raises(WireError, match="rollout_id"):
        read_answer(REQUESTS["parse_receipt"]({}), {"accepted": {}})


def test_mutilated_lines_never_raise_anything_else():
    """Bytes of real lines, replaced, removed and repeated: a request or one kind of error."""
    (stream,) = [stream for stream in request_streams(Area.LINEAGE) if stream.name == "valid"]
    lines = []
    exercise(
        stream.strategy, lambda one: lines.append(json.dumps(request_object(one)).encode()), 5, 0, (Phase.generate,)
    )
    decide, refused = random.Random(0), 0
    for _ in range(3000):
        line = bytearray(decide.choice(lines))
        at = decide.randrange(len(line))
        size = decide.choice((1, 1, 1, 30))
        line[at : at + size] = decide.choice(
            (b"", b'"', b"[", b"{", b"null", b"9", b"\xff", b"-", line[at - 9 : at + 9])
        )
        try:
            read_request(read_line(bytes(line)))
        except WireError:
            refused += 1
    assert 1000 < refused < 3000
