"""What tests of the spec share: a statement on every combination of a few values, and the reason of a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from rollproof.spec.rejections import Rejected
from rollproof.spec.spans import placeholder_digest


def every(**domains: Iterable[object]) -> Callable[[Callable[..., bool]], Callable[[], None]]:
    """Make a test of a statement about named arguments: it must be true of every combination of their values."""

    def test_of(statement: Callable[..., bool]) -> Callable[[], None]:
        def test() -> None:
            combinations = list(product(*domains.values()))
            assert combinations
            for values in combinations:
                arguments = dict(zip(domains, values, strict=True))
                assert statement(**arguments) is True, arguments

        test.__doc__ = statement.__doc__
        return test

    return test_of


HYPOTHESIS = settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)


def refusal(function, *arguments, **keywords):
    with pytest.raises(Rejected) as caught:
        function(*arguments, **keywords)
    return caught.value


def outcome(function, *arguments, **keywords):
    """Return the value, or the code of the rejection; nothing else may be raised."""
    try:
        return function(*arguments, **keywords)
    except Rejected as rejected:
        return rejected.code


def media_item(offset: int, ids: list[int], runs: list[list[int]]) -> dict[str, Any]:
    """Return an image of 1 by 2 pixels as ``media_spans`` holds it, whose placeholder is these ids."""
    return {
        "modality": "image",
        "placeholder_offset": offset,
        "placeholder_length": len(ids),
        "placeholder_digest": placeholder_digest(ids),
        "token_id": 18,
        "embedding_spans": runs,
        "imgs_sizes": [[1, 2]],
    }
