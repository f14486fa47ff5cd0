"""Media of a rollout and of a group (section 7).

Each call of a chain brings only its own new images or videos; a row holds those of its whole chain. Pixels are read in
one batch, and only once the chain is verified: a rollout that is rejected for its tokens moves none. A partition
without media never gets here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rollproof.spec.bundles import Bundle, check_pixels, join, media_kind, read_media, trainer_layout
from rollproof.spec.constants import (
    BUNDLE_PIXELS,
    MEDIA_FIELDS,
    MEDIA_SPANS,
    MEDIA_TENSOR_COLUMNS,
    PIXEL_VALUES,
    ROW_SHAPES_SUFFIX,
)
from rollproof.spec.digest import extras_digest
from rollproof.spec.extras import committed_extras, read_metadata
from rollproof.spec.outcomes import RolloutOutcome, rejected_rollout
from rollproof.spec.plane import DataPlane
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.spans import (
    MediaItem,
    check_embeddings,
    check_media,
    check_tokens,
    embedded_positions,
    parse_items,
)
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor
from rollproof.spec.values import call_fault, fault, refusing

# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout_media(
    config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow], plane: DataPlane
) -> Mapping[str, Tensor] | None:
    """Return a verified chain's media in trainer layout, or None where none of its calls has any.

    ``chain`` holds the staged rows, root first. Raises ``Rejected`` with the first violated rule, each checked over
    the whole chain before the next, and ``Outage``.
    """
    if [staged.call.model_call_id for staged in chain] != [link.model_call_id for link in row.link_spans]:
        calls, links = len(chain), len(row.link_spans)
        raise Rejected(Code.MEDIA_CHAIN_IDENTITY, fault("staged rows", calls, f"those of the chain's {links} calls"))
    for staged in chain:
        if not staged.routed_len:
            check_committed(staged)
    carriers = [staged for staged in chain if staged.media_present]
    for staged in carriers:
        if staged.media_has_frames != carriers[0].media_has_frames:
            expected = f"{carriers[0].media_has_frames}, as in call {carriers[0].call.model_call_id}"
            detail = call_fault(staged.call.model_call_id, "media_has_frames", staged.media_has_frames, expected)
            raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, detail)
    bundles = read_bundles(config, carriers, plane) if carriers else {}
    names = [f"call {call_id}" for call_id in bundles]
    fields = trainer_layout(join(list(bundles.values()), names)) if bundles else None
    check_placeholders(row, chain, bundles)
    check_merging(config, chain, bundles)
    return fields


def read_bundles(config: ReassemblerConfig, carriers: Sequence[StagedRow], plane: DataPlane) -> dict[str, Bundle]:
    """Read the calls that carry media in one batch: their valid bundles by call id, in the order of the chain."""
    try:
        rows = plane.get(config.staging_partition, [staged.key for staged in carriers], MEDIA_TENSOR_COLUMNS)
    except Rejected as rejected:
        # A row may be gone since its base columns were read: then its media are what is missing.
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, rejected.detail) from None
    bundles: dict[str, Bundle] = {}
    for staged, found in zip(carriers, rows, strict=True):
        with refusing(Code.INVALID_MEDIA_COLUMNS, where=staged.key):
            bundles[staged.call.model_call_id] = read_media(found, has_frames=staged.media_has_frames)
    return bundles


def check_placeholders(row: LinearizedRow, chain: Sequence[StagedRow], bundles: Mapping[str, Bundle]) -> None:
    """Check that spans, tokens, bundles and flags agree in every call whose extras can be read (decision D35).

    A call without spans and without media passes whatever its tokens are. In all other cases no generated token in the
    chain may be a placeholder id: a trainer would look for pixels there.
    """
    token_ids: dict[int, str] = {}
    for staged, link in zip(chain, row.link_spans, strict=True):
        call, items = staged.call, read_items(staged)
        if items is None:
            continue
        with mismatch(call.model_call_id):
            check_tokens(items, call.token_ids_delta[: link.carry_len], call.prev_len)
            check_media(items, bundles.get(call.model_call_id))
        token_ids |= {item.token_id: call.model_call_id for item in items}
    for staged, link in zip(chain, row.link_spans, strict=True):
        for index, token in enumerate(staged.call.token_ids_delta):
            if index >= link.carry_len and token in token_ids:
                expected = f"no generated placeholder, as this id is in call {token_ids[token]}"
                detail = fault(f"token_ids_delta[{index}]", token, expected)
                raise Rejected(Code.MEDIA_PLACEHOLDER_MISMATCH, detail, subject=staged.call.model_call_id)


def check_merging(config: ReassemblerConfig, chain: Sequence[StagedRow], bundles: Mapping[str, Bundle]) -> None:
    """Check that each embedding position of a row's images represents as many patches (decision D37).

    Four placeholders for one image and sixteen for another of the same size: for one of them the trainer has too few
    embeddings, or too many.
    """
    factor = config.patches_per_embedding
    for staged in chain:
        bundle = bundles.get(staged.call.model_call_id)
        if bundle is None:
            continue
        _, patch = check_pixels(bundle[BUNDLE_PIXELS])
        with mismatch(staged.call.model_call_id):
            for item in read_items(staged) or ():
                factor = check_embeddings(item, patch, factor)


def mismatch(call_id: str) -> AbstractContextManager[None]:
    """Reject a chain for one of its calls where a ``ValueError`` is raised."""
    return refusing(Code.MEDIA_PLACEHOLDER_MISMATCH, subject=call_id)


def read_items(staged: StagedRow) -> tuple[MediaItem, ...] | None:
    """Return the media items of a call, or None where its extras do not parse, or are none that have a digest.

    Extras without ``media_spans`` have no items. Raises ``Rejected(MEDIA_PLACEHOLDER_MISMATCH)`` for items that are not
    well-formed.
    """
    try:
        extras = read_metadata(staged.extras_metadata_json)
        extras_digest(extras)
    except ValueError:
        return None
    with mismatch(staged.call.model_call_id):
        return parse_items((extras or {}).get(MEDIA_SPANS, []))


def unchecked_calls(config: ReassemblerConfig, chain: Sequence[StagedRow]) -> tuple[str, ...]:
    """Return the calls of an accepted chain whose extras nobody could compare with their commitment (decision D35).

    What they say about media agrees with tokens and pixels, and may still not be what the engine said. The commitment
    covers the routes, which only direct router replay has at hand; there, assembling them has compared it already.
    """
    routed = [staged.call.model_call_id for staged in chain if staged.routed_len]
    return () if config.direct_routes else tuple(routed)


def stray_placeholders(row: LinearizedRow, chain: Sequence[StagedRow]) -> tuple[tuple[str, int], ...]:
    """Return per call of an accepted chain how many carry tokens represent embeddings, and are in no item.

    A text may hold the token. So may a prompt whose image was lost before anything was staged.
    """
    items = [item for staged in chain for item in read_items(staged) or ()]
    token_ids, embedded = {item.token_id for item in items}, embedded_positions(items)
    counts = []
    for staged, link in zip(chain, row.link_spans, strict=True):
        carry = enumerate(staged.call.token_ids_delta[: link.carry_len], staged.call.prev_len)
        stray = sum(token in token_ids and position not in embedded for position, token in carry)
        counts.append((staged.call.model_call_id, stray))
    return tuple(counts)


def check_committed(staged: StagedRow) -> None:
    """Check that the extras of a call without routes are what it committed to (decision D36)."""
    with refusing(Code.MEDIA_COMMITMENT, subject=staged.call.model_call_id):
        committed_extras(staged.call.extras_digest, staged.extras_metadata_json)


# ── one group ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_into_group(outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome]) -> RolloutOutcome:
    """Return ``outcome``, or its rejection if its media differ in kind from the group's first media row (decision D19).

    A trainer concatenates the rows' media, which takes one pixel dtype, one feature width and one modality.
    """
    first = next((other for other in earlier if other.rollout.media), outcome)
    if not outcome.rollout.media or not first.rollout.media:
        return outcome
    wanted = media_kind(first.rollout.media[PIXEL_VALUES], videos=first.media_has_frames)
    found = media_kind(outcome.rollout.media[PIXEL_VALUES], videos=outcome.media_has_frames)
    if found == wanted:
        return outcome
    rollout = outcome.rollout
    expected = f"{', '.join(wanted)}, as in rollout {first.rollout.rollout_id}"
    detail = f"rollout {rollout.rollout_id}: {fault('media', ', '.join(found), expected)}"
    reason = Rejected(Code.MEDIA_GROUP_INCOMPATIBLE, detail)
    return rejected_rollout(rollout.rollout_id, rollout.reward, outcome.receipt, outcome.own_keys, reason)


def group_fields(rollouts: Sequence[FinalizedRollout]) -> dict[str, tuple[Tensor | None, ...]]:
    """Return, per media field, one logical row per rollout, in order; None for text rollouts and placeholders.

    There are no fields where no rollout has media.
    """
    if not any(rollout.media for rollout in rollouts):
        return {}
    return {
        name: tuple(rollout.media[name] if rollout.media else None for rollout in rollouts) for name in MEDIA_FIELDS
    }


def row_columns(fields: Mapping[str, Sequence[Tensor | None]], index: int) -> dict[str, Tensor]:
    """Return the published media columns of one row: flat, so that rows differ in length alone; empty without media."""
    columns = {}
    for name, rows in fields.items():
        kept = rows[index]
        if kept is None:
            dtype = next(row.dtype for row in rows if row is not None)
            columns[name] = Tensor(dtype, (0,), b"")
        else:
            columns[name] = Tensor(kept.dtype, (kept.count,), kept.data)
    return columns


def row_shape_tags(fields: Mapping[str, Sequence[Tensor | None]], index: int) -> dict[str, Any]:
    """Return the tags that give a row's flat media columns their shapes back.

    ``shapes`` lists the shape of every tensor in the row, one or none; ``pad`` says that nothing is to be padded.
    """
    return {
        f"{name}{ROW_SHAPES_SUFFIX}": {"shapes": [] if row is None else [list(row.shape)], "pad": False}
        for name, row in ((name, rows[index]) for name, rows in fields.items())
    }
