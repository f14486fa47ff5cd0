"""Tests marked ``untraced`` run without a tracer, coverage's or any other; what follows has it again."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def traced():
    """Have a tracer before the test and after it."""
    before = sys.gettrace()

    def trace(*_):
        return None

    sys.settrace(trace)
    yield
    after = sys.gettrace()
    sys.settrace(before)
    assert after is trace


@pytest.mark.untraced
def test_nothing_traces(traced):
    assert sys.gettrace() is None
