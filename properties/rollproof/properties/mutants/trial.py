"""Putting a mutant before the gate, until the invariant that must notice it has noticed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from attrs import define, field

from rollproof.properties.gate.profiles import PROFILES
from rollproof.properties.gate.run import Check
from rollproof.properties.mutants.mutant import Mutant, MutantImplementation

STAGES: Final = ("quick", "ci")
"""The profiles that a mutant must pass, all of them, in order to survive: most fall in the first."""


@define
class Verdict:
    """What the gate made of a mutant."""

    mutant: str
    invariant: str
    """The one that must fall."""
    origin: str
    sentence: str
    fell: dict[str, int] = field(factory=dict)
    """Every invariant that fell until then, and after how many requests it did."""
    requests: int = 0
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        """Whether the named invariant fell; that others did does not count."""
        return self.invariant in self.fell

    @property
    def others(self) -> list[str]:
        """The invariants that fell beside the named one."""
        return [name for name in self.fell if name != self.invariant]


class _Killed(BaseException):
    """The named invariant fell; Hypothesis lets this through."""


def try_mutant(mutant: Mutant, seed: int = 0, progress: Callable[[], None] = lambda: None) -> Verdict:
    """Run the gate against a mutant in the area of its invariant, up to the first input that its invariant rejects.

    ``progress`` is called after every request. Nothing is shrunk.
    """
    verdict = Verdict(mutant.name, mutant.invariant, mutant.origin, mutant.sentence)
    implementation = MutantImplementation(mutant)
    started = time.monotonic()
    with suppress(_Killed):
        for stage in STAGES:
            check = Check(implementation, tuple(implementation.areas), PROFILES[stage], seed, shrink=False)
            check.progress = watch(check, verdict, progress)
            check.run()
    verdict.seconds = time.monotonic() - started
    return verdict


def watch(check: Check, verdict: Verdict, progress: Callable[[], None]) -> Callable[[str, int], None]:
    """Note what has fallen after every request, and stop the check once the named invariant has."""
    before = verdict.requests

    def note(_stream: str, _count: int) -> None:
        verdict.requests = before + check.report.requests
        for finding in check.report.falsified:
            verdict.fell.setdefault(finding.invariant_id, verdict.requests)
        if verdict.killed:
            raise _Killed
        progress()

    return note
