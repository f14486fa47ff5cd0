"""Running CrossHair on rules and pairs: the outcome of each, and how long it took.

CrossHair is needed only here, so that the catalogue of rules can be read without it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from unittest import mock

from crosshair import core
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.diff_behavior import BehaviorDiff, ExceptionEquivalenceType, diff_behavior
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind, AnalysisOptionSet
from crosshair.statespace import MessageType, VerificationStatus

from rollproof.properties.symbolic.proofs import Proof, Status
from rollproof.properties.symbolic.rule import Pair, Rule
from rollproof.spec import values


def expect_tersely(holds: bool, field: str, value: object, expected: str) -> None:
    """Do as ``expect``, without the value in the message: to write a number out, a solver must know its digits."""
    if not holds:
        raise ValueError(f"{field}: expected {expected}")


def show_tersely(value: object) -> str:
    """Do as ``show``, without the value, for the same reason: no rule is about the text of a message."""
    return f"a {type(value).__name__}"


core.register_patch(values.expect, expect_tersely)
core.register_patch(values.show, show_tersely)
with suppress(ModuleNotFoundError):
    from rollproof.impl import checks

    core.register_patch(checks.show, show_tersely)


def prove(item: Rule | Pair, timeout: float) -> Proof:
    """Try to prove a rule or pair in about ``timeout`` seconds of processor time."""
    return compare(item, timeout) if isinstance(item, Pair) else check(item, timeout)


STATUSES: Final = {MessageType.CONFIRMED: Status.CONFIRMED, MessageType.CANNOT_CONFIRM: Status.OPEN}
"""Every other message of CrossHair is a refutation."""


def check(rule: Rule, timeout: float) -> Proof:
    """Look for arguments for which the rule does not hold."""
    options = AnalysisOptionSet(
        analysis_kind=(AnalysisKind.PEP316,), per_condition_timeout=timeout, per_path_timeout=timeout
    )
    begun = time.process_time()
    messages = run_checkables(analyze_function(rule.statement, options))
    seconds = time.process_time() - begun
    if not messages:
        raise ValueError(f"{rule.name}: no postcondition")
    worst = max(messages, key=lambda message: message.state)
    status = STATUSES.get(worst.state, Status.REFUTED)
    return Proof(rule.name, status, worst.message if status is Status.REFUTED else "", seconds)


def compare(pair: Pair, timeout: float) -> Proof:
    """Look for arguments on which the two sides of a pair differ."""
    sides = FunctionInfo.from_fn(pair.spec), FunctionInfo.from_fn(pair.impl)
    # It looks for differences twice, once from each side, in half of the time each.
    limits = DEFAULT_OPTIONS.overlay(per_condition_timeout=2 * timeout, per_path_timeout=2 * timeout, stats=Counter())
    begun = time.process_time()
    with explorations() as found:
        differences = diff_behavior(*sides, limits, ExceptionEquivalenceType.SAME_TYPE)
    seconds = time.process_time() - begun
    if isinstance(differences, str):
        raise ValueError(f"{pair.name}: {differences}")
    if differences:
        return Proof(pair.name, Status.REFUTED, describe(differences[0]), seconds)
    complete = [
        exploration.exhausted and exploration.top_analysis.verification_status is VerificationStatus.CONFIRMED
        for exploration in found
    ]
    return Proof(pair.name, Status.SAME if complete == [True, True] else Status.OPEN, "", seconds)


@contextmanager
def explorations() -> Iterator[list[Any]]:
    """Collect the results of CrossHair's searches, which ``diff_behavior`` does not report.

    That no paths are left is not enough: some may have been given up.
    """
    found: list[Any] = []
    explore = core.explore_loop

    def note(*args: Any, **kwargs: Any) -> Any:
        found.append(explore(*args, **kwargs))
        return found[-1]

    with mock.patch.object(core, "explore_loop", note):
        yield found


def describe(difference: BehaviorDiff) -> str:
    """Describe a difference in one line: the arguments, and what each side gives."""
    given = ", ".join(f"{name}={value}" for name, value in difference.args.items())
    sides = (result.error or result.return_repr for result in (difference.result1, difference.result2))
    return "given {}: spec {}, impl {}".format(given, *sides)
