"""What a checked implementation looks like to the gate.

An implementation offers areas of the contract, each through a few methods that take and return the record classes of
``rollproof.spec``. It may offer any subset. Whoever has a reassembler with NeMo RL's constructor and methods derives
from ``adapters.reassembler.ReassemblerAdapter`` and gets the areas ``rollout`` and ``group`` for one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from attrs import frozen

from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Staging
from rollproof.spec.records import (
    CallRecord,
    LinearizedRow,
    ReassemblerConfig,
    Receipt,
    StagedCall,
    TerminalSelection,
)
from rollproof.spec.requests import Answer, Area, GroupStep, Request, RolloutAnswer


class Refusal(Exception):
    """An implementation's refusal. ``reason`` reads ``code[:subject][: free text]``."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@frozen
class Deviation:
    """A known way in which an implementation differs from the contract.

    ``applies(request, expected, actual)`` says whether one disagreement is this deviation. It must be narrow: a
    deviation that matches more than it describes hides faults.
    """

    id: str
    area: Area
    section: str
    sentence: str
    applies: Callable[[Request, Answer, Answer], bool]


@runtime_checkable
class Implementation(Protocol):
    """The part every implementation has. Its methods are those of the areas it names."""

    name: str
    areas: frozenset[Area]
    deviations: Sequence[Deviation]


class Adapter:
    """A base for implementations: override the methods of the areas that you name in ``areas``.

    A method raises ``Refusal`` to refuse; any other exception counts as a crash.
    """

    name: ClassVar[str]
    areas: ClassVar[frozenset[Area]] = frozenset()
    deviations: ClassVar[Sequence[Deviation]] = ()

    # ── digest ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def prefix_digest(self, token_ids: tuple[int, ...]) -> str:
        """The cumulative hash of token ids (section 2), as 64 hex characters."""
        raise NotImplementedError

    def chain_digest(self, parent_chain_hash: str | None, token_ids: tuple[int, ...]) -> str:
        """The chain hash of a delta (section 2)."""
        raise NotImplementedError

    def extras_digest(self, extras: Any) -> str:
        """The digest of a call's extras (section 2)."""
        raise NotImplementedError

    def call_digest(self, call: StagedCall) -> str:
        """The digest of a staged call (section 2)."""
        raise NotImplementedError

    # ── receipt, terminal, lineage ──────────────────────────────────────────────────────────────────────────────────

    def parse_receipt(self, value: Any) -> Receipt:
        """A JSON value as a receipt (section 3)."""
        raise NotImplementedError

    def select_terminal(self, records: Sequence[CallRecord]) -> TerminalSelection:
        """The terminal call of a manifest (section 3)."""
        raise NotImplementedError

    def linearize(self, receipt: Receipt, calls: Sequence[StagedCall]) -> LinearizedRow:
        """The verified row of a rollout (section 4)."""
        raise NotImplementedError

    # ── rollout, group ──────────────────────────────────────────────────────────────────────────────────────────────

    def finalize_rollout(
        self, config: ReassemblerConfig, rollout_id: str, receipt: Any, reward: Any, staging: Staging
    ) -> RolloutAnswer:
        """One rollout finalized over a staging partition (section 5)."""
        raise NotImplementedError

    def finalize_groups(
        self, config: ReassemblerConfig, steps: Sequence[GroupStep], staging: Staging
    ) -> tuple[GroupOutcome, ...]:
        """Groups finalized one after the other by one reassembler (section 8)."""
        raise NotImplementedError
