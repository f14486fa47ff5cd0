"""Running a state machine on sequences of steps that depend on their number alone."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from rollproof.properties.strategies.repeatable import whatever_is_loaded


def run_machine(
    machine: type[RuleBasedStateMachine], *, runs: int, steps: int, number: int, shrink: bool = False
) -> None:
    """Run a machine on ``runs`` sequences of at most ``steps`` steps, the same for the same number.

    Raises what it finds.
    """
    with whatever_is_loaded():
        run_state_machine_as_test(
            seed(number)(machine),
            settings=settings(
                max_examples=runs,
                stateful_step_count=steps,
                database=None,
                deadline=None,
                print_blob=False,
                report_multiple_bugs=False,
                phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )
