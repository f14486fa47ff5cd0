"""Routes for rollouts of any shape: every history becomes one whose calls may carry routes, its hashes made right."""

from __future__ import annotations

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import Call, History, rehash
from rollproof.properties.strategies.rollouts.routes import INT8_EXPERTS, fragments, model_shapes, route_payload
from rollproof.spec.constants import ROUTE_ENCODING_NONE, ROUTED_EXPERTS
from rollproof.spec.outcomes import Dims
from rollproof.spec.routes import staged_routes


@st.composite
def with_routes(
    draw: st.DrawFn, history: History, dims: Dims, *, num_experts: int = INT8_EXPERTS, share: float = 0.75
) -> History:
    """Draw the history with routes of (L, K) on about ``share`` of its calls, in any dtype and encoding."""
    calls = []
    for call in history.calls:
        extras = call.extras
        if extras is not None:
            extras = {name: value for name, value in extras.items() if name != ROUTED_EXPERTS}
        plain = evolve(call, extras=extras, routes=None, routed_experts_encoding=ROUTE_ENCODING_NONE)
        calls.append(draw(_routed(plain, dims, num_experts)) if draw(st.integers(0, 99)) < 100 * share else plain)
    return rehash(evolve(history, calls=tuple(calls)))


@st.composite
def _routed(draw: st.DrawFn, call: Call, dims: Dims, num_experts: int) -> Call:
    fragment = draw(fragments(call.staged.delta_len, dims, num_experts=num_experts))
    extras = {**(call.extras or {}), ROUTED_EXPERTS: route_payload(fragment)}
    encoding, column = staged_routes(extras, call.staged.delta_len)
    return evolve(call, extras=extras, routes=column, routed_experts_encoding=encoding)


@st.composite
def routed_histories(draw: st.DrawFn, rollout_id: str | None = None) -> tuple[History, Dims]:
    """Draw a valid history with routes on some of its calls, none or all of them included, and its (L, K)."""
    dims = draw(model_shapes(2, 2))
    history = draw(histories(rollout_id=rollout_id, max_calls=4))
    return draw(with_routes(history, dims, share=draw(st.sampled_from([0.0, 0.5, 0.75, 1.0])))), dims
