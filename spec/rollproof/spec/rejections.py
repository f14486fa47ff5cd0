"""Every way the contract refuses something, each with where it arises, what it means, and what hides it.

A reason reads ``code[:subject][: free text]``. The code is normative; so is the subject of ``rebuild_failed`` and
``route_assembly`` (another code) and of ``rollout_failed`` (the receipt's own reason). A code is *shadowed* where an
earlier rule always fires first: it stays in the catalogue, because it is part of the wire vocabulary and because
another implementation may reach it by getting the earlier rule wrong.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

from attrs import frozen


class Stage(StrEnum):
    """Where a refusal arises, in the order in which a rollout passes them."""

    RECEIPT = "receipt"
    ROLLOUT = "rollout"
    REBUILD = "rebuild"
    MEDIA = "media"
    ROUTES = "routes"
    ASSEMBLY = "assembly"
    REWARD = "reward"
    GROUP = "group"
    CODEC = "codec"
    RETAINED = "retained"
    COMPLETION = "completion"


@frozen
class Rejection:
    """The catalogue entry of one code."""

    code: str
    stage: Stage
    section: str
    sentence: str
    shadowed_by: str | None = None
    """The earlier rule that always fires first, or None where the code can be reached."""
    hidden_in_rollout_by: str | None = None
    """For a code that only a direct call reaches: what fires first inside ``finalize_rollout``."""


_RECEIPT: Final = "invalid_receipt"
_STAGED: Final = "invalid_staging_row"
_CALL_ID: Final = "call_id_mismatch"


class Code(Enum):
    """All rejection codes. A member's value is its catalogue entry."""

    # ── one rollout, before its chain is rebuilt (sections 3 and 5) ─────────────────────────────────────────────────
    MISSING_RECEIPT = Rejection("missing_receipt", Stage.RECEIPT, "5", "The rollout has no receipt.")
    INVALID_RECEIPT = Rejection(_RECEIPT, Stage.RECEIPT, "3", "The receipt breaks a rule of its own.")
    IDENTITY_MISMATCH = Rejection(
        "identity_mismatch", Stage.ROLLOUT, "5", "The receipt names another rollout than the one asked for."
    )
    ROLLOUT_FAILED = Rejection("rollout_failed", Stage.ROLLOUT, "5", "The receipt carries a failure reason.")
    CAPTURE_POISONED = Rejection(
        "capture_poisoned", Stage.ROLLOUT, "5", "The receipt says that its token capture cannot be trusted."
    )
    DUPLICATE_STAGING_KEY = Rejection(
        "duplicate_staging_key", Stage.ROLLOUT, "5", "Two manifest rows name the same staging key."
    )
    DUPLICATE_MANIFEST_CALL_ID = Rejection(
        "duplicate_manifest_call_id", Stage.ROLLOUT, "5", "Two manifest rows name the same call.", _RECEIPT
    )
    MISSING_STAGING_ROW = Rejection(
        "missing_staging_row", Stage.ROLLOUT, "5", "The data plane does not hold every row of the manifest."
    )
    INVALID_STAGING_ROW = Rejection(
        _STAGED, Stage.ROLLOUT, "5", "A staged row lacks a column, holds a wrong one, or contradicts itself (D17)."
    )
    STAGING_KEY_MISMATCH = Rejection(
        "staging_key_mismatch", Stage.ROLLOUT, "5", "A fetched row is not the row of the key that was asked for."
    )
    CALL_ID_MISMATCH = Rejection(
        _CALL_ID, Stage.ROLLOUT, "5", "A fetched row is another call than its manifest row names."
    )
    DUPLICATE_FETCHED_CALL_ID = Rejection(
        "duplicate_fetched_call_id", Stage.ROLLOUT, "5", "Two fetched rows are the same call.", _CALL_ID
    )
    REBUILD_FAILED = Rejection(
        "rebuild_failed", Stage.ROLLOUT, "5", "The verified chain could not be rebuilt; the subject says why."
    )
    INVALID_REWARD = Rejection(
        "invalid_reward", Stage.REWARD, "5", "The reward is not a number whose float32 is finite (D6)."
    )

    # ── verify and linearize (section 4) ────────────────────────────────────────────────────────────────────────────
    UNSUPPORTED_SCHEMA = Rejection(
        "unsupported_schema", Stage.REBUILD, "4", "The receipt's schema version is not 2.", None, _RECEIPT
    )
    UNSUPPORTED_DIGEST = Rejection(
        "unsupported_digest", Stage.REBUILD, "4", "The receipt's digest version is not 2.", None, _RECEIPT
    )
    UNSUPPORTED_EXTRAS_DIGEST = Rejection(
        "unsupported_extras_digest", Stage.REBUILD, "4", "The receipt's extras digest version is not 1.", None, _RECEIPT
    )
    REBUILD_ROLLOUT_FAILED = Rejection(
        "rollout_failed", Stage.REBUILD, "4", "The receipt carries a failure reason.", None, "rollout_failed"
    )
    REBUILD_CAPTURE_POISONED = Rejection(
        "capture_poisoned", Stage.REBUILD, "4", "The receipt's capture is poisoned.", None, "capture_poisoned"
    )
    EMPTY_MANIFEST = Rejection("empty_manifest", Stage.REBUILD, "4", "The manifest lists no call.", None, _RECEIPT)
    DUPLICATE_MANIFEST_ROW = Rejection(
        "duplicate_manifest_row", Stage.REBUILD, "4", "Two manifest rows name the same call.", None, _RECEIPT
    )
    REBUILD_DUPLICATE_STAGING_KEY = Rejection(
        "duplicate_staging_key", Stage.REBUILD, "4", "Two manifest rows name one key.", None, "duplicate_staging_key"
    )
    ROW_COUNT_MISMATCH = Rejection(
        "row_count_mismatch",
        Stage.REBUILD,
        "4",
        "There is not exactly one staged call per manifest row.",
        None,
        "missing_staging_row",
    )
    DUPLICATE_SNAPSHOT = Rejection(
        "duplicate_snapshot", Stage.REBUILD, "4", "The same call was staged for an earlier row.", None, _CALL_ID
    )
    SNAPSHOT_IDENTITY_MISMATCH = Rejection(
        "snapshot_identity_mismatch", Stage.REBUILD, "4", "The staged call is not in the manifest.", None, _CALL_ID
    )
    SNAPSHOT_ORDER_MISMATCH = Rejection(
        "snapshot_order_mismatch", Stage.REBUILD, "4", "The staged call belongs to another row.", None, _CALL_ID
    )
    WRONG_ROLLOUT = Rejection("wrong_rollout", Stage.REBUILD, "4", "The staged call belongs to another rollout.")
    WRONG_MODEL_CALL_ID = Rejection(
        "wrong_model_call_id",
        Stage.REBUILD,
        "4",
        "The staged call's id differs from the manifest's.",
        "snapshot_order_mismatch",
        _CALL_ID,
    )
    WRONG_PARENT_CALL_ID = Rejection(
        "wrong_parent_call_id", Stage.REBUILD, "4", "The staged call's parent differs from the manifest's."
    )
    WRONG_MODE = Rejection(
        "wrong_mode", Stage.REBUILD, "4", "The staged call's mode differs.", None, "wrong_parent_call_id"
    )
    WRONG_PREV_LEN = Rejection("wrong_prev_len", Stage.REBUILD, "4", "The staged call's prev_len differs.")
    WRONG_DELTA_LEN = Rejection("wrong_delta_len", Stage.REBUILD, "4", "The staged call's delta_len differs.")
    WRONG_CUM_LEN = Rejection(
        "wrong_cum_len",
        Stage.REBUILD,
        "4",
        "The staged call's cum_len differs.",
        None,
        "wrong_prev_len or wrong_delta_len",
    )
    WRONG_WEIGHT_VERSION = Rejection(
        "wrong_weight_version", Stage.REBUILD, "4", "The staged call's weight version differs."
    )
    WRONG_DIGEST = Rejection("wrong_digest", Stage.REBUILD, "4", "The staged call's digest differs.")
    WRONG_EXTRAS_DIGEST = Rejection(
        "wrong_extras_digest", Stage.REBUILD, "4", "The staged call's extras digest differs."
    )
    WRONG_CHAIN_HASH = Rejection("wrong_chain_hash", Stage.REBUILD, "4", "The staged call's chain hash differs.")
    WRONG_CUMULATIVE_HASH = Rejection(
        "wrong_cumulative_hash", Stage.REBUILD, "4", "The staged call's cumulative hash differs."
    )
    WRONG_SCHEMA_VERSION = Rejection(
        "wrong_schema_version", Stage.REBUILD, "4", "The three schema versions differ.", None, _STAGED
    )
    WRONG_DIGEST_VERSION = Rejection(
        "wrong_digest_version", Stage.REBUILD, "4", "The three digest versions differ.", None, _STAGED
    )
    WRONG_EXTRAS_DIGEST_VERSION = Rejection(
        "wrong_extras_digest_version", Stage.REBUILD, "4", "The three extras digest versions differ.", None, _STAGED
    )
    INVALID_SNAPSHOT = Rejection(
        "invalid_snapshot", Stage.REBUILD, "4", "The staged call breaks a rule of sections 1 or 3.", None, _STAGED
    )
    CORRUPT_DIGEST = Rejection(
        "corrupt_digest", Stage.REBUILD, "4", "The staged call does not digest to the digest it carries."
    )
    MISSING_PARENT = Rejection("missing_parent", Stage.REBUILD, "4", "A call's parent is not in the manifest.")
    PARENT_LENGTH_MISMATCH = Rejection(
        "parent_length_mismatch", Stage.REBUILD, "4", "A call does not start where its parent ends."
    )
    LINEAGE_CYCLE = Rejection("lineage_cycle", Stage.REBUILD, "4", "Following parents from a call repeats a call.")
    MISSING_TERMINAL = Rejection(
        "missing_terminal", Stage.REBUILD, "4", "The terminal call is not named or not listed.", None, _RECEIPT
    )
    CHAIN_HASH_MISMATCH = Rejection(
        "chain_hash_mismatch", Stage.REBUILD, "4", "A call's tokens do not extend its parent's chain hash."
    )
    INVALID_MASK_ORDER = Rejection(
        "invalid_mask_order", Stage.REBUILD, "4", "A call's mask is not carry, then generation."
    )
    EMPTY_GENERATION = Rejection("empty_generation", Stage.REBUILD, "4", "A call of the chain generated no token.")
    EMPTY_TRAINING_ROW = Rejection(
        "empty_training_row", Stage.REBUILD, "4", "The row has no generated token.", "empty_generation"
    )
    CUMULATIVE_HASH_MISMATCH = Rejection(
        "cumulative_hash_mismatch", Stage.REBUILD, "4", "The terminal call's prefix hash does not cover the row."
    )

    # ── media (section 7) ───────────────────────────────────────────────────────────────────────────────────────────
    MEDIA_CHAIN_IDENTITY = Rejection(
        "media_chain_identity",
        Stage.MEDIA,
        "7",
        "A call of the chain has no staged row.",
        "missing_staging_row or call_id_mismatch",
    )
    MEDIA_CHAIN_INCOMPATIBLE = Rejection(
        "media_chain_incompatible",
        Stage.MEDIA,
        "7",
        "The chain's calls mix images and videos, pixel dtypes or feature widths.",
    )
    INVALID_MEDIA_COLUMNS = Rejection(
        "invalid_media_columns", Stage.MEDIA, "7", "A call's media cannot be read, or are not a valid bundle (D18)."
    )
    MEDIA_PLACEHOLDER_MISMATCH = Rejection(
        "media_placeholder_mismatch",
        Stage.MEDIA,
        "7",
        "A call's media spans disagree with its tokens, its bundle, its flags or what the policy generated.",
    )
    MEDIA_GROUP_INCOMPATIBLE = Rejection(
        "media_group_incompatible",
        Stage.GROUP,
        "7",
        "The row's media cannot be concatenated with the group's first media row (D19).",
    )
    MEDIA_CAPTURE_REJECTED = Rejection(
        "media_capture_rejected",
        Stage.RETAINED,
        "7",
        "Media cannot be hashed, or a prefix row is not what a generation cut wrote.",
    )
    RETAINED_MEDIA_CHANGED = Rejection(
        "retained_media_changed", Stage.RETAINED, "7", "The fresh media are not the ones that the cut saw."
    )
    COMPLETION_COUNT = Rejection(
        "completion_count", Stage.COMPLETION, "7", "A generation cut did not complete exactly once."
    )
    EMPTY_TAIL = Rejection("empty_tail", Stage.COMPLETION, "7", "A completed call generated nothing after its cut.")
    TOKEN_COUNT = Rejection(
        "token_count", Stage.COMPLETION, "7", "Prefix and tail do not add up to what the trained row generated."
    )
    PREFIX_TOKENS = Rejection(
        "prefix_tokens", Stage.COMPLETION, "7", "The trained row does not begin its generation with the cut's tokens."
    )
    RETIRED_KEY_LIVE = Rejection(
        "retired_key_live", Stage.COMPLETION, "7", "A prefix row outlived the completion of its call."
    )

    # ── routes (section 6) ──────────────────────────────────────────────────────────────────────────────────────────
    ROUTED_LEN_MISMATCH = Rejection(
        "routed_len_mismatch", Stage.ROUTES, "6", "A call staged routes for another number of tokens than it has."
    )
    UNSUPPORTED_ROUTE_BOUNDARY = Rejection(
        "unsupported_route_boundary", Stage.ROUTES, "6", "A call's extras announce a route boundary sidecar."
    )
    DUPLICATE_ROUTE_SPAN = Rejection(
        "duplicate_route_span", Stage.ROUTES, "6", "Two link spans are the same call's.", "rebuild_failed:lineage_cycle"
    )
    ROUTE_SPAN_IDENTITY = Rejection(
        "route_span_identity",
        Stage.ROUTES,
        "6",
        "A link span has no staged row or no commitment.",
        "missing_staging_row or call_id_mismatch",
    )
    ROUTE_GENERATION_SPAN_MISMATCH = Rejection(
        "route_generation_span_mismatch",
        Stage.ROUTES,
        "6",
        "A link span generates more tokens than its call has.",
        "rebuild_failed:empty_generation",
    )
    ROUTE_CARRY_SPAN_MISMATCH = Rejection(
        "route_carry_span_mismatch",
        Stage.ROUTES,
        "6",
        "A link span's carry is not the rest of its call.",
        "rebuild_failed:invalid_mask_order",
    )
    ROUTE_SPAN_LENGTH_MISMATCH = Rejection(
        "route_span_length_mismatch", Stage.ROUTES, "6", "The link spans do not add up to the row.", _STAGED
    )
    INVALID_ROUTE_PLAN = Rejection(
        "invalid_route_plan",
        Stage.ROUTES,
        "6",
        "A route plan breaks a rule of its own, or has another schema version.",
        None,
        "staging_key_mismatch",
    )
    ROUTE_ASSEMBLY = Rejection(
        "route_assembly", Stage.ROUTES, "6", "The row's routes cannot be assembled; the subject says why."
    )
    CANONICAL_LENGTH_MISMATCH = Rejection(
        "canonical_length_mismatch",
        Stage.ASSEMBLY,
        "6",
        "The plan was made for a row of another length.",
        None,
        "the plan is made from the row itself",
    )
    MISSING_FRAGMENT = Rejection(
        "missing_fragment", Stage.ASSEMBLY, "6", "The plan needs a fragment that is not staged."
    )
    FRAGMENT_INTEGRITY = Rejection(
        "fragment_integrity",
        Stage.ASSEMBLY,
        "6",
        "The extras rebuilt around the fragment do not digest to the call's commitment.",
    )
    FRAGMENT_RANK = Rejection("fragment_rank", Stage.ASSEMBLY, "6", "The fragment is not tokens x layers x experts.")
    FRAGMENT_LENGTH = Rejection(
        "fragment_length", Stage.ASSEMBLY, "6", "The fragment has another number of tokens than the plan says."
    )
    FRAGMENT_MODEL_SHAPE = Rejection(
        "fragment_model_shape", Stage.ASSEMBLY, "6", "The fragment's (L, K) is not the model's (D10)."
    )
    FRAGMENT_VALUE_RANGE = Rejection(
        "fragment_value_range", Stage.ASSEMBLY, "6", "An expert id is below -1, above 32767, or no expert's (D8)."
    )
    FRAGMENT_PARTIAL_SENTINEL = Rejection(
        "fragment_partial_sentinel", Stage.ASSEMBLY, "6", "A token-layer vector is sentinel in some slots only (D7)."
    )
    FRAGMENT_DUPLICATE_EXPERT = Rejection(
        "fragment_duplicate_expert", Stage.ASSEMBLY, "6", "A token-layer vector names one expert twice (D20)."
    )
    ASSEMBLED_LENGTH_MISMATCH = Rejection(
        "assembled_length_mismatch",
        Stage.ASSEMBLY,
        "6",
        "The assembled spans do not add up to the row.",
        "invalid_route_plan",
    )
    INVALID_ROUTE_ENVELOPE = Rejection(
        "invalid_route_envelope", Stage.CODEC, "6", "The payload is not the one encoding of a route tensor (D9)."
    )

    @property
    def code(self) -> str:
        """The word that stands in a rejection reason."""
        return self.value.code

    @property
    def stage(self) -> Stage:
        """Where it arises."""
        return self.value.stage


class Rejected(Exception):
    """A violated rule. ``str()`` is the full reason, ``code[:subject][: free text]``."""

    def __init__(self, code: Code, detail: str = "", *, subject: str = "") -> None:
        self.code = code
        self.subject = subject
        self.detail = detail
        super().__init__(code, detail, subject)

    @property
    def reason(self) -> str:
        """The reason as it is published and counted."""
        head = f"{self.code.code}:{self.subject}" if self.subject else self.code.code
        return f"{head}: {self.detail}" if self.detail else head

    @property
    def normative(self) -> str:
        """The part of the reason that every implementation must agree on."""
        if self.code in (Code.REBUILD_FAILED, Code.ROLLOUT_FAILED, Code.ROUTE_ASSEMBLY) and self.subject:
            return f"{self.code.code}:{self.subject}"
        return self.code.code

    def __str__(self) -> str:
        return self.reason
