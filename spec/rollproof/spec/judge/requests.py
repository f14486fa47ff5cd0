"""The requests that an implementation can get, and the answers that it can give.

A request is one input of one area; an answer is a value, a refusal with its reason, or a crash. The invariants of the
catalogue compare a request with an answer, so they hold for any implementation, in any language.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from rollproof.spec.constants import AS_STAGED, MEDIA_SHA256
from rollproof.spec.cut_records import Completion, Cut, CutKey, TrainedRow
from rollproof.spec.extras import RouteFragment
from rollproof.spec.judge.area import CAPABILITIES as CAPABILITIES
from rollproof.spec.judge.area import Area as Area
from rollproof.spec.judge.area import Request as Request
from rollproof.spec.judge.cuts import (
    CutHistory,
    ParseCutKey,
    PlayCuts,
    RestoreCut,
    RestoredCut,
    RestoredRoutes,
)
from rollproof.spec.judge.portable import (
    AdvantageRequest,
    Advantages,
    AlignRoutes,
    MediaRows,
    MergeCalls,
    MergedTwice,
    MergeTwice,
)
from rollproof.spec.judge.staging import NO_FAULTS, Faults, Staging
from rollproof.spec.judge.views import Entry
from rollproof.spec.outcomes import Dims, Failure, GroupOutcome
from rollproof.spec.plane import Effect
from rollproof.spec.portable import MediaRow, Merged, RoutedRow
from rollproof.spec.records import (
    CAPABILITY,
    CallRecord,
    FinalizedRollout,
    GroupRequest,
    LinearizedRow,
    ReassemblerConfig,
    Receipt,
    RouteAssemblyPlan,
    StagedCall,
    TerminalSelection,
)
from rollproof.spec.replay import ReplayedRow
from rollproof.spec.retained import PrefixRow
from rollproof.spec.tensor import Tensor

# ── digest: each answers with 64 hex characters, or refuses with any reason ─────────────────────────────────────────


@frozen
class PrefixDigest(Request):
    """The cumulative hash of a sequence of token ids."""

    token_ids: tuple[int, ...]


@frozen
class ChainDigest(Request):
    """The chain hash of a delta on top of its parent's."""

    parent_chain_hash: str | None
    token_ids: tuple[int, ...]


@frozen
class ExtrasDigest(Request):
    """The digest of a call's extras, any JSON-like value."""

    extras: Any


@frozen
class CallDigest(Request):
    """The digest of a staged call; the call's own ``digest`` plays no part."""

    call: StagedCall


# ── receipt, terminal, lineage ──────────────────────────────────────────────────────────────────────────────────────


@frozen
class ParseReceipt(Request):
    """Read any JSON value as a receipt: a ``Receipt``, or refused as ``invalid_receipt``."""

    value: Any


@frozen
class SelectTerminal(Request):
    """The terminal call of a manifest: a ``TerminalSelection``."""

    records: tuple[CallRecord, ...]


@frozen
class Linearize(Request):
    """Verify and lay out a rollout: a ``LinearizedRow``, or refused with a code of section 4."""

    receipt: Receipt
    calls: tuple[StagedCall, ...]


@frozen
class LinearizeGrowth(Request):
    """How the work of linearizing grows with the number of calls: (work for ``few``, work for ``many``).

    The work is counted, not timed: executed lines of Python, so the answer is the same on any machine.
    """

    few: int = 1000
    many: int = 4000


# ── rollout and group ───────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class FinalizeRollout(Request):
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
class FinalizeGroups(Request):
    """Finalize groups one after the other with one reassembler: a ``GroupOutcome`` each.

    Staging loses what a step clears. The same request twice is a retry.
    """

    config: ReassemblerConfig
    steps: tuple[GroupStep, ...]
    staging: Staging = field(factory=Staging)


# ── routes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class DecodeRoutes(Request):
    """The route tensor in a call's extras, any JSON value: a ``Tensor``, or refused as ``invalid_route_envelope``."""

    payload: Any


@frozen
class EncodeRoutes(Request):
    """The envelope of a route tensor: a string."""

    routes: Tensor


@frozen
class ClassifySpan(Request):
    """What a fragment contributes to a call: ``full``, ``tail`` or ``sentinel``."""

    carry_len: int
    generation_len: int
    staged_route_len: int


@frozen
class DecodePlan(Request):
    """A published plan, any JSON value: a ``RouteAssemblyPlan``, or refused as ``invalid_route_plan``."""

    value: Any


@frozen
class EncodePlan(Request):
    """The JSON object of a plan, or refused as ``invalid_route_plan``."""

    plan: RouteAssemblyPlan


@frozen
class ExecutePlan(Request):
    """Assemble a row's routes from fragments: a ``Tensor``, or refused with a code of section 6."""

    plan: RouteAssemblyPlan
    fragments: Mapping[str, RouteFragment]
    dims: Dims
    canonical_len: int
    num_experts: int | None = None
    allow_repeated_experts: bool = False
    route_boundary: str = field(default=AS_STAGED, metadata=CAPABILITY)


@frozen
class AlignEngineRows(Request):
    """A call's routes from an engine's rows: a ``Tensor`` int16 ``[tokens, L, K]``, or refused with a code."""

    rows: Tensor
    start: int
    tokens: int
    num_experts: int | None = None


@frozen
class ReplayGroup(Request):
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
class ChainMedia(Request):
    """The media of a chain from those of its calls: tensors in trainer layout, by name, or refused."""

    parts: tuple[Mapping[str, Tensor], ...]


@frozen
class StageMedia(Request):
    """The media columns of one staged call, None for one without media: tensors by column, or refused."""

    bundle: Mapping[str, Tensor] | None
    pixel_dtype: str


# ── retained: a refusal is ``media_capture_rejected`` or ``retained_media_changed`` ─────────────────────────────────


@frozen
class MediaDigest(Request):
    """The digest of named tensors, None for none at all: a string."""

    tensors: tuple[Entry, ...] | None
    scheme: str = MEDIA_SHA256
    """Or ``media-blake3-v1``."""


@frozen
class SameMedia(Request):
    """Whether two sets of named tensors have the same digest, whatever it looks like: a bool."""

    left: tuple[Entry, ...] | None
    right: tuple[Entry, ...] | None


@frozen
class CutGeneration(Request):
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
class Restore(Request):
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
class CheckCompletion(Request):
    """Whether every cut came to its end: all violations, as (code, subject), in order."""

    cuts: tuple[Cut, ...]
    completions: tuple[Completion, ...]
    rows: tuple[TrainedRow, ...]
    live_keys: tuple[str, ...]
    successor_keys: tuple[str, ...]


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Accepted:
    """A value: what the request's docstring names; ``policies`` are those that the implementation declares."""

    value: Any
    policies: frozenset[str] = field(default=frozenset(), eq=False)


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


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Kind:
    """One kind of request: what an implementation needs to answer it, and the type of the value it accepts with.

    The implementation answers by a method called ``method``, which takes the request's fields in order. On the wire
    the operation has the same name.
    """

    request: type[Request]
    area: Area
    method: str
    answer: Any
    measured: bool = False
    """Whether the answer is measured inside the process while ``method`` runs. The wire does not carry these."""


KINDS: Final = (
    Kind(PrefixDigest, Area.DIGEST, "prefix_digest", str),
    Kind(ChainDigest, Area.DIGEST, "chain_digest", str),
    Kind(ExtrasDigest, Area.DIGEST, "extras_digest", str),
    Kind(CallDigest, Area.DIGEST, "call_digest", str),
    Kind(ParseReceipt, Area.RECEIPT, "parse_receipt", Receipt),
    Kind(SelectTerminal, Area.TERMINAL, "select_terminal", TerminalSelection),
    Kind(Linearize, Area.LINEAGE, "linearize", LinearizedRow),
    Kind(LinearizeGrowth, Area.LINEAGE, "linearize", tuple[int, int], measured=True),
    Kind(FinalizeRollout, Area.ROLLOUT, "finalize_rollout", RolloutAnswer),
    Kind(FinalizeGroups, Area.GROUP, "finalize_groups", tuple[GroupOutcome, ...]),
    Kind(DecodeRoutes, Area.ROUTES, "decode_routes", Tensor),
    Kind(EncodeRoutes, Area.ROUTES, "encode_routes", str),
    Kind(ClassifySpan, Area.ROUTES, "classify_span", str),
    Kind(DecodePlan, Area.ROUTES, "decode_plan", RouteAssemblyPlan),
    Kind(EncodePlan, Area.ROUTES, "encode_plan", Mapping[str, Any]),
    Kind(ExecutePlan, Area.ROUTES, "execute_plan", Tensor),
    Kind(ReplayGroup, Area.ROUTES, "replay_group", GroupReplay),
    Kind(AlignEngineRows, Area.BOUNDARY, "align_engine_rows", Tensor),
    Kind(ChainMedia, Area.MEDIA, "chain_media", Mapping[str, Tensor]),
    Kind(StageMedia, Area.MEDIA, "stage_media", Mapping[str, Tensor]),
    Kind(MediaDigest, Area.RETAINED, "media_digest", str),
    Kind(SameMedia, Area.RETAINED, "same_media", bool),
    Kind(CutGeneration, Area.RETAINED, "cut_generation", tuple[StagedMedia, ...]),
    Kind(Restore, Area.RETAINED, "restore", Restored),
    Kind(CheckCompletion, Area.RETAINED, "check_completion", tuple[tuple[str, str], ...]),
    Kind(MergeCalls, Area.MERGE, "merge_calls", Merged),
    Kind(MergeTwice, Area.MERGE, "merge_calls", MergedTwice, measured=True),
    Kind(AlignRoutes, Area.ROUTE_ALIGN, "align_routes", tuple[RoutedRow, ...]),
    Kind(AdvantageRequest, Area.ADVANTAGE, "advantages", Advantages),
    Kind(MediaRows, Area.MEDIA_ROWS, "media_rows", tuple[MediaRow, ...]),
    Kind(ParseCutKey, Area.CUTS, "parse_cut_key", CutKey),
    Kind(PlayCuts, Area.CUTS, "play_cuts", CutHistory),
    Kind(RestoreCut, Area.CUTS, "restore_cut", RestoredCut),
    Kind(RestoredRoutes, Area.CUTS, "restored_routes", Tensor),
)
"""Every kind of request. Protocol, wire and evidence derive from this table; the oracle answers each kind in it."""

KIND_OF: Final[Mapping[type[Request], Kind]] = {kind.request: kind for kind in KINDS}
