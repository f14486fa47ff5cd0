"""The rules of a restore over the columns of all chunks at once (section 11). Each raises ``Rejected``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from rollproof.impl.checks import as_hex, fault, show
from rollproof.impl.chunks import NO_EXTRAS, call_record, parse_cut_key
from rollproof.impl.columns import Flags
from rollproof.impl.digest import call_digests
from rollproof.impl.staged import StagedColumns
from rollproof.spec.constants import MODE_TEXT, MODE_TOKEN_IN
from rollproof.spec.cut_records import RunningCall
from rollproof.spec.rejections import Code, Rejected

UNDER_WAY: Final = "another cut of this call is under way"
"""Why a call is not cut: the reason of a failure that says nothing about the call."""


def check_identity(call: RunningCall, keys: Sequence[str], columns: StagedColumns) -> None:
    """Check that each chunk is of this call, and its key of its place: ``cut_identity_mismatch``.

    A key that repeats was read once: there are fewer rows than keys then, and the key is of another place.
    """
    mode = MODE_TEXT if call.parent_call_id is None else MODE_TOKEN_IN
    wanted = (call.capture_key, call.model_call_id, call.parent_call_id, mode, len(call.before))
    names = ("rollout_id", "model_call_id", "parent_call_id", "mode", "prev_len")
    rows = list(zip(*(columns.fields[name].tolist() for name in names), strict=True))
    for sequence, key in enumerate(keys):
        if not _is_place(key, call, sequence):
            raise Rejected(Code.CUT_IDENTITY_MISMATCH, fault("staging_keys", key, f"chunk {sequence} of this call"))
        for name, found, expected in zip(names, rows[sequence], wanted, strict=True):
            if found != expected:
                raise Rejected(Code.CUT_IDENTITY_MISMATCH, fault(name, found, show(expected)))


def _is_place(key: str, call: RunningCall, sequence: int) -> bool:
    try:
        parsed = parse_cut_key(key)
    except ValueError:
        return False
    return (parsed.capture_key, parsed.model_call_id, parsed.sequence) == (
        call.capture_key,
        call.model_call_id,
        sequence,
    )


def check_versions(versions: Sequence[int]) -> None:
    """Check that versions never fall; the last one is the worker's."""
    for before, after in pairwise(versions):
        if before > after:
            raise Rejected(Code.CUT_VERSION_ORDER, fault("weight_version", before, f"at most {after}"))


def carry_of(columns: StagedColumns) -> int:
    """Return how long the prompt is; ``cut_mask_order`` unless it is in front of everything else."""
    generated: Flags = columns.generated
    carry = int(np.argmax(generated)) if generated.any() else len(generated)
    if not generated[carry:].all() or carry > columns.offsets[1]:
        raise Rejected(Code.CUT_MASK_ORDER, fault("token_mask_delta", 0.0, "carry in front of the first chunk only"))
    return carry


def check_digests(
    call: RunningCall, columns: StagedColumns, carry: int, oldest: int, commitment: str, acknowledged: str
) -> None:
    """Check each chunk's own digests, and then that of all of them."""
    digests = call_digests(columns)
    ids, values = columns.token_ids.tolist(), columns.logprobs.tolist()
    for index, (start, end) in enumerate(pairwise(columns.offsets.tolist())):
        prompt = carry if index == 0 else 0
        version = int(columns.fields["weight_version"][index])
        own = call_record(
            call, ids[start:end], prompt, values[start + prompt : end], version, NO_EXTRAS if index else commitment
        )
        carried = as_hex(columns.fields["digest"][index])
        if not carried == digests[index].hex() == own.digest:
            detail = fault(f"chunk {index}: digest", carried, f"{own.digest}, that of its content")
            raise Rejected(Code.RETAINED_PREFIX_CHANGED, detail)
    whole = call_record(call, ids, carry, values[carry:], oldest, commitment)
    if whole.digest != acknowledged:
        raise Rejected(
            Code.RETAINED_PREFIX_CHANGED, fault("prefix_digest", acknowledged, f"{whole.digest}, that of the chunks")
        )
