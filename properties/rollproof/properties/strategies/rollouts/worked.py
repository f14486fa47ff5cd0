"""The contract's worked example (section 9): two calls of group g7, rollout g7_g0."""

from __future__ import annotations

from typing import Final

from rollproof.properties.strategies.rollouts.history import Call, History
from rollproof.properties.strategies.rollouts.staged_calls import staged_call
from rollproof.spec.tensor import to_float32


def worked_example(second_version: int = 4) -> History:
    """Return the example; with another weight version of the second call it is the mixed-version case."""
    first = staged_call(
        (10, 11, 12, 13),
        2,
        rollout_id="g7_g0",
        call_id="c1",
        log_probs=(to_float32(-0.1), to_float32(-0.2)),
        weight_version=4,
    )
    second = staged_call(
        (20, 21, 22),
        1,
        rollout_id="g7_g0",
        call_id="c2",
        parent=first,
        before=first.token_ids_delta,
        log_probs=(to_float32(-0.3), to_float32(-0.4)),
        weight_version=second_version,
    )
    calls = (Call(first, response_id="resp-1"), Call(second, response_id="resp-2"))
    return History("g7_g0", calls, "c2")


WORKED_EXAMPLE: Final = worked_example()


def retried_example() -> History:
    """Return the example with a third call, c3: the second request once more, answered otherwise and not taken."""
    first = WORKED_EXAMPLE.calls[0].staged
    retried = staged_call(
        (20, 21, 23),
        1,
        rollout_id="g7_g0",
        call_id="c3",
        parent=first,
        before=first.token_ids_delta,
        log_probs=(to_float32(-0.3), to_float32(-0.5)),
        weight_version=4,
    )
    return History("g7_g0", (*WORKED_EXAMPLE.calls, Call(retried, response_id="resp-3")), "c2")
