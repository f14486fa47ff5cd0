"""Groups whose calls say why their engine stopped (decision D38), in good faith or forged afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st

from rollproof.properties.strategies.rollouts.histories import histories
from rollproof.properties.strategies.rollouts.history import rehash
from rollproof.properties.strategies.rollouts.routed_histories import with_routes
from rollproof.properties.strategies.rollouts.worked import retried_example
from rollproof.properties.strategies.scalars import draw_bytes
from rollproof.properties.strategies.stream import Stream, listed
from rollproof.properties.strategies.streams.between import DEFERRED, DIRECT, in_one_group
from rollproof.spec.constants import FINISH_LENGTH, FINISH_REASON, ROUTED_EXPERTS
from rollproof.spec.judge.requests import Area, FinalizeGroups
from rollproof.spec.judge.staging import Staging
from rollproof.spec.outcomes import Dims
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.staged import metadata_json
from rollproof.spec.tensor import Tensor

DIMS: Final[Dims] = (1, 2)
REASONS: Final[tuple[Any, ...]] = (*[FINISH_LENGTH] * 3, "stop", None, 1, [FINISH_LENGTH], "Length", "length ")


@st.composite
def finished(draw: st.DrawFn, config: ReassemblerConfig) -> FinalizeGroups:
    """Draw a group of up to three rollouts of one shape; each call of each has a finish reason of its own, or none."""
    decide = draw_bytes(draw, 96)
    shape = draw(histories(rollout_id="r", max_calls=3))
    requests = []
    for name in "abc"[: 1 + decide.below(3)]:
        history = shape.renamed(name)
        history = evolve(
            history,
            calls=tuple(
                evolve(call, extras={**(call.extras or {}), FINISH_REASON: decide.choose(REASONS)})
                if decide.chance(224)
                else call
                for call in history.calls
            ),
        )
        history = draw(with_routes(history, DIMS, share=0.5)) if config.router_replay_enabled else rehash(history)
        rows = history.rows()
        if decide.chance(144):
            last = history.chain()[-1]
            extras = {key: value for key, value in (last.extras or {}).items() if key != ROUTED_EXPERTS}
            forged = metadata_json({**extras, FINISH_REASON: decide.choose((FINISH_LENGTH, FINISH_LENGTH, "stop"))})
            rows[last.key] = {**rows[last.key], "extras_metadata_json": Tensor("uint8", (1, len(forged)), forged)}
        request = history.finalize(config, staging=Staging(rows))
        requests.append(evolve(request, reward=float("nan")) if decide.chance(24) else request)
    return in_one_group(config, requests)


def each_finish() -> Iterator[FinalizeGroups]:
    """Yield the retried example once for every way in which its calls stop for their length, or not."""
    retried = retried_example()
    for reasons in product((FINISH_LENGTH, "stop"), repeat=len(retried.calls)):
        calls = (
            evolve(call, extras={FINISH_REASON: reason}) for call, reason in zip(retried.calls, reasons, strict=True)
        )
        history = rehash(evolve(retried, calls=tuple(calls)))
        yield in_one_group(ReassemblerConfig(), [history.finalize()])


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the areas group and routes."""
    if area is Area.GROUP:
        yield Stream("finish reasons", area, finished(ReassemblerConfig()))
        yield listed("each finish reason", area, each_finish())
    if area is Area.ROUTES:
        for name, base in (("direct", DIRECT), ("deferred", DEFERRED)):
            yield Stream(f"{name} finish reasons", area, finished(evolve(base, routed_dims=DIMS)), 0.25)
