"""What an implementation can be asked, and what it can answer.

A request is one input of one area; an answer is a value, a refusal with its reason, or a crash. The invariants of the
catalogue look at a request and an answer, so they hold for any implementation, in any language.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from attrs import field, frozen

from rollproof.spec.assembly import RouteFragment
from rollproof.spec.constants import MEDIA_SHA256
from rollproof.spec.outcomes import Dims, Failure, GroupOutcome
from rollproof.spec.plane import NO_FAULTS, Effect, Faults, Staging
from rollproof.spec.records import (
    CallRecord,
    Completion,
    Cut,
    FinalizedRollout,
    GroupRequest,
    ReassemblerConfig,
    Receipt,
    RouteAssemblyPlan,
    StagedCall,
    TrainedRow,
)
from rollproof.spec.retained import PrefixRow
from rollproof.spec.routes import ReplayedRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.views import Entry


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


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class DecodeRoutes:
    """The route tensor in a call's extras, any JSON value: a ``Tensor``, or refused as ``invalid_route_envelope``."""

    payload: Any


@frozen
class EncodeRoutes:
    """The envelope of a route tensor: a text."""

    routes: Tensor


@frozen
class ClassifySpan:
    """What a fragment contributes to a call: ``full``, ``tail`` or ``sentinel``."""

    carry_len: int
    generation_len: int
    staged_route_len: int


@frozen
class DecodePlan:
    """A published plan, any JSON value: a ``RouteAssemblyPlan``, or refused as ``invalid_route_plan``."""

    value: Any


@frozen
class EncodePlan:
    """The JSON object of a plan, or refused as ``invalid_route_plan``."""

    plan: RouteAssemblyPlan


@frozen
class ExecutePlan:
    """Assemble a row's routes from fragments: a ``Tensor``, or refused with a code of section 6."""

    plan: RouteAssemblyPlan
    fragments: Mapping[str, RouteFragment]
    dims: Dims
    canonical_len: int
    num_experts: int | None = None
    allow_repeated_experts: bool = False


@frozen
class ReplayGroup:
    """Finalize a group in deferred mode, then execute its published plans as the policy does: a ``GroupReplay``.

    ``config`` asks for direct router replay; the deferred run differs from it in that alone.
    """

    config: ReassemblerConfig
    request: GroupRequest
    staging: Staging
    dims: Dims


@frozen
class GroupReplay:
    """Each row's routes as direct mode publishes them, and as the policy replays the deferred ones."""

    direct: tuple[Tensor, ...]
    deferred: tuple[ReplayedRow, ...]


# ── media ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class ChainMedia:
    """The media of a chain from those of its calls: tensors in trainer layout, by name, or refused."""

    parts: tuple[Mapping[str, Tensor], ...]


@frozen
class StageMedia:
    """The media columns of one staged call, None for one without media: tensors by column, or refused."""

    bundle: Mapping[str, Tensor] | None
    pixel_dtype: str


# ── retained: a refusal is ``media_capture_rejected`` or ``retained_media_changed`` ─────────────────────────────────


@frozen
class MediaDigest:
    """The digest of named tensors, None for none at all: a text."""

    tensors: tuple[Entry, ...] | None
    scheme: str = MEDIA_SHA256
    """Or ``media-blake3-v1``."""


@frozen
class SameMedia:
    """Whether two sets of named tensors have the same digest, whatever it looks like: a bool."""

    left: tuple[Entry, ...] | None
    right: tuple[Entry, ...] | None


@frozen
class CutGeneration:
    """Stage a call that is cut some times and then completes: a ``StagedMedia`` per row, the final row's last.

    ``extras`` are the call's own, without spans; ``bundle`` is None for a call without media.
    """

    extras: Any
    spans: Any
    bundle: Mapping[str, Tensor] | None
    pixel_dtype: str
    cuts: int = 1
    scheme: str = MEDIA_SHA256
    """Of the digest in the prefix rows; or ``media-blake3-v1``."""


@frozen
class StagedMedia:
    """What one staged row says about media: its extras, and its media columns."""

    extras: Any
    columns: Mapping[str, Tensor]


@frozen
class Restore:
    """Take up a call that was cut, with spans and tensors of the request processed anew: a ``Restored``."""

    row: PrefixRow
    spans: Any
    tensors: tuple[Entry, ...] | None


@frozen
class Restored:
    """Whether the call goes on with media, and whether its tensors are the very ones that were handed in."""

    with_media: bool
    fresh: bool = True


@frozen
class CheckCompletion:
    """Whether every cut came to its end: all violations, as (code, subject), in order."""

    cuts: tuple[Cut, ...]
    completions: tuple[Completion, ...]
    rows: tuple[TrainedRow, ...]
    live_keys: tuple[str, ...]
    successor_keys: tuple[str, ...]


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
    | DecodeRoutes
    | EncodeRoutes
    | ClassifySpan
    | DecodePlan
    | EncodePlan
    | ExecutePlan
    | ReplayGroup
    | ChainMedia
    | StageMedia
    | MediaDigest
    | SameMedia
    | CutGeneration
    | Restore
    | CheckCompletion
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
