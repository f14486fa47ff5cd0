"""Every code with which the contract refuses something: where it arises, what it means, and what shadows it.

A reason reads ``code[:subject][: free text]``. The code is normative, and for the codes of ``WITH_SUBJECT`` the subject
too. A code is *shadowed* where an earlier rule always fires first: it stays in the catalogue, because it is part of the
wire vocabulary and because another implementation may reach it by getting the earlier rule wrong.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from functools import partial
from typing import Final

from attrs import field, frozen


class Stage(StrEnum):
    """Where a refusal arises: first the stages that a rollout passes, in order, then those called separately."""

    RECEIPT = "receipt"
    ROLLOUT = "rollout"
    REBUILD = "rebuild"
    MEDIA = "media"
    SAMPLER = "sampler"
    ROUTES = "routes"
    ASSEMBLY = "assembly"
    REWARD = "reward"
    GROUP = "group"
    CODEC = "codec"
    RETAINED = "retained"
    COMPLETION = "completion"
    CUTS = "cuts"


@frozen
class Rejection:
    """The catalogue entry of one code."""

    stage: Stage
    section: str
    code: str
    sentence: str
    shadowed_by: str | None = field(default=None, kw_only=True)
    """The earlier rule that always fires first, or None where the code can be reached."""
    hidden_in_rollout_by: str | None = field(default=None, kw_only=True)
    """For a code that only a direct call reaches: what fires first inside ``finalize_rollout``."""
    never_in_rollout: str | None = field(default=None, kw_only=True)
    """For a code that only a direct call reaches and no earlier rule hides: why a rollout cannot break the rule."""
    capability: str | None = field(default=None, kw_only=True)
    """The capability that the code belongs to: without it, nothing is refused with this code."""

    @property
    def of_rollouts(self) -> bool:
        """Whether the code can be the answer of ``finalize_rollout``."""
        return self.shadowed_by is None and self.hidden_in_rollout_by is None and self.never_in_rollout is None


_receipt = partial(Rejection, Stage.RECEIPT, "3")
_rollout = partial(Rejection, Stage.ROLLOUT, "5")
_rebuild = partial(Rejection, Stage.REBUILD, "4")
_media = partial(Rejection, Stage.MEDIA, "7")
_sampler = partial(Rejection, Stage.SAMPLER, "12", capability="sampler")
_routes = partial(Rejection, Stage.ROUTES, "6")
_assembly = partial(Rejection, Stage.ASSEMBLY, "6")
_retained = partial(Rejection, Stage.RETAINED, "7")
_completion = partial(Rejection, Stage.COMPLETION, "7")
_cuts = partial(Rejection, Stage.CUTS, "11", capability="cuts")


class Code(Enum):
    """All rejection codes, stage by stage. A member's value is its catalogue entry."""

    # ── reading the receipt (sections 3 and 5) ────────────────────────────────────────────────────────────────────────
    MISSING_RECEIPT = Rejection(Stage.RECEIPT, "5", "missing_receipt", "The rollout has no receipt.")
    INVALID_RECEIPT = _receipt("invalid_receipt", "The receipt breaks a rule of its own.")

    # ── one rollout, before and while its chain is rebuilt (section 5) ────────────────────────────────────────────────
    IDENTITY_MISMATCH = _rollout("identity_mismatch", "The receipt names another rollout than the one asked for.")
    ROLLOUT_FAILED = _rollout("rollout_failed", "The receipt carries a failure reason.")
    CAPTURE_POISONED = _rollout("capture_poisoned", "The receipt says that its token capture cannot be trusted.")
    DUPLICATE_STAGING_KEY = _rollout("duplicate_staging_key", "Two manifest rows name the same staging key.")
    DUPLICATE_MANIFEST_CALL_ID = _rollout(
        "duplicate_manifest_call_id", "Two manifest rows name the same call.", shadowed_by="invalid_receipt"
    )
    MISSING_STAGING_ROW = _rollout("missing_staging_row", "The data plane does not hold every row of the manifest.")
    INVALID_STAGING_ROW = _rollout(
        "invalid_staging_row", "A staged row lacks a column, holds a wrong one, or contradicts itself (D17)."
    )
    STAGING_KEY_MISMATCH = _rollout(
        "staging_key_mismatch", "A fetched row is not the row of the key that was asked for."
    )
    CALL_ID_MISMATCH = _rollout("call_id_mismatch", "A fetched row is another call than its manifest row names.")
    DUPLICATE_FETCHED_CALL_ID = _rollout(
        "duplicate_fetched_call_id", "Two fetched rows are the same call.", shadowed_by="call_id_mismatch"
    )
    REBUILD_FAILED = _rollout("rebuild_failed", "The verified chain could not be rebuilt; the subject says why.")

    # ── verify and linearize (section 4) ──────────────────────────────────────────────────────────────────────────────
    UNSUPPORTED_SCHEMA = _rebuild(
        "unsupported_schema", "The receipt's schema version is not 2.", hidden_in_rollout_by="invalid_receipt"
    )
    UNSUPPORTED_DIGEST = _rebuild(
        "unsupported_digest", "The receipt's digest version is not 2.", hidden_in_rollout_by="invalid_receipt"
    )
    UNSUPPORTED_EXTRAS_DIGEST = _rebuild(
        "unsupported_extras_digest",
        "The receipt's extras digest version is not 1.",
        hidden_in_rollout_by="invalid_receipt",
    )
    REBUILD_ROLLOUT_FAILED = _rebuild(
        "rollout_failed", "The receipt carries a failure reason.", hidden_in_rollout_by="rollout_failed"
    )
    REBUILD_CAPTURE_POISONED = _rebuild(
        "capture_poisoned", "The receipt's capture is poisoned.", hidden_in_rollout_by="capture_poisoned"
    )
    EMPTY_MANIFEST = _rebuild("empty_manifest", "The manifest lists no call.", hidden_in_rollout_by="invalid_receipt")
    DUPLICATE_MANIFEST_ROW = _rebuild(
        "duplicate_manifest_row", "Two manifest rows name the same call.", hidden_in_rollout_by="invalid_receipt"
    )
    REBUILD_DUPLICATE_STAGING_KEY = _rebuild(
        "duplicate_staging_key", "Two manifest rows name one key.", hidden_in_rollout_by="duplicate_staging_key"
    )
    ROW_COUNT_MISMATCH = _rebuild(
        "row_count_mismatch",
        "There is not exactly one staged call per manifest row.",
        hidden_in_rollout_by="missing_staging_row",
    )
    DUPLICATE_SNAPSHOT = _rebuild(
        "duplicate_snapshot", "The same call was staged for an earlier row.", hidden_in_rollout_by="call_id_mismatch"
    )
    SNAPSHOT_IDENTITY_MISMATCH = _rebuild(
        "snapshot_identity_mismatch", "The staged call is not in the manifest.", hidden_in_rollout_by="call_id_mismatch"
    )
    SNAPSHOT_ORDER_MISMATCH = _rebuild(
        "snapshot_order_mismatch", "The staged call belongs to another row.", hidden_in_rollout_by="call_id_mismatch"
    )
    WRONG_ROLLOUT = _rebuild("wrong_rollout", "The staged call belongs to another rollout.")
    WRONG_MODEL_CALL_ID = _rebuild(
        "wrong_model_call_id",
        "The staged call's id differs from the manifest's.",
        shadowed_by="snapshot_order_mismatch",
        hidden_in_rollout_by="call_id_mismatch",
    )
    WRONG_PARENT_CALL_ID = _rebuild("wrong_parent_call_id", "The staged call's parent differs from the manifest's.")
    WRONG_MODE = _rebuild("wrong_mode", "The staged call's mode differs.", hidden_in_rollout_by="wrong_parent_call_id")
    WRONG_PREV_LEN = _rebuild("wrong_prev_len", "The staged call's prev_len differs.")
    WRONG_DELTA_LEN = _rebuild("wrong_delta_len", "The staged call's delta_len differs.")
    WRONG_CUM_LEN = _rebuild(
        "wrong_cum_len", "The staged call's cum_len differs.", hidden_in_rollout_by="wrong_prev_len or wrong_delta_len"
    )
    WRONG_WEIGHT_VERSION = _rebuild("wrong_weight_version", "The staged call's weight version differs.")
    WRONG_DIGEST = _rebuild("wrong_digest", "The staged call's digest differs.")
    WRONG_EXTRAS_DIGEST = _rebuild("wrong_extras_digest", "The staged call's extras digest differs.")
    WRONG_CHAIN_HASH = _rebuild("wrong_chain_hash", "The staged call's chain hash differs.")
    WRONG_CUMULATIVE_HASH = _rebuild("wrong_cumulative_hash", "The staged call's cumulative hash differs.")
    WRONG_SCHEMA_VERSION = _rebuild(
        "wrong_schema_version", "The three schema versions differ.", hidden_in_rollout_by="invalid_staging_row"
    )
    WRONG_DIGEST_VERSION = _rebuild(
        "wrong_digest_version", "The three digest versions differ.", hidden_in_rollout_by="invalid_staging_row"
    )
    WRONG_EXTRAS_DIGEST_VERSION = _rebuild(
        "wrong_extras_digest_version",
        "The three extras digest versions differ.",
        hidden_in_rollout_by="invalid_staging_row",
    )
    INVALID_SNAPSHOT = _rebuild(
        "invalid_snapshot",
        "The staged call breaks a rule of sections 1 or 3.",
        hidden_in_rollout_by="invalid_staging_row",
    )
    CORRUPT_DIGEST = _rebuild("corrupt_digest", "The staged call does not digest to the digest it carries.")
    MISSING_PARENT = _rebuild("missing_parent", "A call's parent is not in the manifest.")
    PARENT_LENGTH_MISMATCH = _rebuild("parent_length_mismatch", "A call does not start where its parent ends.")
    LINEAGE_CYCLE = _rebuild("lineage_cycle", "Following parents from a call repeats a call.")
    MISSING_TERMINAL = _rebuild(
        "missing_terminal", "The terminal call is not named or not listed.", hidden_in_rollout_by="invalid_receipt"
    )
    CHAIN_HASH_MISMATCH = _rebuild("chain_hash_mismatch", "A call's tokens do not extend its parent's chain hash.")
    INVALID_MASK_ORDER = _rebuild("invalid_mask_order", "A call's mask is not carry, then generation.")
    EMPTY_GENERATION = _rebuild("empty_generation", "A call of the chain generated no token.")
    EMPTY_TRAINING_ROW = _rebuild(
        "empty_training_row", "The row has no generated token.", shadowed_by="empty_generation"
    )
    CUMULATIVE_HASH_MISMATCH = _rebuild(
        "cumulative_hash_mismatch", "The terminal call's prefix hash does not cover the row."
    )

    # ── media of a rollout (section 7) ────────────────────────────────────────────────────────────────────────────────
    MEDIA_CHAIN_IDENTITY = _media(
        "media_chain_identity",
        "A call of the chain has no staged row.",
        shadowed_by="missing_staging_row or call_id_mismatch",
    )
    MEDIA_COMMITMENT = _media("media_commitment", "The extras of a call without routes are not what it committed to.")
    MEDIA_CHAIN_INCOMPATIBLE = _media(
        "media_chain_incompatible", "The chain's calls mix images and videos, pixel dtypes or feature widths."
    )
    INVALID_MEDIA_COLUMNS = _media(
        "invalid_media_columns", "A call's media cannot be read, or are not a valid bundle (D18)."
    )
    MEDIA_PLACEHOLDER_MISMATCH = _media(
        "media_placeholder_mismatch",
        "A call's media spans disagree with its tokens, its bundle, its flags or what the policy generated.",
    )

    # ── the sampler columns of a rollout (section 12) ─────────────────────────────────────────────────────────────────
    TOPK_LENGTH_MISMATCH = _sampler(
        "topk_length_mismatch", "A call's sampler columns are not one row of candidates per generated token."
    )
    TOPK_VALUE_RANGE = _sampler(
        "topk_value_range", "A candidate is no token, is listed twice, or has no log-probability (D30)."
    )

    # ── routes of a rollout (section 6) ───────────────────────────────────────────────────────────────────────────────
    UNSUPPORTED_ROUTE_ENCODING = _routes(
        "unsupported_route_encoding", "A call's routes are staged in an encoding whose codec is not public (D22)."
    )
    ROUTED_LEN_MISMATCH = _routes(
        "routed_len_mismatch", "A call staged routes for another number of tokens than it has."
    )
    UNSUPPORTED_ROUTE_BOUNDARY = _routes(
        "unsupported_route_boundary", "A call's extras announce a boundary route, in any spelling (D21)."
    )
    MISSING_ROUTE_BOUNDARY = _routes(
        "missing_route_boundary",
        "A call hands on no route of its parent's last token, where one is required (D28).",
        capability="boundary",
    )
    DUPLICATE_ROUTE_SPAN = _routes(
        "duplicate_route_span", "Two link spans are the same call's.", shadowed_by="rebuild_failed:lineage_cycle"
    )
    ROUTE_SPAN_IDENTITY = _routes(
        "route_span_identity",
        "A link span has no staged row or no commitment.",
        shadowed_by="missing_staging_row or call_id_mismatch",
    )
    ROUTE_GENERATION_SPAN_MISMATCH = _routes(
        "route_generation_span_mismatch",
        "A link span generates more tokens than its call has.",
        shadowed_by="rebuild_failed:empty_generation",
    )
    ROUTE_CARRY_SPAN_MISMATCH = _routes(
        "route_carry_span_mismatch",
        "A link span's carry is not the rest of its call.",
        shadowed_by="rebuild_failed:invalid_mask_order",
    )
    ROUTE_SPAN_LENGTH_MISMATCH = _routes(
        "route_span_length_mismatch", "The link spans do not add up to the row.", shadowed_by="invalid_staging_row"
    )
    INVALID_ROUTE_PLAN = _routes(
        "invalid_route_plan",
        "A route plan breaks a rule of its own, or has another schema version.",
        hidden_in_rollout_by="staging_key_mismatch",
    )
    ROUTE_ASSEMBLY = _routes("route_assembly", "The row's routes cannot be assembled; the subject says why.")

    # ── executing a route plan (section 6) ────────────────────────────────────────────────────────────────────────────
    CANONICAL_LENGTH_MISMATCH = _assembly(
        "canonical_length_mismatch",
        "The plan was made for a row of another length.",
        never_in_rollout="the plan is made from the row itself",
    )
    MISSING_FRAGMENT = _assembly("missing_fragment", "The plan needs a fragment that is not staged.")
    FRAGMENT_INTEGRITY = _assembly(
        "fragment_integrity", "The extras rebuilt around the fragment do not digest to the call's commitment."
    )
    FRAGMENT_RANK = _assembly("fragment_rank", "The fragment is not tokens x layers x experts.")
    FRAGMENT_LENGTH = _assembly("fragment_length", "The fragment has another number of tokens than the plan says.")
    FRAGMENT_MODEL_SHAPE = _assembly("fragment_model_shape", "The fragment's (L, K) is not the model's (D10).")
    FRAGMENT_BOUNDARY = _assembly(
        "fragment_boundary",
        "The sidecar is of another token than the plan says, or is not the route of one token.",
        capability="boundary",
    )
    FRAGMENT_VALUE_RANGE = _assembly(
        "fragment_value_range", "An expert id is below -1, above 32767, or no expert's (D8)."
    )
    FRAGMENT_PARTIAL_SENTINEL = _assembly(
        "fragment_partial_sentinel", "A token-layer vector is sentinel in some slots only (D7)."
    )
    FRAGMENT_DUPLICATE_EXPERT = _assembly(
        "fragment_duplicate_expert", "A token-layer vector names one expert twice (D20)."
    )
    ASSEMBLED_LENGTH_MISMATCH = _assembly(
        "assembled_length_mismatch", "The assembled spans do not add up to the row.", shadowed_by="invalid_route_plan"
    )

    # ── the reward (section 5) ────────────────────────────────────────────────────────────────────────────────────────
    INVALID_REWARD = Rejection(
        Stage.REWARD, "5", "invalid_reward", "The reward is not a number whose float32 is finite (D6)."
    )

    # ── a rollout in its group (section 7) ────────────────────────────────────────────────────────────────────────────
    MEDIA_GROUP_INCOMPATIBLE = Rejection(
        Stage.GROUP,
        "7",
        "media_group_incompatible",
        "The row's media cannot be concatenated with the group's first media row (D19).",
    )

    # ── the encoding of routes (section 6) ────────────────────────────────────────────────────────────────────────────
    INVALID_ROUTE_ENVELOPE = Rejection(
        Stage.CODEC, "6", "invalid_route_envelope", "The payload is not the one encoding of a route tensor (D9)."
    )

    # ── the worker's side of routes (section 10) ──────────────────────────────────────────────────────────────────────
    MISALIGNED_ENGINE_ROUTES = Rejection(
        Stage.CODEC,
        "10",
        "misaligned_engine_routes",
        "The engine's rows do not end where its tokens end (D29).",
        capability="boundary",
    )

    # ── retained media: cut and restore (section 7) ───────────────────────────────────────────────────────────────────
    MEDIA_CAPTURE_REJECTED = _retained(
        "media_capture_rejected", "Media cannot be hashed, or a prefix row is not what a generation cut wrote."
    )
    RETAINED_MEDIA_CHANGED = _retained("retained_media_changed", "The fresh media are not the ones that the cut saw.")

    # ── completion of cuts (section 7) ────────────────────────────────────────────────────────────────────────────────
    COMPLETION_COUNT = _completion("completion_count", "A generation cut did not complete exactly once.")
    EMPTY_TAIL = _completion("empty_tail", "A call that a cut left incomplete generated nothing after it (D25).")
    TOKEN_COUNT = _completion("token_count", "Prefix and tail do not add up to what the trained row generated.")
    PREFIX_TOKENS = _completion("prefix_tokens", "The trained row does not begin its generation with the cut's tokens.")
    RETIRED_KEY_LIVE = _completion("retired_key_live", "A prefix row outlived the completion of its call.")

    # ── restoring a call that was cut (section 11) ────────────────────────────────────────────────────────────────────
    CUT_CHUNK_MISSING = _cuts("cut_chunk_missing", "The data plane does not hold every acknowledged chunk.")
    CUT_IDENTITY_MISMATCH = _cuts(
        "cut_identity_mismatch", "A chunk is of another call, at another place, or under another key."
    )
    CUT_VERSION_ORDER = _cuts(
        "cut_version_order", "Weight versions fall along the chunks, or are newer than the restoring worker's."
    )
    CUT_MASK_ORDER = _cuts("cut_mask_order", "The chunks are not carry, then generation.")
    RETAINED_PREFIX_CHANGED = _cuts(
        "retained_prefix_changed", "The chunks do not digest to what they say, or joined to what was acknowledged."
    )
    CUT_LIMIT_EXCEEDED = _cuts("cut_limit_exceeded", "More was generated than the call may generate.")

    @property
    def code(self) -> str:
        """Return the word that a rejection reason begins with."""
        return self.value.code

    @property
    def stage(self) -> Stage:
        """Return where the code arises."""
        return self.value.stage


WITH_SUBJECT: Final = frozenset({Code.REBUILD_FAILED, Code.ROUTE_ASSEMBLY, Code.ROLLOUT_FAILED})
"""Codes whose subject is normative: another code, or for ``rollout_failed`` the receipt's own reason."""


class Rejected(Exception):
    """A violated rule. ``str()`` is the full reason, ``code[:subject][: free text]``."""

    def __init__(self, code: Code, detail: str = "", *, subject: str = "") -> None:
        self.code = code
        self.subject = subject
        self.detail = detail
        super().__init__(code, detail, subject)

    @property
    def reason(self) -> str:
        """Return the reason as it is published and counted."""
        head = f"{self.code.code}:{self.subject}" if self.subject else self.code.code
        return f"{head}: {self.detail}" if self.detail else head

    def __str__(self) -> str:
        return self.reason
