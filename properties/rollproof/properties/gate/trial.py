"""Running the gate against a mutant, until the invariant that must notice it has noticed."""

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
    """The gate's result for a mutant."""

    mutant: str
    invariant: str
    """The one that must fall."""
    origin: str
    sentence: str
    fell: dict[str, int] = field(factory=dict)
    """Every invariant that fell until then, and after how many requests it did."""
    requests: int = 0
    seconds: float = 0.0
    seed: int = 0
    profile: str = ""
    """The last profile that was run: where it fell, if it did."""

    @property
    def killed(self) -> bool:
        """Whether the named invariant was falsified; others do not count."""
        return self.invariant in self.fell

    @property
    def others(self) -> list[str]:
        """The invariants that were falsified beside the named one."""
        return [name for name in self.fell if name != self.invariant]


class _Killed(BaseException):
    """The named invariant was falsified; Hypothesis lets this through."""


def try_mutant(mutant: Mutant, seed: int = 0, progress: Callable[[], None] = lambda: None) -> Verdict:
    """Run the gate against a mutant in the area of its invariant, up to the first input that its invariant rejects.

    ``progress`` is called after every request. Nothing is shrunk.
    """
    verdict = Verdict(mutant.name, mutant.invariant, mutant.origin, mutant.sentence, seed=seed)
    implementation = MutantImplementation(mutant)
    started = time.monotonic()
    with suppress(_Killed):
        for stage in STAGES:
            verdict.profile = stage
            check = Check(implementation, tuple(implementation.areas), PROFILES[stage], seed, shrink=False)
            check.progress = watch(check, verdict, progress)
            check.run()
    verdict.seconds = time.monotonic() - started
    return verdict


def watch(check: Check, verdict: Verdict, progress: Callable[[], None]) -> Callable[[str, int], None]:
    """Record what was falsified after every request, and stop the check once the named invariant was."""
    before = verdict.requests

    def note(_stream: str, _count: int) -> None:
        verdict.requests = before + check.report.requests
        for finding in (*check.report.falsified, *check.report.advisories):
            verdict.fell.setdefault(finding.invariant_id, verdict.requests)
        if verdict.killed:
            raise _Killed
        progress()

    return note
