"""The findings of a check, as plain records that tables, reports and replay files are made from."""

from __future__ import annotations

from attrs import define, field, frozen

from rollproof.spec.judge.catalogue import BY_ID
from rollproof.spec.judge.invariant import Invariant
from rollproof.spec.judge.requests import Answer, Area, Request


@frozen
class Finding:
    """One request on which an implementation and the contract disagree."""

    invariant_id: str
    request: Request
    expected: Answer
    actual: Answer
    complaint: str
    stream: str
    after: int
    """How many examples of the stream had run, this one included, when it was first seen."""
    deviation: str | None = None
    """The declared deviation that it is an instance of."""

    @property
    def invariant(self) -> Invariant:
        """The invariant that the request violates."""
        return BY_ID[self.invariant_id]


@define
class InvariantTally:
    """One invariant's examples and its first finding."""

    examples: int = 0
    finding: Finding | None = None
    refused: int = 0
    """Examples that the implementation refused."""
    left_out: int = 0
    """Requests about it that the implementation could not be asked."""
    silent: int = 0
    """Examples about which it says nothing, because the implementation gave no value and need not."""
    offered: bool = True
    """Whether the implementation answers requests that it is about."""

    @property
    def missed(self) -> bool:
        """Whether nothing is known about it, though the implementation could have been asked."""
        return self.offered and self.examples == self.silent and not self.left_out


@define
class CodeTally:
    """How often one rejection code was reached, and how often the answer was correct."""

    driven: int = 0
    right: int = 0
    excused: int = 0
    """Wrong answers that are instances of a declared deviation."""
    left_out: int = 0
    """Requests with this code that the implementation could not be asked."""
    offered: bool = True
    """Whether the implementation answers requests that can have the code."""

    @property
    def missed(self) -> bool:
        """Whether nothing is known about it, though the implementation could have been asked."""
        return self.offered and not self.driven and not self.left_out


@define
class StreamTally:
    """How many requests of one stream were answered, and in how many seconds, shrinking included."""

    requests: int = 0
    seconds: float = 0.0


@define
class Report:
    """Everything one check of one implementation found."""

    implementation: str
    areas: tuple[Area, ...]
    profile: str
    seed: int
    max_examples: int | None = None
    strict: bool = False
    """Whether a declared deviation that occurs is a failure too."""
    declared: dict[str, str] = field(factory=dict)
    """Declared deviations: id to sentence."""
    invariants: dict[str, InvariantTally] = field(factory=dict)
    codes: dict[tuple[Area, str], CodeTally] = field(factory=dict)
    """By area and name, as ``gate.codes.reaches`` lists them."""
    streams: dict[tuple[Area, str], StreamTally] = field(factory=dict)
    deviations: dict[str, Finding] = field(factory=dict)
    deviation_counts: dict[str, int] = field(factory=dict)
    requests: int = 0
    left_out: int = 0
    """Requests that the implementation could not be asked."""
    seconds: float = 0.0

    def merge(self, other: Report) -> None:
        """Add what a check of other areas of the same implementation found."""
        self.areas += other.areas
        self.declared |= other.declared
        self.invariants |= other.invariants
        self.codes |= other.codes
        self.streams |= other.streams
        for name, finding in other.deviations.items():
            self.deviations.setdefault(name, finding)
        for name, count in other.deviation_counts.items():
            self.deviation_counts[name] = self.deviation_counts.get(name, 0) + count
        self.requests += other.requests
        self.left_out += other.left_out
        self.seconds += other.seconds

    @property
    def falsified(self) -> list[Finding]:
        """The first finding of every invariant that does not hold."""
        found = (tally.finding for tally in self.invariants.values() if tally.finding is not None)
        return [finding for finding in found if not finding.invariant.advisory]

    @property
    def advisories(self) -> list[Finding]:
        """The first finding of every advisory that was met: noted, and no fault."""
        found = (tally.finding for tally in self.invariants.values() if tally.finding is not None)
        return [finding for finding in found if finding.invariant.advisory]

    @property
    def held(self) -> bool:
        """Whether every invariant held, declared deviations aside unless the check is strict."""
        return not self.falsified and not (self.strict and self.deviations)

    @property
    def not_exercised(self) -> list[str]:
        """The invariants and codes about which no request asked, though the implementation offers them."""
        invariants = [name for name, tally in self.invariants.items() if tally.missed]
        return invariants + [f"{area}: {name}" for (area, name), tally in self.codes.items() if tally.missed]

    @property
    def exercised(self) -> bool:
        """Whether the check asked about everything that it should have; one with fewer examples on purpose need not."""
        return self.max_examples is not None or not self.not_exercised

    @property
    def ending(self) -> str:
        """How the check ended, in words: what was falsified, what was not exercised, and what deviated as declared."""
        names = ", ".join(self.deviations)
        if self.falsified:
            rest = f" · deviates: {names}" if self.strict and names else ""
            return f"falsified: {', '.join(finding.invariant_id for finding in self.falsified)}{rest}"
        if self.strict and names:
            return f"deviates: {names}"
        if not self.exercised:
            return f"not exercised: {', '.join(self.not_exercised)}"
        return f"held, except for declared deviations: {names}" if names else "all invariants held"

    @property
    def silent_deviations(self) -> list[str]:
        """Declared deviations that did not show."""
        return [name for name in self.declared if name not in self.deviations]
