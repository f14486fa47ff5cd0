"""Tests marked ``untraced`` run without coverage, in workers too, and the next one with it again."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.untraced
def test_nothing_traces():
    assert sys.gettrace() is None
