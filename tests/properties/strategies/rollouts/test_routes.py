"""Drawn fragments of routes."""

from __future__ import annotations

from rollproof.properties.strategies.rollouts.routes import route_payload
from rollproof.spec.extras import RouteFragment
from rollproof.spec.tensor import Tensor


def test_payloads_of_strategies_are_what_staging_reads():
    fragment = RouteFragment(Tensor.of("int16", [1, 2], (1, 1, 2)), 2, b"null")
    assert route_payload(fragment) == [[[1, 2]]]
