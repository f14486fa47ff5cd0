"""Section 3: receipts from any JSON value, as the spec reads them."""

from __future__ import annotations

import copy
import random

import pytest

from rollproof.impl.records import parse_receipt
from rollproof.spec.receipt import parse_receipt as spec_parse
from rollproof.spec.rejections import Code, Rejected


class Text(str):
    """A str that is not exactly a str."""


class Mapping(dict):
    """A dict that is not exactly a dict."""


HOSTILE = [
    *(None, True, False, -1, 0, 1, 2, 2.0, 3.5, 2**63, 2**64, 10**5000, float("nan"), float("inf"), 1e300),
    *("", "3.0", "text", "token_in", "declared", "0" * 64, "A" * 64, "é" * 64, "\ud800", "x/y", "x\0", Text("c0")),
    *([], {}, [[]], [{}], {"a": 1}, b"", (), Mapping(), object()),
]


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def agree(value) -> bool:
    """Check that spec and implementation read one value alike; return whether they accept it."""
    expected, actual = (attempt(parse, value) for parse in (spec_parse, parse_receipt))
    assert actual == expected
    return actual is not Code.INVALID_RECEIPT


def attempt(parse, value):
    """Return the receipt, or the code of the refusal, whose reason can be written down."""
    try:
        return parse(value)
    except Rejected as rejected:
        rejected.reason.encode()
        return rejected.code


def test_valid_receipts(make):
    receipt = make.receipt_of(make.two_calls())
    assert agree(receipt)
    optional = {"admitted_at": 3, "output_fingerprint": "a" * 64, "fingerprint_version": 1, "schema_version": 2}
    receipt["manifest"][0] |= optional
    del receipt["manifest"][1]["mode"]
    assert agree(receipt | {"terminal_attribution_reason": "", "capture_poisoned": True, "failure_reason": ""})
    assert agree({"rollout_id": "r", "capture_poisoned": True, "failure_reason": "x"})


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: type(value).__name__)
def test_any_value_in_any_place(make, value):
    agree(value)
    whole = make.receipt_of(make.two_calls())
    for name in [*whole, "failure_reason", "capture_poisoned", "digest_version", "unknown"]:
        agree(whole | {name: value})
    for name in [*whole["manifest"][1], "admitted_at", "continuation_fingerprint", "extras_digest_version", "unknown"]:
        receipt = copy.deepcopy(whole)
        receipt["manifest"][1][name] = value
        agree(receipt)
    agree(whole | {"manifest": [*whole["manifest"], value]})


def test_missing_and_unknown_fields(make):
    whole = make.receipt_of(make.two_calls())
    for name in whole:
        agree({key: value for key, value in whole.items() if key != name})
    for name in whole["manifest"][0]:
        receipt = copy.deepcopy(whole)
        del receipt["manifest"][0][name]
        agree(receipt)
    for name in (1, Text("manifest"), "\ud800", None):
        assert not agree(whole | {name: []} if name != "manifest" else {Text("manifest"): []})


@pytest.mark.parametrize(
    "changes",
    [
        {"terminal_model_call_id": "absent"},
        {"terminal_model_call_id": None},
        {"terminal_selection": None},
        {"failure_reason": "x"},
        {"capture_poisoned": True, "terminal_selection": None},
        {"capture_poisoned": True, "terminal_selection": None, "terminal_model_call_id": None},
        {"rollout_id": "a/b"},
    ],
)
def test_fields_that_contradict_each_other(make, changes):
    assert not agree(make.receipt_of(make.two_calls()) | changes)


def test_repeated_calls(make):
    receipt = make.receipt_of(make.two_calls())
    assert not agree(receipt | {"manifest": [*receipt["manifest"], receipt["manifest"][0]]})


def test_manifest_rows_out_of_place(make):
    for changes in (
        {"prev_len": 5},
        {"delta_len": 0},
        {"cum_len": 9},
        {"mode": "text"},
        {"parent_call_id": None},
        {"prev_len": 0, "cum_len": 3},
    ):
        receipt = make.receipt_of(make.two_calls())
        receipt["manifest"][1] |= changes
        assert not agree(receipt)


def test_depth_and_size_do_not_matter(make):
    whole = make.receipt_of(make.two_calls())
    assert not agree(deep(200_000))
    assert not agree(whole | {"reward": deep(200_000)})
    assert not agree(whole | {"manifest": [deep(200_000)]})
    assert not agree(whole | {f"x{index}": index for index in range(10_000)})
    receipt = copy.deepcopy(whole)
    receipt["manifest"][0]["mode"] = deep(200_000)
    assert not agree(receipt)


def test_random_damage(make):
    rng = random.Random(5)
    accepted = 0
    for _ in range(400):
        receipt = copy.deepcopy(make.receipt_of(make.random_calls(rng, "g_g0")))
        target = rng.choice([receipt, *receipt["manifest"]])
        if rng.random() < 0.8:
            target[rng.choice(list(target))] = rng.choice(HOSTILE)
        accepted += agree(receipt)
    assert 0 < accepted < 400
