"""Running CrossHair on rules: what came of each, and how long it took.

CrossHair is needed only here, so that the catalogue of rules can be read without it.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Final

from attrs import frozen
from crosshair.core import register_patch
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.options import AnalysisKind, AnalysisOptionSet
from crosshair.statespace import MessageType

from rollproof.properties.symbolic.rule import Rule
from rollproof.spec.values import expect


class Status(StrEnum):
    """What is known about a rule after a run."""

    CONFIRMED = "confirmed over all paths"
    """It holds for all arguments within its bounds."""
    OPEN = "no counterexample found"
    """The time was up before every path was followed."""
    REFUTED = "refuted"
    """There are arguments for which it does not hold, or none at all within its bounds."""


STATUSES: Final = {MessageType.CONFIRMED: Status.CONFIRMED, MessageType.CANNOT_CONFIRM: Status.OPEN}
"""Every other message of CrossHair is a refutation."""


def expect_tersely(holds: bool, field: str, value: object, expected: str) -> None:
    """``expect`` without the value in its message: to write a number out, a solver must know each of its digits."""
    if not holds:
        raise ValueError(f"{field}: expected {expected}")


register_patch(expect, expect_tersely)


@frozen
class Proof:
    """The outcome for one rule."""

    name: str
    status: Status
    detail: str
    """The counterexample of a refuted rule."""
    seconds: float
    """Processor time."""


def prove(rule: Rule, timeout: float) -> Proof:
    """Try to prove a rule in at most ``timeout`` seconds of processor time."""
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
