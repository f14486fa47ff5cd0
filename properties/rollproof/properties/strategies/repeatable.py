"""Examples that depend on their seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis.internal.conjecture.providers import HypothesisProvider


def _no_constant(*_arguments: Any, **_options: Any) -> None:
    """Stand in for what draws a constant: a mock would take a twentieth of the time of drawing."""


@contextmanager
def whatever_is_loaded() -> Iterator[None]:
    """Keep Hypothesis from mixing in constants of whatever modules of the user's are loaded."""
    with patch.object(HypothesisProvider, "_maybe_draw_constant", _no_constant, create=True):
        yield
