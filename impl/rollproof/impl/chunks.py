"""Chunks of generation cuts: keys, records and digests (section 11)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from attrs import evolve, fields, frozen

from rollproof.impl.checks import fault, is_text
from rollproof.impl.digest import call_digest, chain_digest, extras_digest, prefix_digest
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN, RESERVED_ROLLOUT_ID, ROUTE_SENTINEL, ROUTED_EXPERTS
from rollproof.spec.cut_records import CutKey, RunningCall
from rollproof.spec.records import StagedCall

_KEY: Final = re.compile(rf"{RESERVED_ROLLOUT_ID}/([^/]+)/([^/]+)/([^/]+)/(0|[1-9][0-9]*)")
_FIELDS: Final = tuple(field.name for field in fields(StagedCall))
NO_EXTRAS: Final = extras_digest(None)
"""The commitment of every chunk but the first."""
_LONGEST_START: Final = 3
"""Bytes of a character of UTF-8 that can be there without it being whole."""


@frozen(slots=False)
class StagedChunk(StagedCall):
    """A staged call with its extras, as ``staged_row`` takes it."""

    extras: Any = None


def capture_key(rollout_id: str, attempt: int = 0) -> str:
    """Return the capture key of an attempt at a rollout: its id, with ``-a<n>`` for attempt n ≥ 1 (section 11)."""
    return f"{rollout_id}-a{attempt}" if attempt else rollout_id


def cut_key(key: CutKey) -> str:
    """Return the staging key of a chunk; ``ValueError`` where it would have another reading."""
    text = "/".join((RESERVED_ROLLOUT_ID, key.checkpoint, key.capture_key, key.model_call_id, str(key.sequence)))
    if parse_cut_key(text) != key:
        raise ValueError(fault("cut key", text, 'a checkpoint and ids without "/"'))
    return text


def parse_cut_key(text: Any) -> CutKey:
    """Return what a chunk's key says; ``ValueError`` for anything else, the older form without a sequence too."""
    found = _KEY.fullmatch(text) if is_text(text) else None
    if found is None or found[2] == RESERVED_ROLLOUT_ID:
        raise ValueError(fault("cut key", text, f"{RESERVED_ROLLOUT_ID}/checkpoint/capture key/call/sequence"))
    return CutKey(found[1], found[2], found[3], int(found[4]))


def ends_inside_character(text: bytes) -> bool:
    """Return whether UTF-8 ends with the first bytes of a character that may still become whole."""
    return any(_is_start(text[-count:]) for count in range(1, min(len(text), _LONGEST_START) + 1))


def _is_start(data: bytes) -> bool:
    """Return whether these bytes are a character without its end. Python's codec takes surrogates for one."""
    if data[0] == 0xED and data[1:2] >= b"\xa0":
        return False
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.end == len(data) and error.reason == "unexpected end of data"
    return False


def call_record(
    call: RunningCall, ids: Sequence[int], carry: int, log_probs: Sequence[float], version: int, commitment: str
) -> StagedCall:
    """Return the staged call of ``ids``, the first ``carry`` of which are prompt, right behind the call's parent.

    ``log_probs`` are those of the others, ``commitment`` is the digest of the extras. ``ValueError`` for what breaks a
    rule of sections 1 or 3.
    """
    record = StagedCall(
        rollout_id=call.capture_key,
        model_call_id=call.model_call_id,
        parent_call_id=call.parent_call_id,
        mode=MODE_TEXT if call.parent_call_id is None else MODE_TOKEN_IN,
        prev_len=len(call.before),
        delta_len=len(ids),
        cum_len=len(call.before) + len(ids),
        weight_version=version,
        token_ids_delta=tuple(ids),
        token_mask_delta=(0.0,) * carry + (1.0,) * (len(ids) - carry),
        generation_log_probs_delta=(0.0,) * carry + tuple(log_probs),
        extras_digest=commitment,
        chain_hash=chain_digest(call.parent_chain_hash, ids),
        cumulative_hash=prefix_digest((*call.before, *ids)),
        digest="0" * 64,
    )
    return evolve(record, digest=call_digest(record))


def with_extras(record: StagedCall, extras: Any) -> StagedChunk:
    """Return a record together with its extras."""
    return StagedChunk(**{name: getattr(record, name) for name in _FIELDS}, extras=extras)


def without_routes(extras: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return extras as chunks stage them: routes come from one prefill, or from nobody."""
    return None if extras is None else {name: value for name, value in extras.items() if name != ROUTED_EXPERTS}


def rounded(log_probs: Sequence[float]) -> list[float]:
    """Return log-probabilities as float32 holds them."""
    values: list[float] = np.array(log_probs, dtype=np.float64).astype(np.float32).astype(np.float64).tolist()
    return values


def restored_routes(routes: torch.Tensor, start: int, end: int, prefills: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return the routes ``[T, L, K]`` of a restored call: sentinel in [start, end), unless one prefill observed it all.

    ``ValueError`` for a prefix that is not within T.
    """
    if not 0 <= start <= end <= len(routes):
        raise ValueError(fault("prefix", (start, end), f"a range within {len(routes)} tokens"))
    if any(first <= start and end <= last for first, last in prefills):
        return routes
    masked = routes.clone()
    masked[start:end] = ROUTE_SENTINEL
    return masked
