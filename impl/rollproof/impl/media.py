"""Media of a rollout and of a group (section 7): read once, after the chain is verified, and published row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from rollproof.impl.assembly import read_metadata, routed_extras_digest
from rollproof.impl.bundles import Bundle, join, read_bundle, read_staged, staged_tensors, trainer_layout
from rollproof.impl.digest import extras_digest
from rollproof.impl.lineage import ChainRow
from rollproof.impl.outcomes import Dims, FinalizedRollout, RolloutOutcome
from rollproof.impl.packed import PackedTensor
from rollproof.impl.routes import ChainRoutes
from rollproof.impl.spans import Item, check_items, read_items
from rollproof.impl.staged import StagedColumns
from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    MEDIA_FIELDS,
    MEDIA_SPANS,
    MEDIA_TENSOR_COLUMNS,
    PIXEL_VALUES,
    ROW_SHAPES_SUFFIX,
)
from rollproof.spec.records import ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected

# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout_media(
    config: ReassemblerConfig, chain: ChainRow, staged: StagedColumns, fetched: ChainRoutes
) -> dict[str, Any] | None:
    """The media of a verified chain, one packed row per published field, or None where no call has any.

    One batched read of the calls that carry media, none without. Raises ``Rejected`` with the first violated rule of
    section 7; an error of the data plane propagates. The chain's calls are rows of ``staged``, so their identity needs
    no check of its own.
    """
    carriers = [call for call in chain.calls.tolist() if staged.media_present[call]]
    with_frames = set(staged.media_has_frames[carriers].tolist())
    if len(with_frames) > 1:
        raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, "stills and videos")
    bundles: dict[int, Bundle] = {}
    if carriers:
        parts = _read(chain, staged, fetched, carriers, has_frames=with_frames.pop())
        bundles = dict(zip(carriers, parts, strict=True))
    fields = trainer_layout(join(list(bundles.values()))) if bundles else None
    _check_placeholders(chain, staged, bundles, fetched if config.direct_routes else None)
    return fields


def has_frames(chain: ChainRow, staged: StagedColumns) -> bool:
    """Whether the chain's media are videos."""
    return bool(staged.media_has_frames[chain.calls].any())


def _read(
    chain: ChainRow, staged: StagedColumns, fetched: ChainRoutes, carriers: Sequence[int], *, has_frames: bool
) -> list[Bundle]:
    call_ids = staged.fields["model_call_id"]
    keys = [f"{chain.rollout_id}/{call_ids[call]}" for call in carriers]
    try:
        answer = fetched.source.read(keys, MEDIA_TENSOR_COLUMNS)
        return read_staged(answer, len(keys), has_frames=has_frames)
    except (Rejected, ValueError) as error:
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, str(error)) from None


def _check_placeholders(
    chain: ChainRow, staged: StagedColumns, bundles: Mapping[int, Bundle], routes: ChainRoutes | None
) -> None:
    """Spans, tokens, bundles and flags agree in every call whose extras are what was committed to.

    Digests are only looked at where something disagrees: a call that agrees needs none, and one whose extras are not
    the committed ones is not checked at all. ``routes`` are the chain's, in direct router replay.
    """
    committed = cache(partial(_is_committed, chain, staged, routes))
    holders: dict[int, list[int]] = {}
    for position, call in enumerate(chain.calls.tolist()):
        start, end = chain.offsets[position], chain.offsets[position + 1]
        carry = chain.token_ids[start : end - chain.generation_lens[position]]
        try:
            items = _items(staged, call)
            check_items(items, carry, int(staged.fields["prev_len"][call]), bundles.get(call))
        except ValueError as error:
            if committed(position):
                raise _mismatch(chain, position, str(error)) from None
            continue
        for item in items:
            holders.setdefault(item.token_id, []).append(position)
    if not holders:
        return
    standing_in = np.isin(chain.token_ids, np.fromiter(holders, dtype=np.int64)) & (chain.token_mask == 1.0)
    for at in np.flatnonzero(standing_in).tolist():
        token = int(chain.token_ids[at])
        if any(map(committed, holders[token])):
            position = int(np.searchsorted(chain.offsets, at, side="right")) - 1
            raise _mismatch(chain, position, f"it generated token {token}, which stands for embeddings")


def _items(staged: StagedColumns, call: int) -> list[Item]:
    extras = read_metadata(staged.extras_metadata_json[call]) or {}
    return read_items(extras.get(MEDIA_SPANS, []))


def _is_committed(chain: ChainRow, staged: StagedColumns, routes: ChainRoutes | None, position: int) -> bool:
    """Whether a call's extras digest to its commitment, as far as that can be known here."""
    call = int(chain.calls[position])
    try:
        if routes is not None and staged.routed_lens[call]:
            fragment = routes.fragments.get(call)
            actual = None if fragment is None else routed_extras_digest(fragment)
        else:
            actual = extras_digest(read_metadata(staged.extras_metadata_json[call]))
    except ValueError:
        return False
    commitment: str = chain.extras_digests[position].tobytes().hex()
    return actual == commitment


def _mismatch(chain: ChainRow, position: int, detail: str) -> Rejected:
    return Rejected(Code.MEDIA_PLACEHOLDER_MISMATCH, detail, subject=chain.model_call_ids[position])


# ── one group ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_into_group(outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome], dims: Dims | None) -> RolloutOutcome:
    """``outcome``, or its rejection where its media do not fit the group's first media row (D19).

    Pixel dtype, feature width and modality must agree. ``dims`` is (L, K) before this rollout.
    """
    found = _kind(outcome)
    wanted = next((kind for kind in map(_kind, earlier) if kind is not None), found)
    if found in (None, wanted):
        return outcome
    return outcome.rejected(Rejected(Code.MEDIA_GROUP_INCOMPATIBLE, f"{found} after {wanted}"), dims)


def _kind(outcome: RolloutOutcome) -> tuple[torch.dtype, int, bool] | None:
    """What must agree within a group; None for a row without media."""
    if not outcome.rollout.media:
        return None
    pixels = outcome.rollout.media[PIXEL_VALUES].tensors[0]
    return pixels.dtype, pixels.shape[1], outcome.media_has_frames


def group_fields(rollouts: Sequence[FinalizedRollout]) -> dict[str, PackedTensor]:
    """Per media field one row per rollout, empty for text rollouts and placeholders; no field without media."""
    if not any(rollout.media for rollout in rollouts):
        return {}
    return {
        name: PackedTensor([rollout.media[name].as_tensor() if rollout.media else None for rollout in rollouts], 0)
        for name in MEDIA_FIELDS
    }


def wire_columns(fields: Mapping[str, PackedTensor]) -> dict[str, torch.Tensor]:
    """The published media columns: jagged ``[N, j]``, each row flat."""
    columns = {name: packed.to_wire()[0] for name, packed in fields.items()}
    return {name: column for name, column in columns.items() if column is not None}


def row_shape_tags(fields: Mapping[str, PackedTensor], index: int) -> dict[str, Any]:
    """What gives one row's flat media columns their shapes back, as NeMo RL reads it."""
    return {
        f"{name}{ROW_SHAPES_SUFFIX}": {"shapes": packed.row_shapes()[index], "pad": packed.pad_to_max_shape}
        for name, packed in fields.items()
    }


# ── one staged call ─────────────────────────────────────────────────────────────────────────────────────────────────


def staged_columns(
    attachments: Mapping[str, Any] | None, metadata: bytes, pixel_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The media columns of one staged call of a partition that carries media, batch size 1.

    ``attachments`` are the named tensors that are new to the call, None for a call without media; a ``num_frames`` of
    None counts as left out. ``metadata`` is the call's staged extras. ``ValueError`` for what is no bundle of
    ``pixel_dtype``.
    """
    bundle = None
    if attachments is not None:
        named = dict(attachments)
        if named.get(BUNDLE_FRAMES, 0) is None:
            del named[BUNDLE_FRAMES]
        bundle = read_bundle(named)
    digest = torch.frombuffer(bytearray(sha256(metadata).digest()), dtype=torch.uint8)
    return staged_tensors(bundle, pixel_dtype) | {"media_metadata_digest": digest[None]}
