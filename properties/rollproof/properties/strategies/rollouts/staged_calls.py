"""Staged calls and their manifest rows from token ids, with all lengths and hashes right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import NOTHING, evolve, fields

from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.records import CallRecord, StagedCall
from rollproof.spec.values import owned_key

NO_DIGEST: Final = "0" * 64
"""In place of a hash that has not been computed."""

_STAGED: Final = {field.name for field in fields(StagedCall)}
SHARED_FIELDS: Final = tuple(field.name for field in fields(CallRecord) if field.name in _STAGED)
"""Fields that a manifest row repeats from its staged call."""

_DEFAULTS: Final = {field.name: field.default for field in fields(StagedCall) if field.default is not NOTHING}


def staged_call(
    ids: Sequence[int],
    carry: int,
    *,
    rollout_id: str = "r",
    call_id: str,
    parent: StagedCall | None = None,
    before: Sequence[int] = (),
    log_probs: Sequence[float] | None = None,
    weight_version: int = 0,
    extras: Any = None,
    cumulative_hash: str | None = None,
) -> StagedCall:
    """Return a call that carries the first ``carry`` of its ``ids`` and generated the others.

    ``before`` are the token ids of its ancestors, root first, and ``log_probs`` those of the generated tokens, -0.5
    each by default. Give ``cumulative_hash`` to save hashing a long chain.
    """
    generated = len(ids) - carry
    call = StagedCall(
        rollout_id=rollout_id,
        model_call_id=call_id,
        parent_call_id=None if parent is None else parent.model_call_id,
        mode=MODE_TEXT if parent is None else MODE_TOKEN_IN,
        prev_len=0 if parent is None else parent.cum_len,
        delta_len=len(ids),
        cum_len=(0 if parent is None else parent.cum_len) + len(ids),
        weight_version=weight_version,
        token_ids_delta=tuple(ids),
        token_mask_delta=(0.0,) * carry + (1.0,) * generated,
        generation_log_probs_delta=(0.0,) * carry + tuple((-0.5,) * generated if log_probs is None else log_probs),
        extras_digest=extras_digest(extras),
        chain_hash=chain_digest(None if parent is None else parent.chain_hash, ids),
        cumulative_hash=prefix_digest((*before, *ids)) if cumulative_hash is None else cumulative_hash,
        digest=NO_DIGEST,
    )
    return evolve(call, digest=call_digest(call))


def call_record(call: StagedCall, response_id: str) -> CallRecord:
    """Return the manifest row of a call."""
    shared = {name: getattr(call, name) for name in SHARED_FIELDS}
    return CallRecord(**shared, staging_key=owned_key(call.rollout_id, call.model_call_id), response_id=response_id)


def bare_record(call_id: str, parent_id: str | None, **changes: Any) -> CallRecord:
    """Return a manifest row of rollout "r" by itself: a root or child of one token, valid except for its hashes."""
    record = CallRecord(
        model_call_id=call_id,
        parent_call_id=parent_id,
        prev_len=0 if parent_id is None else 1,
        delta_len=1,
        cum_len=1 if parent_id is None else 2,
        weight_version=0,
        digest=NO_DIGEST,
        extras_digest=NO_DIGEST,
        staging_key=owned_key("r", call_id),
        chain_hash=NO_DIGEST,
        cumulative_hash=NO_DIGEST,
        response_id=f"resp-{call_id}",
        mode=MODE_TEXT if parent_id is None else MODE_TOKEN_IN,
    )
    return evolve(record, **changes)


def raw_record(call: StagedCall, response_id: str) -> dict[str, Any]:
    """Return the manifest row of a call as JSON, without versions that have their default value."""
    fields_of = ((name, getattr(call, name)) for name in SHARED_FIELDS)
    shared = {name: value for name, value in fields_of if name not in _DEFAULTS or value != _DEFAULTS[name]}
    return {**shared, "staging_key": owned_key(call.rollout_id, call.model_call_id), "response_id": response_id}


def raw_receipt(calls: Sequence[StagedCall], **changes: Any) -> dict[str, Any]:
    """Return the receipt, as JSON, of a rollout whose last call is its terminal one."""
    return {
        "rollout_id": calls[0].rollout_id,
        "manifest": [raw_record(call, f"resp-{call.model_call_id}") for call in calls],
        "terminal_model_call_id": calls[-1].model_call_id,
        "terminal_selection": "declared",
        **changes,
    }
