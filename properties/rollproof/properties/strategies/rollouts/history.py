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

from rollproof.properties.strategies.rollouts.staged_calls import NO_DIGEST, SHARED_FIELDS
from rollproof.spec import receipt as receipt_reading
from rollproof.spec.constants import (
    ROUTE_ENCODING_NONE,
)
from rollproof.spec.digest import CALL_DOMAIN, call_payload, chain_digest, extras_digest, prefix_digest, sha256
from rollproof.spec.judge.requests import FinalizeRollout, Linearize
from rollproof.spec.judge.staging import Staging
from rollproof.spec.receipt import MANIFEST_DEFAULTS
from rollproof.spec.records import CallRecord, ReassemblerConfig, Receipt, StagedCall
from rollproof.spec.staged import encode_row
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import owned_key

RECEIPT_DEFAULTS: Final = {
    name: receipt_reading.RECEIPT_DEFAULTS[name]
    for name in receipt_reading.RECEIPT_FIELDS
    if name in receipt_reading.RECEIPT_DEFAULTS and name != "manifest"
}
"""Receipt fields that may be left out where they have this value. An empty manifest may be left out as well."""


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
    topk: Mapping[str, Tensor] | None = None
    """The sampler columns, where the engine gave some."""

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
    """The reward in the receipt; the published reward is a separate argument."""
    spelling: int = 0
    """Bit by bit, whether a default value is written out in the raw receipt; 0 leaves all of them out."""
    by_id: Mapping[str, Call] = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "by_id", {call.id: call for call in self.calls})

    # ── what a receipt says ─────────────────────────────────────────────────────────────────────────────────────────

    def record_fields(self, call: Call) -> dict[str, Any]:
        """Return all fields of a call's manifest row."""
        fields = {name: getattr(call.staged, name) for name in SHARED_FIELDS}
        fields["staging_key"] = call.key
        for name in ("response_id", "admitted_at", "output_fingerprint", "continuation_fingerprint"):
            fields[name] = getattr(call, name)
        fields["fingerprint_version"] = call.fingerprint_version
        return fields

    def receipt_fields(self) -> dict[str, Any]:
        """Return all fields of the receipt but the manifest."""
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
        """Return the receipt as JSON has it: plain values, and defaults written out or left out by ``spelling``."""
        receipt = spelled(self.receipt_fields(), RECEIPT_DEFAULTS, self.spelling)
        receipt["manifest"] = [
            spelled(self.record_fields(call), MANIFEST_DEFAULTS, self.spelling >> 9) for call in self.calls
        ]
        return receipt

    def receipt(self) -> Receipt:
        """Return the receipt as a parser reads it."""
        return receipt_record(self.receipt_fields(), map(self.record_fields, self.calls))

    # ── what was staged ─────────────────────────────────────────────────────────────────────────────────────────────

    def staged_calls(self) -> tuple[StagedCall, ...]:
        """Return the staged calls in manifest order."""
        return tuple(call.staged for call in self.calls)

    def rows(self) -> dict[str, dict[str, Tensor]]:
        """Return the staged rows by their staging keys."""
        return {call.key: staged_columns(call) for call in self.calls}

    def staging(self, **kwargs: Any) -> Staging:
        """Return a staging partition that holds this rollout alone."""
        return Staging(self.rows(), **kwargs)

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def linearize(self) -> Linearize:
        """Return the request to verify and linearize it."""
        return Linearize(self.receipt(), self.staged_calls())

    def finalize(
        self, config: ReassemblerConfig | None = None, reward: Any = 0.0, staging: Staging | None = None
    ) -> FinalizeRollout:
        """Return the request to finalize it, over a staging partition that holds it alone unless another is given."""
        return FinalizeRollout(
            config or ReassemblerConfig(),
            self.rollout_id,
            self.raw_receipt(),
            reward,
            self.staging() if staging is None else staging,
        )

    # ── shape and edits ─────────────────────────────────────────────────────────────────────────────────────────────

    def path(self, call_id: str | None) -> tuple[Call, ...]:
        """Return the calls from the root to ``call_id``, as far as parent links lead inside the manifest."""
        walk: dict[str, Call] = {}
        while call_id is not None and call_id in self.by_id and call_id not in walk:
            walk[call_id] = self.by_id[call_id]
            call_id = self.by_id[call_id].staged.parent_call_id
        return tuple(walk.values())[::-1]

    def chain(self) -> tuple[Call, ...]:
        """Return the terminal chain, root first."""
        return self.path(self.terminal_call_id)

    def with_call(self, changed: Call) -> History:
        """Return this history with the call of the same id replaced; no hash is recomputed."""
        return evolve(self, calls=tuple(changed if call.id == changed.id else call for call in self.calls))

    def renamed(self, rollout_id: str) -> History:
        """Return the same calls under another rollout id; of their hashes only the digest covers it."""
        calls = (redigest(evolve(call, staged=evolve(call.staged, rollout_id=rollout_id))) for call in self.calls)
        return evolve(self, rollout_id=rollout_id, calls=tuple(calls))


def spelled(fields: dict[str, Any], defaults: Mapping[str, Any], spelling: int) -> dict[str, Any]:
    """Return ``fields`` without those that have their default value and a 0 in ``spelling``."""
    left_out = {name for bit, name in enumerate(defaults) if not spelling >> bit & 1}
    return {name: value for name, value in fields.items() if name not in left_out or value != defaults[name]}


def receipt_record(fields: Mapping[str, Any], manifest: Iterable[Mapping[str, Any]]) -> Receipt:
    """Return a parsed receipt with these fields, valid or not; numbers become floats as a parser makes them."""
    rows = []
    for row in manifest:
        known = MANIFEST_DEFAULTS | dict(row)
        rows.append(CallRecord(**known | {"admitted_at": as_float(known["admitted_at"])}))
    known = RECEIPT_DEFAULTS | dict(fields)
    return Receipt(**known | {"manifest": tuple(rows), "reward": as_float(known["reward"])})


def as_float(value: Any) -> Any:
    """Return an int as a float, and anything else as it is."""
    return float(value) if type(value) is int else value


def staged_columns(call: Call) -> dict[str, Tensor]:
    """Return the wire columns of one call."""
    columns = encode_row(
        call.staged,
        call.extras,
        routed_experts_encoding=call.routed_experts_encoding,
        routes=call.routes,
        media=call.media,
    )
    return columns if call.topk is None else {**columns, **call.topk}


# ── hashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def layout_digest(call: StagedCall) -> str:
    """Digest a call by the byte layout of section 2, even one outside the domains; zeros if it has no layout.

    A verifier that lacks the domain check must not be saved by a digest that disagrees anyway.
    """
    try:
        return sha256(CALL_DOMAIN, call_payload(call))
    except (TypeError, ValueError, OverflowError, struct_error):
        return NO_DIGEST


def redigest(call: Call) -> Call:
    """Return the call with its own digest recomputed, and nothing else."""
    return evolve(call, staged=evolve(call.staged, digest=layout_digest(call.staged)))


def rehash(history: History) -> History:
    """Return a history with all extras digests, chain hashes, cumulative hashes and digests recomputed, parents first.

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
