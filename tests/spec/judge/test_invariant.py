"""Where two values of the contract differ: compared as values, named by a whole path, told apart when printed."""

from __future__ import annotations

import math
from enum import StrEnum

import pytest
from attrs import field, frozen

from rollproof.spec.judge.invariant import ABSENT, LONGEST_VALUE, difference, differences, shortened, value_text
from rollproof.spec.tensor import Tensor

LONG = "a_field_whose_name_is_longer_than_all_eighty_columns_of_a_terminal_that_nobody_has_any_more"


@frozen
class Leaf:
    number: int | float = 0
    note: str = field(default="", eq=False)


@frozen
class SameText:
    """A value whose repr says nothing."""

    hidden: int = field(repr=False)


class Word(StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("left", "right", "where"),
    [
        (0.0, -0.0, ""),
        (1, True, ""),
        (1, 1.0, ""),
        ("yes", Word.YES, ""),
        ((1,), [1], ""),
        (Leaf(1), Leaf(2), "number"),
        ((Leaf(1), Leaf(1)), (Leaf(1), Leaf(1.0)), "[1].number"),
        ((1, 2), (1, 2, 3), ""),
        ((1, 2, 3), (1, 5, 3), "[1]"),
        ({"a": Leaf(1)}, {"a": Leaf(2)}, "['a'].number"),
        ({"a": 1, "b": 2}, {"a": 1}, "['b']"),
        ({"a": 1}, {"a": 1, LONG * 2: None}, f"['{LONG * 2}']"),
        (SameText(1), SameText(2), "hidden"),
        (math.nan, 1.0, ""),
        (Tensor.of("int16", [1, 2]), Tensor.of("int16", [1, 3]), "values()[1]"),
        (Tensor("bfloat16", (1,), b"ab"), Tensor("bfloat16", (1,), b"ac"), "data"),
        (Tensor("float32", (1,), b"\0\0\xc0\x7f"), Tensor("float32", (1,), b"\1\0\xc0\x7f"), "data"),
        ("x" * 999 + "a" + "x" * 999, "x" * 999 + "b" + "x" * 999, ""),
        (b"x" * 999 + b"a" + b"x" * 999, b"x" * 999 + b"b" + b"x" * 999, ""),
        (Tensor.of("int16", [1, 2]), Tensor.of("int16", [1, 2], (1, 2)), ""),
    ],
)
def test_a_difference_has_its_whole_path_and_tells_both_values_apart(left, right, where):
    (found,) = differences(left, right)
    assert found.where == where
    sentence = difference(left, right)
    assert sentence.startswith(f"{where or 'value'}: expected ")
    wanted, got = sentence.partition(": expected ")[2].split(", got ")
    assert wanted != got
    assert difference(right, left) is not None


@pytest.mark.parametrize(
    "value",
    [0.0, -0.0, math.nan, (1, (2.5, math.nan)), {"a": {"b": [None, True]}}, Leaf(3), Tensor.of("float32", [math.nan])],
)
def test_equal_values_do_not_differ(value):
    assert list(differences(value, type(value)(value) if isinstance(value, float | list) else value)) == []


def test_fields_that_play_no_part_in_comparisons_are_left_out():
    assert difference(Leaf(1, "a"), Leaf(1, "b")) is None


def test_a_nan_made_anew_is_the_same_value():
    assert difference((float("nan"),), (float("nan"),)) is None


def test_differences_yields_every_difference():
    found = list(differences({"a": 1, "b": (1, 2)}, {"b": (1, 3), "c": 4}))
    assert [(one.where, one.expected, one.actual) for one in found] == [
        ("['a']", 1, ABSENT),
        ("['b'][1]", 2, 3),
        ("['c']", ABSENT, 4),
    ]


def test_values_that_differ_only_at_their_end_look_different():
    left, right = ("x" * 10_000 + end for end in "ab")
    sentence = difference(left, right)
    assert "10,003 characters" in sentence
    assert len(sentence) < 3 * LONGEST_VALUE
    wanted, got = sentence.partition(": expected ")[2].split(", got ")
    assert wanted != got


@pytest.mark.parametrize("value", [pytest.param(10**5000, id="digits"), tuple(range(1000)), {"k" * 500: 1}, "a", None])
def test_value_text_prints_any_value_within_bounds(value):
    assert len(value_text(value)) <= LONGEST_VALUE + 20


def test_a_long_sequence_says_how_many_items_it_has():
    assert value_text(tuple(range(1000))).startswith("1,000 items (0, 1, ")


def test_a_shortened_text_keeps_both_ends_and_says_its_length():
    text = shortened("a" * 5000 + "b" * 5000, 100)
    assert len(text) <= 100
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert "10,000 characters" in text
    assert shortened("short", 100) == "short"
