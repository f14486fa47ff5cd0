"""What is a number, and what is not."""

from __future__ import annotations

import math

import pytest

from rollproof.spec.values import is_number


@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf, math.nan, True, "1", None])
def test_is_number_refuses_what_is_not_a_float64(value: object) -> None:
    assert not is_number(value)
    assert is_number(10**300)
