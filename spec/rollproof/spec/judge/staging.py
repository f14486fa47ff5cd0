"""The content of staging when an implementation gets a request, how the data plane reports misses, and what fails."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from attrs import define, field, frozen

from rollproof.spec.plane import Clear, DataPlane, Effect, Get, Outage, Put
from rollproof.spec.staged import Row


@frozen
class Faults:
    """Which operations of the data plane fail with an error of its own. Reads are counted from 0."""

    failing_get: int | None = None
    put: bool = False
    clear: bool = False


NO_FAULTS: Final = Faults()


class OnMiss(StrEnum):
    """How a data plane reports that it does not hold a row. The contract's answer is the same for all."""

    FEWER = "fewer"
    """A partial miss: the rows that are there, without an error. A total miss: the plane's own error for it."""
    EMPTY = "empty"
    """The rows that are there, be it none."""
    KEY_ERROR = "key_error"
    """A KeyError for any miss."""


@frozen
class Staging:
    """What a staging partition holds, how the data plane over it says "not there", and how it fails."""

    rows: Mapping[str, Row] = field(factory=dict)
    faults: Faults = NO_FAULTS
    on_miss: OnMiss = OnMiss.FEWER

    def plane(self) -> FailingPlane:
        """Return a data plane that holds these rows and fails as ``faults`` says."""
        return FailingPlane(self.rows, self.faults)


@define
class FailingPlane(DataPlane):
    """A data plane of which some operations fail."""

    faults: Faults = NO_FAULTS

    def take_effect(self, effect: Effect) -> None:
        """Note the effect, and raise ``Outage`` if this is the one that fails."""
        reads = sum(isinstance(done, Get) for done in self.effects)
        super().take_effect(effect)
        if isinstance(effect, Get) and reads == self.faults.failing_get:
            raise Outage("the data plane failed while reading")
        if (isinstance(effect, Put) and self.faults.put) or (isinstance(effect, Clear) and self.faults.clear):
            raise Outage("the data plane failed while writing")
