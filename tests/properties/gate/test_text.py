"""How answers are written for reading."""

from __future__ import annotations

from rollproof.properties.gate.text import value_lines
from rollproof.spec.portable import Merged, Row


def test_values_are_shown_by_field_and_numbers_on_one_line():
    rows = (Row((3, 4), (0, 1), (0.0, -1.5)), Row((5,), (1,)))
    assert list(value_lines(Merged(rows))) == [
        "rows:",
        "  [0]:",
        "    ids = (3, 4)",
        "    mask = (0, 1)",
        "    log_probs = (0.0, -1.5)",
        "  [1]:",
        "    ids = (5,)",
        "    mask = (1,)",
    ]
    assert list(value_lines({"a": (1, 2), "b": {}})) == ["'a' = (1, 2)", "'b' = {}"]
    assert list(value_lines("x" * 1000)) == [repr("x" * 1000)[:400] + " …"]
    assert list(value_lines(dict.fromkeys(range(15), 0)))[-2:] == ["11 = 0", "and 3 more"]
