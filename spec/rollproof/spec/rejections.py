"""Every code with which the contract refuses something: where it arises, and what it means.

A reason reads ``code[:subject][: free text]``. The code is normative, and for the codes of ``WITH_SUBJECT`` the subject
too.
"""

from __future__ import annotations

from enum import Enum, StrEnum, unique
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
    sentence: str
    word: str | None = field(default=None, kw_only=True)
    """The code, where it is not the member's name in lower case: stages share some codes."""
    capability: str | None = field(default=None, kw_only=True)
    """The capability that the code belongs to: without it, nothing is refused with this code."""


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


@unique
class Code(Enum):
    """All rejection codes, stage by stage. A member's value is its catalogue entry."""

    MISSING_RECEIPT = Rejection(Stage.RECEIPT, "5", "The rollout has no receipt.")
    INVALID_RECEIPT = _receipt("The receipt breaks a rule of its own.")

    IDENTITY_MISMATCH = _rollout("The receipt names another rollout than the one asked for.")
    ROLLOUT_FAILED = _rollout("The receipt carries a failure reason.")
    CAPTURE_POISONED = _rollout("The receipt says that its token capture cannot be trusted.")
    DUPLICATE_STAGING_KEY = _rollout("Two manifest rows name the same staging key.")
    DUPLICATE_MANIFEST_CALL_ID = _rollout("Two manifest rows name the same call.")
    MISSING_STAGING_ROW = _rollout("The data plane does not hold every row of the manifest.")
    INVALID_STAGING_ROW = _rollout("A staged row lacks a column, holds a wrong one, or contradicts itself (D17).")
    STAGING_KEY_MISMATCH = _rollout("A fetched row is not the row of the key that was asked for.")
    CALL_ID_MISMATCH = _rollout("A fetched row is another call than its manifest row names.")
    DUPLICATE_FETCHED_CALL_ID = _rollout("Two fetched rows are the same call.")
    REBUILD_FAILED = _rollout("The verified chain could not be rebuilt; the subject says why.")

    UNSUPPORTED_SCHEMA = _rebuild("The receipt's schema version is not 2.")
    UNSUPPORTED_DIGEST = _rebuild("The receipt's digest version is not 2.")
    UNSUPPORTED_EXTRAS_DIGEST = _rebuild("The receipt's extras digest version is not 1.")
    REBUILD_ROLLOUT_FAILED = _rebuild("The receipt carries a failure reason.", word="rollout_failed")
    REBUILD_CAPTURE_POISONED = _rebuild("The receipt's capture is poisoned.", word="capture_poisoned")
    EMPTY_MANIFEST = _rebuild("The manifest lists no call.")
    DUPLICATE_MANIFEST_ROW = _rebuild("Two manifest rows name the same call.")
    REBUILD_DUPLICATE_STAGING_KEY = _rebuild("Two manifest rows name one key.", word="duplicate_staging_key")
    ROW_COUNT_MISMATCH = _rebuild("There is not exactly one staged call per manifest row.")
    DUPLICATE_SNAPSHOT = _rebuild("The same call was staged for an earlier row.")
    SNAPSHOT_IDENTITY_MISMATCH = _rebuild("The staged call is not in the manifest.")
    SNAPSHOT_ORDER_MISMATCH = _rebuild("The staged call belongs to another row.")
    WRONG_ROLLOUT = _rebuild("The staged call belongs to another rollout.")
    WRONG_MODEL_CALL_ID = _rebuild("The staged call's id differs from the manifest's.")
    WRONG_PARENT_CALL_ID = _rebuild("The staged call's parent differs from the manifest's.")
    WRONG_MODE = _rebuild("The staged call's mode differs.")
    WRONG_PREV_LEN = _rebuild("The staged call's prev_len differs.")
    WRONG_DELTA_LEN = _rebuild("The staged call's delta_len differs.")
    WRONG_CUM_LEN = _rebuild("The staged call's cum_len differs.")
    WRONG_WEIGHT_VERSION = _rebuild("The staged call's weight version differs.")
    WRONG_DIGEST = _rebuild("The staged call's digest differs.")
    WRONG_EXTRAS_DIGEST = _rebuild("The staged call's extras digest differs.")
    WRONG_CHAIN_HASH = _rebuild("The staged call's chain hash differs.")
    WRONG_CUMULATIVE_HASH = _rebuild("The staged call's cumulative hash differs.")
    WRONG_SCHEMA_VERSION = _rebuild("The three schema versions differ.")
    WRONG_DIGEST_VERSION = _rebuild("The three digest versions differ.")
    WRONG_EXTRAS_DIGEST_VERSION = _rebuild("The three extras digest versions differ.")
    INVALID_SNAPSHOT = _rebuild("The staged call breaks a rule of sections 1 or 3.")
    CORRUPT_DIGEST = _rebuild("The staged call does not digest to the digest it carries.")
    MISSING_PARENT = _rebuild("A call's parent is not in the manifest.")
    PARENT_LENGTH_MISMATCH = _rebuild("A call does not start where its parent ends.")
    LINEAGE_CYCLE = _rebuild("Following parents from a call repeats a call.")
    MISSING_TERMINAL = _rebuild("The terminal call is not named or not listed.")
    CHAIN_HASH_MISMATCH = _rebuild("A call's tokens do not extend its parent's chain hash.")
    INVALID_MASK_ORDER = _rebuild("A call's mask is not carry, then generation.")
    EMPTY_GENERATION = _rebuild("A call of the chain generated no token.")
    EMPTY_TRAINING_ROW = _rebuild("The row has no generated token.")
    CUMULATIVE_HASH_MISMATCH = _rebuild("The terminal call's prefix hash does not cover the row.")

    MEDIA_CHAIN_IDENTITY = _media("A call of the chain has no staged row.")
    MEDIA_COMMITMENT = _media("The extras of a call without routes are not what it committed to.")
    MEDIA_CHAIN_INCOMPATIBLE = _media("The chain's calls mix images and videos, pixel dtypes or feature widths.")
    INVALID_MEDIA_COLUMNS = _media("A call's media cannot be read, or are not a valid bundle (D18).")
    MEDIA_PLACEHOLDER_MISMATCH = _media(
        "A call's media spans disagree with its tokens, its bundle, its flags or what the policy generated."
    )

    TOPK_LENGTH_MISMATCH = _sampler("A call's sampler columns are not one row of candidates per generated token.")
    TOPK_VALUE_RANGE = _sampler("A candidate is no token, is listed twice, or has no log-probability (D30).")

    UNSUPPORTED_ROUTE_ENCODING = _routes("A call's routes are staged in an encoding whose codec is not public (D22).")
    ROUTED_LEN_MISMATCH = _routes("A call staged routes for another number of tokens than it has.")
    UNSUPPORTED_ROUTE_BOUNDARY = _routes("A call's extras announce a boundary route, in any spelling (D21).")
    MISSING_ROUTE_BOUNDARY = _routes(
        "A call hands on no route of its parent's last token, where one is required (D28).", capability="boundary"
    )
    DUPLICATE_ROUTE_SPAN = _routes("Two link spans are the same call's.")
    ROUTE_SPAN_IDENTITY = _routes("A link span has no staged row or no commitment.")
    ROUTE_GENERATION_SPAN_MISMATCH = _routes("A link span generates more tokens than its call has.")
    ROUTE_CARRY_SPAN_MISMATCH = _routes("A link span's carry is not the rest of its call.")
    ROUTE_SPAN_LENGTH_MISMATCH = _routes("The link spans do not add up to the row.")
    INVALID_ROUTE_PLAN = _routes("A route plan breaks a rule of its own, or has another schema version.")
    ROUTE_ASSEMBLY = _routes("The row's routes cannot be assembled; the subject says why.")

    CANONICAL_LENGTH_MISMATCH = _assembly("The plan was made for a row of another length.")
    MISSING_FRAGMENT = _assembly("The plan needs a fragment that is not staged.")
    FRAGMENT_INTEGRITY = _assembly("The extras rebuilt around the fragment do not digest to the call's commitment.")
    FRAGMENT_RANK = _assembly("The fragment is not tokens x layers x experts.")
    FRAGMENT_LENGTH = _assembly("The fragment has another number of tokens than the plan says.")
    FRAGMENT_MODEL_SHAPE = _assembly("The fragment's (L, K) is not the model's (D10).")
    FRAGMENT_BOUNDARY = _assembly(
        "The sidecar is of another token than the plan says, or is not the route of one token.", capability="boundary"
    )
    FRAGMENT_VALUE_RANGE = _assembly("An expert id is below -1, above 32767, or no expert's (D8).")
    FRAGMENT_PARTIAL_SENTINEL = _assembly("A token-layer vector is sentinel in some slots only (D7).")
    FRAGMENT_DUPLICATE_EXPERT = _assembly("A token-layer vector names one expert twice (D20).")
    ASSEMBLED_LENGTH_MISMATCH = _assembly("The assembled spans do not add up to the row.")

    INVALID_REWARD = Rejection(Stage.REWARD, "5", "The reward is not a number whose float32 is finite (D6).")

    MEDIA_GROUP_INCOMPATIBLE = Rejection(
        Stage.GROUP, "7", "The row's media cannot be concatenated with the group's first media row (D19)."
    )

    INVALID_ROUTE_ENVELOPE = Rejection(Stage.CODEC, "6", "The payload is not the one encoding of a route tensor (D9).")

    MISALIGNED_ENGINE_ROUTES = Rejection(
        Stage.CODEC, "10", "The engine's rows do not end where its tokens end (D29).", capability="boundary"
    )

    MEDIA_CAPTURE_REJECTED = _retained("Media cannot be hashed, or a prefix row is not what a generation cut wrote.")
    RETAINED_MEDIA_CHANGED = _retained("The fresh media are not the ones that the cut saw.")

    COMPLETION_COUNT = _completion("A generation cut did not complete exactly once.")
    EMPTY_TAIL = _completion("A call that a cut left incomplete generated nothing after it (D25).")
    TOKEN_COUNT = _completion("Prefix and tail do not add up to what the trained row generated.")
    PREFIX_TOKENS = _completion("The trained row does not begin its generation with the cut's tokens.")
    RETIRED_KEY_LIVE = _completion("A prefix row outlived the completion of its call.")

    CUT_CHUNK_MISSING = _cuts("The data plane does not hold every acknowledged chunk.")
    CUT_IDENTITY_MISMATCH = _cuts("A chunk is of another call, at another place, or under another key.")
    CUT_VERSION_ORDER = _cuts("Weight versions fall along the chunks, or are newer than the restoring worker's.")
    CUT_MASK_ORDER = _cuts("The chunks are not carry, then generation.")
    RETAINED_PREFIX_CHANGED = _cuts("The chunks do not digest to what they say, or joined to what was acknowledged.")
    CUT_LIMIT_EXCEEDED = _cuts("More was generated than the call may generate.")

    @property
    def code(self) -> str:
        """Return the word that a rejection reason begins with."""
        return self.value.word or self.name.lower()

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
