"""The codes that an earlier rule hides, everywhere or inside a rollout.

They stay in the catalogue, because they are part of the wire vocabulary and because another implementation may reach
one by getting the earlier rule wrong.
"""

from __future__ import annotations

from typing import Final

from rollproof.spec.rejections import Code

SHADOWED_BY: Final = {
    Code.DUPLICATE_MANIFEST_CALL_ID: "invalid_receipt",
    Code.DUPLICATE_FETCHED_CALL_ID: "call_id_mismatch",
    Code.WRONG_MODEL_CALL_ID: "snapshot_order_mismatch",
    Code.EMPTY_TRAINING_ROW: "empty_generation",
    Code.MEDIA_CHAIN_IDENTITY: "missing_staging_row or call_id_mismatch",
    Code.DUPLICATE_ROUTE_SPAN: "rebuild_failed:lineage_cycle",
    Code.ROUTE_SPAN_IDENTITY: "missing_staging_row or call_id_mismatch",
    Code.ROUTE_GENERATION_SPAN_MISMATCH: "rebuild_failed:empty_generation",
    Code.ROUTE_CARRY_SPAN_MISMATCH: "rebuild_failed:invalid_mask_order",
    Code.ROUTE_SPAN_LENGTH_MISMATCH: "invalid_staging_row",
    Code.ASSEMBLED_LENGTH_MISMATCH: "invalid_route_plan",
}
"""The codes that can never be the answer, each with the earlier rule that always fires first."""

HIDDEN_IN_ROLLOUT_BY: Final = {
    Code.UNSUPPORTED_SCHEMA: "invalid_receipt",
    Code.UNSUPPORTED_DIGEST: "invalid_receipt",
    Code.UNSUPPORTED_EXTRAS_DIGEST: "invalid_receipt",
    Code.REBUILD_ROLLOUT_FAILED: "rollout_failed",
    Code.REBUILD_CAPTURE_POISONED: "capture_poisoned",
    Code.EMPTY_MANIFEST: "invalid_receipt",
    Code.DUPLICATE_MANIFEST_ROW: "invalid_receipt",
    Code.REBUILD_DUPLICATE_STAGING_KEY: "duplicate_staging_key",
    Code.ROW_COUNT_MISMATCH: "missing_staging_row",
    Code.DUPLICATE_SNAPSHOT: "call_id_mismatch",
    Code.SNAPSHOT_IDENTITY_MISMATCH: "call_id_mismatch",
    Code.SNAPSHOT_ORDER_MISMATCH: "call_id_mismatch",
    Code.WRONG_MODEL_CALL_ID: "call_id_mismatch",
    Code.WRONG_MODE: "wrong_parent_call_id",
    Code.WRONG_CUM_LEN: "wrong_prev_len or wrong_delta_len",
    Code.WRONG_SCHEMA_VERSION: "invalid_staging_row",
    Code.WRONG_DIGEST_VERSION: "invalid_staging_row",
    Code.WRONG_EXTRAS_DIGEST_VERSION: "invalid_staging_row",
    Code.INVALID_SNAPSHOT: "invalid_staging_row",
    Code.MISSING_TERMINAL: "invalid_receipt",
    Code.INVALID_ROUTE_PLAN: "staging_key_mismatch",
}
"""The codes that only a direct call reaches, each with what fires first inside ``finalize_rollout``."""

NEVER_IN_ROLLOUT: Final = {
    Code.CANONICAL_LENGTH_MISMATCH: "the plan is made from the row itself",
}
"""A code that only a direct call reaches and no earlier rule hides: why a rollout cannot break the rule."""


def of_rollouts(code: Code) -> bool:
    """Return whether the code can be the answer of ``finalize_rollout``."""
    return not any(code in hidden for hidden in (SHADOWED_BY, HIDDEN_IN_ROLLOUT_BY, NEVER_IN_ROLLOUT))
