"""What a checked implementation looks like to the gate.

An implementation offers areas of the contract, each through a few methods that take and return the record classes of
``rollproof.spec``. It may offer any subset. Whoever has a reassembler with NeMo RL's constructor and methods derives
from ``adapters.reassembler.ReassemblerAdapter`` and gets the areas ``rollout`` and ``group`` for one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from attrs import frozen

from rollproof.properties.errors import InputError
from rollproof.spec.assembly import RouteFragment
from rollproof.spec.outcomes import Dims, GroupOutcome
from rollproof.spec.plane import Staging
from rollproof.spec.records import (
    CallRecord,
    Completion,
    Cut,
    GroupRequest,
    LinearizedRow,
    ReassemblerConfig,
    Receipt,
    RouteAssemblyPlan,
    StagedCall,
    TerminalSelection,
    TrainedRow,
)
from rollproof.spec.requests import (
    Answer,
    Area,
    CallDigest,
    ChainDigest,
    ChainMedia,
    CheckCompletion,
    ClassifySpan,
    CutGeneration,
    DecodePlan,
    DecodeRoutes,
    EncodePlan,
    EncodeRoutes,
    ExecutePlan,
    ExtrasDigest,
    FinalizeGroups,
    FinalizeRollout,
    GroupReplay,
    GroupStep,
    Linearize,
    LinearizeGrowth,
    MediaDigest,
    ParseReceipt,
    PrefixDigest,
    ReplayGroup,
    Request,
    Restore,
    Restored,
    RolloutAnswer,
    SameMedia,
    SelectTerminal,
    StagedMedia,
    StageMedia,
)
from rollproof.spec.retained import PrefixRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.views import Entry


class LeftOut(InputError):
    """An implementation cannot be asked this, so nothing is known about its answer; the message says why."""


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

    # ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def decode_routes(self, payload: Any) -> Tensor:
        """The route tensor ``[T, L, K]`` of an envelope or of nested lists (section 6)."""
        raise NotImplementedError

    def encode_routes(self, routes: Tensor) -> str:
        """The envelope of a route tensor (section 6)."""
        raise NotImplementedError

    def classify_span(self, carry_len: int, generation_len: int, staged_route_len: int) -> str:
        """``full``, ``tail`` or ``sentinel`` (section 6)."""
        raise NotImplementedError

    def decode_plan(self, value: Any) -> RouteAssemblyPlan:
        """A JSON value as a route plan (section 6)."""
        raise NotImplementedError

    def encode_plan(self, plan: RouteAssemblyPlan) -> dict[str, Any]:
        """The JSON object of a route plan (section 6)."""
        raise NotImplementedError

    def execute_plan(
        self,
        plan: RouteAssemblyPlan,
        fragments: Mapping[str, RouteFragment],
        dims: Dims,
        canonical_len: int,
        num_experts: int | None,
        allow_repeated_experts: bool,
    ) -> Tensor:
        """The int16 routes ``[canonical_len, L, K]`` of a row (section 6)."""
        raise NotImplementedError

    def replay_group(
        self, config: ReassemblerConfig, request: GroupRequest, staging: Staging, dims: Dims
    ) -> GroupReplay:
        """A group's routes in direct mode, and as the policy replays them from deferred mode (section 6)."""
        raise NotImplementedError

    # ── media, retained ─────────────────────────────────────────────────────────────────────────────────────────────

    def chain_media(self, parts: Sequence[Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """The media of a chain in trainer layout, from the bundles of its calls (section 7)."""
        raise NotImplementedError

    def stage_media(self, bundle: Mapping[str, Tensor] | None, pixel_dtype: str) -> Mapping[str, Tensor]:
        """The media columns of one staged call, but for the digest of its metadata (section 9)."""
        raise NotImplementedError

    def media_digest(self, tensors: tuple[Entry, ...] | None, scheme: str) -> str:
        """``<scheme>:<hex>``, where the scheme is ``media-sha256-v1`` or ``media-blake3-v1`` (section 7)."""
        raise NotImplementedError

    def same_media(self, left: tuple[Entry, ...] | None, right: tuple[Entry, ...] | None) -> bool:
        """Whether the implementation's digest, of whatever form, takes both for the same (section 7)."""
        raise NotImplementedError

    def cut_generation(
        self,
        extras: Any,
        spans: Any,
        bundle: Mapping[str, Tensor] | None,
        pixel_dtype: str,
        cuts: int,
        scheme: str,
    ) -> tuple[StagedMedia, ...]:
        """The rows of a call that is cut ``cuts`` times and then completes; ``scheme`` is the digest's (section 7)."""
        raise NotImplementedError

    def restore(self, row: PrefixRow, spans: Any, tensors: tuple[Entry, ...] | None) -> Restored:
        """A call taken up again from its first prefix row, with fresh media (section 7)."""
        raise NotImplementedError

    def check_completion(
        self,
        cuts: Sequence[Cut],
        completions: Sequence[Completion],
        rows: Sequence[TrainedRow],
        live_keys: Sequence[str],
        successor_keys: Sequence[str],
    ) -> tuple[tuple[str, str], ...]:
        """All violations as (code, subject), in order (section 7)."""
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


METHODS: Final[dict[type, str]] = {
    PrefixDigest: "prefix_digest",
    ChainDigest: "chain_digest",
    ExtrasDigest: "extras_digest",
    CallDigest: "call_digest",
    ParseReceipt: "parse_receipt",
    SelectTerminal: "select_terminal",
    Linearize: "linearize",
    LinearizeGrowth: "linearize",
    FinalizeRollout: "finalize_rollout",
    FinalizeGroups: "finalize_groups",
    DecodeRoutes: "decode_routes",
    EncodeRoutes: "encode_routes",
    ClassifySpan: "classify_span",
    DecodePlan: "decode_plan",
    EncodePlan: "encode_plan",
    ExecutePlan: "execute_plan",
    ReplayGroup: "replay_group",
    ChainMedia: "chain_media",
    StageMedia: "stage_media",
    MediaDigest: "media_digest",
    SameMedia: "same_media",
    CutGeneration: "cut_generation",
    Restore: "restore",
    CheckCompletion: "check_completion",
}
"""The method that answers each kind of request. All but ``LinearizeGrowth`` pass the request's fields, in order."""


def offers(implementation: Any, kind: type) -> bool:
    """Whether an implementation answers this kind of request.

    That is what its attribute ``offered`` says, a set of kinds; without one, whether it has the method, and not just
    the base's.
    """
    offered = getattr(implementation, "offered", None)
    if offered is not None:
        return kind in offered
    method = getattr(type(implementation), METHODS[kind], None)
    return method is not None and method is not getattr(Adapter, METHODS[kind])
