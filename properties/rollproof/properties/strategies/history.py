"""Rollouts as they happened: every model call with its tokens, and what a receipt says about them.

A ``History`` is the single source of a rollout's receipt, staged calls and staged rows, so they agree unless a break
makes them differ. All hashes come from the spec. ``rehash`` restores them after an edit, so that an edited history
breaks only the rule that the edit is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import error as struct_error
from typing import Any, Final

from attrs import evolve, field, frozen

from rollproof.spec.constants import (
    DIGEST_VERSION,
    EXTRAS_DIGEST_VERSION,
    MODE_TOKEN_IN,
    ROUTE_ENCODING_NONE,
    SCHEMA_VERSION,
)
from rollproof.spec.digest import (
    CALL_DOMAIN,
    chain_digest,
    extras_digest,
    float32s,
    hash_bytes,
    prefix_digest,
    sha256,
    sized,
    text,
    tokens,
    u64,
)
from rollproof.spec.plane import Staging
from rollproof.spec.records import CallRecord, ReassemblerConfig, Receipt, StagedCall
from rollproof.spec.requests import FinalizeRollout, Linearize
from rollproof.spec.staged import encode_row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import owned_key

NO_DIGEST: Final = "0" * 64
"""Stands where a hash has not been computed."""

SHARED_FIELDS: Final = (
    "model_call_id", "parent_call_id", "prev_len", "delta_len", "cum_len", "weight_version", "digest",
    "extras_digest", "chain_hash", "cumulative_hash", "mode", "schema_version", "digest_version",
    "extras_digest_version",
)  # fmt: skip
"""What a manifest row repeats of its staged call."""

ROW_DEFAULTS: Final[dict[str, Any]] = {
    "parent_call_id": None,
    "mode": MODE_TOKEN_IN,
    "admitted_at": None,
    "output_fingerprint": None,
    "continuation_fingerprint": None,
    "fingerprint_version": 0,
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
"""Manifest-row fields that a receipt may leave out where they have this value."""

RECEIPT_DEFAULTS: Final[dict[str, Any]] = {
    "reward": None,
    "terminal_model_call_id": None,
    "capture_poisoned": False,
    "failure_reason": None,
    "terminal_selection": None,
    "terminal_attribution_reason": None,
    "schema_version": SCHEMA_VERSION,
    "digest_version": DIGEST_VERSION,
    "extras_digest_version": EXTRAS_DIGEST_VERSION,
}
"""The same for the receipt itself; an empty manifest may be left out as well."""


@frozen
class Call:
    """One model call: what was staged, and what only the manifest knows about it."""

    staged: StagedCall
    extras: Any = None
    response_id: str = "resp"
    admitted_at: float | None = None
    output_fingerprint: str | None = None
    continuation_fingerprint: str | None = None
    fingerprint_version: int = 0
    routes: Tensor | None = None
    """The column ``routed_experts`` as staged; ``extras`` holds the payload that the commitment covers."""
    routed_experts_encoding: int = ROUTE_ENCODING_NONE
    media: Mapping[str, Tensor] | None = None
    """The media columns of a media partition."""

    @property
    def id(self) -> str:
        """The call's id."""
        return self.staged.model_call_id

    @property
    def key(self) -> str:
        """The staging key under which the call is staged."""
        return owned_key(self.staged.rollout_id, self.staged.model_call_id)


@frozen
class History:
    """One rollout. ``calls`` is in manifest order: a parent may come after its children."""

    rollout_id: str
    calls: tuple[Call, ...]
    terminal_call_id: str | None
    terminal_selection: str | None = "declared"
    terminal_attribution_reason: str | None = None
    reward: float | None = None
    """What the receipt says; the reward that is published is an argument of its own."""
    spelling: int = 0
    """Bit by bit, whether a default value is written out in the raw receipt; 0 leaves all of them out."""
    by_id: Mapping[str, Call] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "by_id", {call.id: call for call in self.calls})

    # ── what a receipt says ─────────────────────────────────────────────────────────────────────────────────────────

    def record_fields(self, call: Call) -> dict[str, Any]:
        """All fields of a call's manifest row."""
        fields = {name: getattr(call.staged, name) for name in SHARED_FIELDS}
        fields["staging_key"] = call.key
        for name in ("response_id", "admitted_at", "output_fingerprint", "continuation_fingerprint"):
            fields[name] = getattr(call, name)
        fields["fingerprint_version"] = call.fingerprint_version
        return fields

    def receipt_fields(self) -> dict[str, Any]:
        """All fields of the receipt but the manifest."""
        return (
            {"rollout_id": self.rollout_id}
            | RECEIPT_DEFAULTS
            | {
                "reward": self.reward,
                "terminal_model_call_id": self.terminal_call_id,
                "terminal_selection": self.terminal_selection,
                "terminal_attribution_reason": self.terminal_attribution_reason,
            }
        )

    def raw_receipt(self) -> dict[str, Any]:
        """The receipt as it comes out of JSON: plain values, and defaults written out or left out by ``spelling``."""
        receipt = spelled(self.receipt_fields(), RECEIPT_DEFAULTS, self.spelling)
        receipt["manifest"] = [
            spelled(self.record_fields(call), ROW_DEFAULTS, self.spelling >> 9) for call in self.calls
        ]
        return receipt

    def receipt(self) -> Receipt:
        """The receipt as a parser reads it."""
        return receipt_record(self.receipt_fields(), map(self.record_fields, self.calls))

    # ── what was staged ─────────────────────────────────────────────────────────────────────────────────────────────

    def staged_calls(self) -> tuple[StagedCall, ...]:
        """The staged calls in manifest order."""
        return tuple(call.staged for call in self.calls)

    def rows(self) -> dict[str, dict[str, Tensor]]:
        """The staged rows by their staging keys."""
        return {call.key: staged_columns(call) for call in self.calls}

    def staging(self, **kwargs: Any) -> Staging:
        """A staging partition that holds this rollout alone."""
        return Staging(self.rows(), **kwargs)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def linearize(self) -> Linearize:
        """The request to verify and linearize it."""
        return Linearize(self.receipt(), self.staged_calls())

    def finalize(
        self, config: ReassemblerConfig | None = None, reward: Any = 0.0, staging: Staging | None = None
    ) -> FinalizeRollout:
        """The request to finalize it, over a staging partition that holds it alone unless another is given."""
        return FinalizeRollout(
            config or ReassemblerConfig(),
            self.rollout_id,
            self.raw_receipt(),
            reward,
            self.staging() if staging is None else staging,
        )

    # ── shape and edits ─────────────────────────────────────────────────────────────────────────────────────────────

    def path(self, call_id: str | None) -> tuple[Call, ...]:
        """The calls from the root to ``call_id``, as far as parent links lead inside the manifest."""
        walk: dict[str, Call] = {}
        while call_id is not None and call_id in self.by_id and call_id not in walk:
            walk[call_id] = self.by_id[call_id]
            call_id = self.by_id[call_id].staged.parent_call_id
        return tuple(walk.values())[::-1]

    def chain(self) -> tuple[Call, ...]:
        """The terminal chain, root first."""
        return self.path(self.terminal_call_id)

    def with_call(self, changed: Call) -> History:
        """This history with the call of the same id replaced; no hash is recomputed."""
        return evolve(self, calls=tuple(changed if call.id == changed.id else call for call in self.calls))

    def renamed(self, rollout_id: str) -> History:
        """The same calls under another rollout id; of their hashes only the digest covers it."""
        calls = (redigest(evolve(call, staged=evolve(call.staged, rollout_id=rollout_id))) for call in self.calls)
        return evolve(self, rollout_id=rollout_id, calls=tuple(calls))


def spelled(fields: dict[str, Any], defaults: Mapping[str, Any], spelling: int) -> dict[str, Any]:
    """``fields`` without those that have their default value and a 0 in ``spelling``."""
    left_out = {name for bit, name in enumerate(defaults) if not spelling >> bit & 1}
    return {name: value for name, value in fields.items() if name not in left_out or value != defaults[name]}


def receipt_record(fields: Mapping[str, Any], manifest: Iterable[Mapping[str, Any]]) -> Receipt:
    """A parsed receipt with these fields, whatever they are; numbers become floats as a parser makes them."""
    rows = []
    for row in manifest:
        known = ROW_DEFAULTS | dict(row)
        rows.append(CallRecord(**known | {"admitted_at": as_float(known["admitted_at"])}))
    known = RECEIPT_DEFAULTS | dict(fields)
    return Receipt(**known | {"manifest": tuple(rows), "reward": as_float(known["reward"])})


def as_float(value: Any) -> Any:
    """An int as a float, anything else as it is."""
    return float(value) if type(value) is int else value


def staged_columns(call: Call) -> dict[str, Tensor]:
    """The wire columns of one call."""
    return encode_row(
        call.staged,
        call.extras,
        routed_experts_encoding=call.routed_experts_encoding,
        routes=call.routes,
        media=call.media,
    )


# ── hashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def layout_digest(call: StagedCall) -> str:
    """What the byte layout of section 2 gives for a call, also for one outside the domains; zeros if it has no layout.

    A verifier that misses the domain check must not be saved by a digest that disagrees anyway.
    """
    try:
        payload = (
            bytes([call.schema_version, call.digest_version, call.extras_digest_version]),
            text(call.rollout_id),
            text(call.model_call_id),
            b"\x00" if call.parent_call_id is None else b"\x01" + text(call.parent_call_id),
            text(call.mode),
            u64(call.prev_len),
            u64(call.delta_len),
            u64(call.cum_len),
            u64(call.weight_version),
            sized(tokens(call.token_ids_delta)),
            sized(float32s(call.token_mask_delta)),
            sized(float32s(call.generation_log_probs_delta)),
            hash_bytes(call.extras_digest),
            b"\x01" + hash_bytes(call.chain_hash),
            b"\x01" + hash_bytes(call.cumulative_hash),
        )
    except (TypeError, ValueError, OverflowError, struct_error):
        return NO_DIGEST
    return sha256(CALL_DOMAIN, b"".join(payload))


def redigest(call: Call) -> Call:
    """The call with its own digest recomputed, and nothing else."""
    return evolve(call, staged=evolve(call.staged, digest=layout_digest(call.staged)))


def rehash(history: History) -> History:
    """The history with all extras digests, chain hashes, cumulative hashes and digests recomputed, parents first.

    Every call's parent must be in the history, and its lengths must be right.
    """
    done: dict[str, tuple[Call, tuple[int, ...]]] = {}
    for start in history.calls:
        for call in history.path(start.id):
            if call.id in done:
                continue
            parent, before = done.get(call.staged.parent_call_id or "", (None, ()))
            ids = before + call.staged.token_ids_delta
            staged = evolve(
                call.staged,
                extras_digest=extras_digest(call.extras),
                chain_hash=chain_digest(
                    None if parent is None else parent.staged.chain_hash, call.staged.token_ids_delta
                ),
                cumulative_hash=prefix_digest(ids),
            )
            done[call.id] = redigest(evolve(call, staged=staged)), ids
    return evolve(history, calls=tuple(done[call.id][0] for call in history.calls))
