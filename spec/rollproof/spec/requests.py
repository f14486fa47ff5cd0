"""What an implementation can be asked, and what it can answer.

A request is one input of one area; an answer is a value, a refusal with its reason, or a crash. The invariants of the
catalogue look at a request and an answer, so they hold for any implementation, in any language.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

from attrs import field, frozen

from rollproof.spec.outcomes import Failure, GroupOutcome
from rollproof.spec.plane import NO_FAULTS, Effect, Faults, Staging
from rollproof.spec.records import CallRecord, FinalizedRollout, GroupRequest, ReassemblerConfig, Receipt, StagedCall


class Area(StrEnum):
    """A part of the contract that an implementation may offer by itself."""

    DIGEST = "digest"
    RECEIPT = "receipt"
    TERMINAL = "terminal"
    LINEAGE = "lineage"
    ROLLOUT = "rollout"
    GROUP = "group"
    ROUTES = "routes"
    MEDIA = "media"
    RETAINED = "retained"


# ── digest: each answers with 64 hex characters, or refuses with any reason ─────────────────────────────────────────


@frozen
class PrefixDigest:
    """The cumulative hash of a sequence of token ids."""

    token_ids: tuple[int, ...]


@frozen
class ChainDigest:
    """The chain hash of a delta on top of its parent's."""

    parent_chain_hash: str | None
    token_ids: tuple[int, ...]


@frozen
class ExtrasDigest:
    """The digest of a call's extras, any JSON-like value."""

    extras: Any


@frozen
class CallDigest:
    """The digest of a staged call; the call's own ``digest`` plays no part."""

    call: StagedCall


# ── receipt, terminal, lineage ──────────────────────────────────────────────────────────────────────────────────────


@frozen
class ParseReceipt:
    """Read any JSON value as a receipt: a ``Receipt``, or refused as ``invalid_receipt``."""

    value: Any


@frozen
class SelectTerminal:
    """The terminal call of a manifest: a ``TerminalSelection``."""

    records: tuple[CallRecord, ...]


@frozen
class Linearize:
    """Verify and lay out a rollout: a ``LinearizedRow``, or refused with a code of section 4."""

    receipt: Receipt
    calls: tuple[StagedCall, ...]


@frozen
class LinearizeGrowth:
    """How the work of linearizing grows with the number of calls: (work for ``few``, work for ``many``).

    The work is counted, not timed: executed lines of Python, so the answer is the same on any machine.
    """

    few: int = 1000
    many: int = 4000


# ── rollout and group ───────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class FinalizeRollout:
    """Finalize one rollout over a staging partition: a ``RolloutAnswer``."""

    config: ReassemblerConfig
    rollout_id: str
    receipt: Any
    reward: Any
    staging: Staging


@frozen
class RolloutAnswer:
    """The rollout with the effects it took, or the failure in place of it."""

    effects: tuple[Effect, ...]
    rollout: FinalizedRollout | None = None
    failure: Failure | None = None


@frozen
class GroupStep:
    """One call of ``finalize_group``, and what fails during it."""

    request: GroupRequest
    faults: Faults = NO_FAULTS


@frozen
class FinalizeGroups:
    """Finalize groups one after the other with one reassembler: a ``GroupOutcome`` each.

    Staging loses what a step clears. The same request twice is a retry.
    """

    config: ReassemblerConfig
    steps: tuple[GroupStep, ...]
    staging: Staging = field(factory=Staging)


Request: TypeAlias = (
    PrefixDigest
    | ChainDigest
    | ExtrasDigest
    | CallDigest
    | ParseReceipt
    | SelectTerminal
    | Linearize
    | LinearizeGrowth
    | FinalizeRollout
    | FinalizeGroups
)


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Accepted:
    """A value: what the request's docstring names."""

    value: Any


@frozen
class Refused:
    """A refusal in the contract's own way; ``reason`` reads ``code[:subject][: free text]``."""

    reason: str

    @property
    def code(self) -> str:
        """The reason up to its first colon."""
        return self.reason.partition(":")[0]


@frozen
class Crashed:
    """Something else escaped: the exception's type name and message."""

    error: str
    message: str = field(default="", eq=False)


Answer: TypeAlias = Accepted | Refused | Crashed

GroupAnswer: TypeAlias = tuple[GroupOutcome, ...]
"""The value of an accepted ``FinalizeGroups``."""
