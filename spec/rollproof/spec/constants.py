"""Names and numbers that the contract fixes, so that no rule spells one out twice."""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 2
DIGEST_VERSION: Final = 2
EXTRAS_DIGEST_VERSION: Final = 1
VERSIONS: Final = {
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
"""The version numbers of every call, manifest row and receipt: exactly these are supported."""

INT63_LIMIT: Final = 2**63
"""Rows are int64: every integer of the contract is below this (decision D1)."""

UINT64_LIMIT: Final = 2**64
"""Token ids hash as unsigned 64-bit integers, so ids up to here have a digest even if no row can hold them."""

MAX_EXTRAS_DEPTH: Final = 64
"""Deepest extras value that has a digest (decision D3). A scalar has depth 0."""

DIGEST_BYTES: Final = 32

RESERVED_ROLLOUT_ID: Final = "__generation_cut__"
"""Where a generation cut stages its rows, in place of a rollout id: it is not one (decision D24)."""

MODE_TEXT: Final = "text"
"""Capture mode of a root call: its prompt was text."""
MODE_TOKEN_IN: Final = "token_in"
"""Capture mode of a child call: its prompt began with the parent's exact token ids."""
CAPTURE_MODES: Final = (MODE_TEXT, MODE_TOKEN_IN)
"""Index = the value of the staged column ``capture_mode`` (section 9)."""

TERMINAL_SELECTIONS: Final = ("declared", "response_id", "content", "heuristic")

ROUTED_EXPERTS: Final = "routed_experts"
ROUTE_BOUNDARY: Final = "routed_experts_boundary"
"""The sidecar: the route of the parent's last token, an envelope in extras and a column of its own (section 10)."""
ROUTE_BOUNDARY_INDEX: Final = "routed_experts_boundary_index"
"""The position of that token in the sequence."""
ROUTE_BOUNDARY_FIELDS: Final = (
    ROUTE_BOUNDARY_INDEX,
    ROUTE_BOUNDARY,
    "routed_experts_prefix_boundary",
    "predecessor_tail_route",
)
"""Names under which extras announce the route of a boundary token: each alone, or with others (decision D21)."""
AS_STAGED: Final = "as_staged"
UNREPAIRED_SENTINEL: Final = "sentinel"
BOUNDARY_REQUIRED: Final = "required"
ROUTE_BOUNDARY_CHOICES: Final = (AS_STAGED, UNREPAIRED_SENTINEL, BOUNDARY_REQUIRED)
"""What may become of boundary tokens that no sidecar repairs (decision D28)."""
ROUTE_ENCODING_NONE: Final = 0
ROUTE_ENCODING_ENVELOPE: Final = 1
ROUTE_ENCODING_LIST: Final = 2
ROUTE_ENCODING_ATTACHMENT: Final = 3
"""Routes as a native tensor attachment, whose codec is not public: known, and not supported (decision D22)."""
ROUTE_ENCODINGS: Final = (
    ROUTE_ENCODING_NONE,
    ROUTE_ENCODING_ENVELOPE,
    ROUTE_ENCODING_LIST,
    ROUTE_ENCODING_ATTACHMENT,
)
ROUTE_SENTINEL: Final = -1
"""The expert id that means "no route was captured": replay uses the model's own router for that token."""

MEDIA_SPANS: Final = "media_spans"
MEDIA_TENSOR_SHA256: Final = "media_tensor_sha256"
MEDIA_TENSOR_BLAKE3: Final = "media_tensor_blake3"
MEDIA_SHA256: Final = "media-sha256-v1"
"""The beginning of a retained-media digest, before a colon and 64 hex characters (decision D11)."""
MEDIA_BLAKE3: Final = "media-blake3-v1"
"""The same over BLAKE3, which an accelerator can compute in its own memory."""
MEDIA_DIGEST_FIELDS: Final = {MEDIA_SHA256: MEDIA_TENSOR_SHA256, MEDIA_BLAKE3: MEDIA_TENSOR_BLAKE3}
"""Digest scheme to the name under which extras hold it: one of them, so that a row says what to compare with."""

FINISH_REASON: Final = "finish_reason"
"""Optional extras field: why an engine stopped (decision D38)."""
FINISH_LENGTH: Final = "length"
FINISH_REASONS: Final = ("stop", FINISH_LENGTH)
"""Why a call was complete when it was cut, as an acknowledgement says (section 11)."""

IMAGE: Final = "image"
VIDEO: Final = "video"
MODALITIES: Final = (IMAGE, VIDEO)

BUNDLE_PIXELS: Final = "imgs"
BUNDLE_SIZES: Final = "imgs_sizes"
BUNDLE_FRAMES: Final = "num_frames"
BUNDLE_NAMES: Final = (BUNDLE_PIXELS, BUNDLE_SIZES, BUNDLE_FRAMES)
"""The tensors of one call's media. The column of each is its name after ``media_``."""
PIXEL_DTYPES: Final = ("float16", "bfloat16", "float32")
GEOMETRY_DTYPES: Final = ("int32", "int64")
STAGED_GEOMETRY_DTYPE: Final = "int32"

# ── staged columns (section 9), in the order of the contract's table ────────────────────────────────────────────────

TOKEN_COLUMNS: Final = {
    "token_ids_delta": "int64",
    "token_mask_delta": "float32",
    "generation_logprobs_delta": "float32",
}
SCALAR_COLUMNS: Final = (
    *VERSIONS,
    *("capture_mode", "prev_len", "delta_len", "cum_len", "weight_version"),
    *("routed_experts_encoding", "routed_len"),
)
TEXT_COLUMNS: Final = ("rollout_id_utf8", "model_call_id_utf8", "parent_call_id_utf8", "extras_metadata_json")
FLAG_COLUMNS: Final = ("parent_call_id_present", "chain_hash_present", "cumulative_hash_present")
DIGEST_COLUMNS: Final = ("digest_bytes", "extras_digest_bytes", "chain_hash_bytes", "cumulative_hash_bytes")
BASE_COLUMNS: Final = (*TOKEN_COLUMNS, *SCALAR_COLUMNS, *TEXT_COLUMNS, *FLAG_COLUMNS, *DIGEST_COLUMNS)
MEDIA_FLAG_COLUMNS: Final = ("media_present", "media_has_frames", "media_metadata_digest")
"""Read together with the base columns where the staging partition carries media."""
MEDIA_TENSOR_COLUMNS: Final = ("media_imgs", "media_imgs_sizes", "media_num_frames")
"""Read only for calls of a verified chain that carry media."""

TOPK_IDS: Final = "generation_topk_ids"
TOPK_LOGPROBS: Final = "generation_topk_logprobs"
TOPK_COLUMNS: Final = {TOPK_IDS: "int32", TOPK_LOGPROBS: "float32"}
"""Sampler columns (section 12): read together with the base columns where they are wanted, and published."""

# ── published rows (section 8) ──────────────────────────────────────────────────────────────────────────────────────

TASK_NAME: Final = "train"
ROUTE_PLAN_TAG: Final = "route_assembly_plan"
GROUP_KEY: Final = "group_key"
"""Optional published column: the group's identity, for baselines (decision D39)."""
PIXEL_VALUES: Final = "pixel_values"
MEDIA_FIELDS: Final = (PIXEL_VALUES, BUNDLE_SIZES, BUNDLE_FRAMES)
"""Published columns of a group with media; each row is flat, and a tag says what shape it has."""
ROW_SHAPES_SUFFIX: Final = "__row_shapes"
ROW_PADDING: Final = {
    "generation_logprobs": 0.0,
    "token_mask": 0.0,
    ROUTED_EXPERTS: ROUTE_SENTINEL,
    TOPK_IDS: 0,
    TOPK_LOGPROBS: 0.0,
}
"""The padding after a row's values in a column with one value per token; in ``input_ids`` it is the pad token."""
TOKEN_ROW_COLUMNS: Final = ("input_ids", *ROW_PADDING)
"""Published columns with one value per token; they may be jagged or right-padded."""
DROP_REASON: Final = "no valid rollout, and the (layers, top-k) of routes is unknown"
"""Why a group is dropped; free text."""

STEP_TIMES: Final = tuple(f"row_assembly/{step}_ms" for step in ("rollouts", "tensorize", "tq_put", "clear_staging"))
"""Metrics outside ``finalize/`` that an implementation may report: milliseconds per step; the last in direct mode only.

They are measurements, so the contract gives them no value.
"""
