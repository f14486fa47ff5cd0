"""Media of a rollout and of a group (section 7): read once, after the chain is verified, and published row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rollproof.impl.assembly import expect_commitment, read_metadata
from rollproof.impl.bundles import Bundle, join, read_staged, trainer_layout
from rollproof.impl.checks import as_hex, call_fault, fault
from rollproof.impl.columns import is_kept
from rollproof.impl.digest import extras_digest
from rollproof.impl.host_memory import concatenated
from rollproof.impl.in_place import Place, back_to_back
from rollproof.impl.lineage import ChainRow
from rollproof.impl.outcomes import Dims, FinalizedRow, RolloutOutcome
from rollproof.impl.packed import PackedTensor
from rollproof.impl.routes import ChainRoutes
from rollproof.impl.spans import Item, check_items, merge_factor, read_items
from rollproof.impl.staged import StagedColumns
from rollproof.impl.staging import StagingSource
from rollproof.spec.constants import (
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
    config: ReassemblerConfig,
    chain: ChainRow,
    staged: StagedColumns,
    fetched: ChainRoutes,
    place: Place | None = None,
) -> tuple[dict[str, Any] | None, int, int]:
    """Return the media of a verified chain, one packed row per published field, or None where no call has any.

    Beside them: in how many calls nobody could compare the extras with their commitment (D35), and how many carry
    tokens would represent embeddings, and are in no item.

    The calls that carry media are read in one batch; without any there is no read. Pixels are copied once, on their
    device or into their ``place`` in the group, since the data plane may use the memory of its answer again; not where
    it gave that away and they are back to back. Raises ``Rejected`` with the first violated rule of section 7; an error
    of the data plane propagates. The chain's calls are rows of ``staged``, so their identity needs no check of its own.
    """
    for position, call in enumerate(chain.calls.tolist()):
        if not staged.routed_lens[call]:
            _check_committed(chain, staged, position)
    carriers = [call for call in chain.calls.tolist() if staged.media_present[call]]
    if not carriers:
        return None, *_check_placeholders(config, chain, staged, {})
    names = [str(staged.fields["model_call_id"][call]) for call in carriers]
    with_frames = staged.media_has_frames[carriers].tolist()
    if len(set(with_frames)) > 1:
        first = with_frames.index(not with_frames[0])
        detail = call_fault(
            names[first], "media_has_frames", with_frames[first], f"{with_frames[0]}, as in call {names[0]}"
        )
        raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, detail)
    keys = [f"{chain.rollout_id}/{name}" for name in names]
    parts, kept = _read(fetched.source, keys, has_frames=with_frames[0])
    own = partial(_owned, place=place, kept=kept)
    fields = trainer_layout(join(parts, [f"call {name}" for name in names], copy=own))
    return fields, *_check_placeholders(config, chain, staged, dict(zip(carriers, parts, strict=True)))


def _owned(pixels: list[torch.Tensor], place: Place | None, *, kept: bool) -> torch.Tensor:
    """Return the patches of a chain's calls in memory of their own, or of the group's."""
    whole = back_to_back(pixels) if kept else None
    if whole is not None:
        return whole.view(-1, pixels[0].shape[1])
    first, memory = pixels[0], None
    if place is not None and first.device.type == "cpu":
        memory = place.for_pixels(sum(map(len, pixels)), first.shape[1], first.dtype)
    return concatenated(pixels, out=memory)


def has_frames(chain: ChainRow, staged: StagedColumns) -> bool:
    """Return whether the chain's media are videos."""
    return bool(staged.media_has_frames[chain.calls].any())


def _read(source: StagingSource, keys: Sequence[str], *, has_frames: bool) -> tuple[list[Bundle], bool]:
    """Return the media of these rows, and whether they are in memory that nobody else uses."""
    try:
        answer = source.read(keys, MEDIA_TENSOR_COLUMNS)
    except Rejected as rejected:
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, rejected.detail) from None
    try:
        return read_staged(answer, keys, has_frames=has_frames), is_kept(answer)
    except ValueError as error:
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, str(error)) from None


def _check_placeholders(
    config: ReassemblerConfig, chain: ChainRow, staged: StagedColumns, bundles: Mapping[int, Bundle]
) -> tuple[int, int]:
    """Check that spans, tokens, bundles and flags agree in every call whose extras parse.

    Returns how many calls are unproven, and how many placeholder tokens are in no item.
    The commitment covers the routes. Direct router replay compares it when it assembles them, other modes cannot.
    """
    token_ids: dict[int, str] = {}
    items_of: dict[int, list[Item]] = {}
    unproven = 0
    for position, call in enumerate(chain.calls.tolist()):
        start, end = chain.offsets[position], chain.offsets[position + 1]
        carry = chain.token_ids[start : end - chain.generation_lens[position]]
        routed = bool(staged.routed_lens[call])
        unproven += routed and not config.direct_routes
        try:
            extras = read_metadata(staged.extras_metadata_json[call])
            if routed:
                extras_digest(extras)
        except ValueError:
            continue
        try:
            items = items_of[position] = read_items((extras or {}).get(MEDIA_SPANS, []))
            check_items(items, carry, int(staged.fields["prev_len"][call]), bundles.get(call))
        except ValueError as error:
            raise _mismatch(chain, position, str(error)) from None
        token_ids |= {item.token_id: chain.model_call_ids[position] for item in items}
    standing_in = np.isin(chain.token_ids, np.fromiter(token_ids, dtype=np.int64))
    for at in np.flatnonzero(standing_in & (chain.token_mask == 1.0)).tolist():
        position = int(np.searchsorted(chain.offsets, at, side="right")) - 1
        token = int(chain.token_ids[at])
        expected = f"no generated placeholder, as this id is in call {token_ids[token]}"
        raise _mismatch(chain, position, fault(f"token_ids_delta[{at - chain.offsets[position]}]", token, expected))
    factor = config.patches_per_embedding
    for position, items in items_of.items():
        for item in items:
            area = bundles[int(chain.calls[position])].patch_area
            try:
                factor = merge_factor(item, area, factor)
            except ValueError as error:
                raise _mismatch(chain, position, str(error)) from None
    embedded = sum(count for items in items_of.values() for item in items for _, count in item.runs)
    return unproven, int(standing_in.sum()) - embedded


def _check_committed(chain: ChainRow, staged: StagedColumns, position: int) -> None:
    """Check that the extras of a call without routes are what it committed to (D36)."""
    try:
        actual = extras_digest(read_metadata(staged.extras_metadata_json[chain.calls[position]]))
        expect_commitment(actual, as_hex(chain.extras_digests[position]))
    except ValueError as error:
        raise Rejected(Code.MEDIA_COMMITMENT, str(error), subject=chain.model_call_ids[position]) from None


def _mismatch(chain: ChainRow, position: int, detail: str) -> Rejected:
    return Rejected(Code.MEDIA_PLACEHOLDER_MISMATCH, detail, subject=chain.model_call_ids[position])


# ── one group ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_into_group(outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome], dims: Dims | None) -> RolloutOutcome:
    """Return ``outcome``, or its rejection where its media do not fit the group's first media row (D19).

    Pixel dtype, feature width and modality must agree. ``dims`` is (L, K) before this rollout.
    """
    found = _kind(outcome)
    first = next((other for other in earlier if other.rollout.media), outcome)
    wanted = _kind(first)
    if found in (None, wanted):
        return outcome
    expected = f"{wanted}, as in rollout {first.rollout.rollout_id}"
    detail = f"rollout {outcome.rollout.rollout_id}: {fault('media', found, expected)}"
    return outcome.rejected(Rejected(Code.MEDIA_GROUP_INCOMPATIBLE, detail), dims)


def _kind(outcome: RolloutOutcome) -> str | None:
    """Return what must agree within a group, in words; None for a row without media."""
    if not outcome.rollout.media:
        return None
    pixels = outcome.rollout.media[PIXEL_VALUES].tensors[0]
    dtype, modality = str(pixels.dtype).removeprefix("torch."), "videos" if outcome.media_has_frames else "images"
    return f"{dtype}, {pixels.shape[1]} features, {modality}"


def group_fields(rollouts: Sequence[FinalizedRow]) -> dict[str, PackedTensor]:
    """Return a row per rollout for each media field, empty for text and placeholders; no field without media."""
    if not any(rollout.media for rollout in rollouts):
        return {}
    return {
        name: PackedTensor([rollout.media[name].as_tensor() if rollout.media else None for rollout in rollouts], 0)
        for name in MEDIA_FIELDS
    }


def wire_columns(fields: Mapping[str, PackedTensor]) -> dict[str, torch.Tensor]:
    """Return the published media columns: jagged ``[N, j]``, each row flat."""
    columns = {name: packed.to_wire()[0] for name, packed in fields.items()}
    return {name: column for name, column in columns.items() if column is not None}


def row_shape_tags(fields: Mapping[str, PackedTensor], index: int) -> dict[str, Any]:
    """Return the tags that give one row's flat media columns their shapes back, as NeMo RL reads them."""
    return {
        f"{name}{ROW_SHAPES_SUFFIX}": {"shapes": packed.row_shapes()[index], "pad": packed.pad_to_max_shape}
        for name, packed in fields.items()
    }
