"""What a check found, as plain records that tables, reports and replay files are made from."""

from __future__ import annotations

from attrs import define, field, frozen

from rollproof.spec.invariant import Invariant
from rollproof.spec.invariants import BY_ID
from rollproof.spec.requests import Answer, Area, Request


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


@define
class CodeTally:
    """How often one rejection code was driven, and how often answered rightly."""

    driven: int = 0
    right: int = 0
    excused: int = 0
    """Wrong answers that are instances of a declared deviation."""


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
    declared: dict[str, str] = field(factory=dict)
    """Declared deviations: id to sentence."""
    invariants: dict[str, InvariantTally] = field(factory=dict)
    codes: dict[tuple[Area, str], CodeTally] = field(factory=dict)
    streams: dict[tuple[Area, str], StreamTally] = field(factory=dict)
    deviations: dict[str, Finding] = field(factory=dict)
    deviation_counts: dict[str, int] = field(factory=dict)
    requests: int = 0
    left_out: int = 0
    """Requests that the implementation could not be asked."""
    seconds: float = 0.0

    def merge(self, other: Report) -> None:
        """Take over what a check of other areas of the same implementation found."""
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
        return [tally.finding for tally in self.invariants.values() if tally.finding is not None]

    @property
    def held(self) -> bool:
        """Whether every invariant held, declared deviations aside."""
        return not self.falsified

    @property
    def undriven(self) -> list[tuple[Area, str]]:
        """Codes that no request drove."""
        return [key for key, tally in self.codes.items() if tally.driven == 0]

    @property
    def silent_deviations(self) -> list[str]:
        """Declared deviations that did not show."""
        return [name for name in self.declared if name not in self.deviations]
