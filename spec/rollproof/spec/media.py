"""Media of a rollout and of a group (section 7).

Each call of a chain brings only its own new images or videos; a row holds those of its whole chain. Pixels are read in
one batch, and only once the chain is verified: a rollout that is rejected for its tokens moves none. A partition
without media never gets here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollproof.spec.bundles import Bundle, join, read_media, trainer_layout
from rollproof.spec.constants import MEDIA_FIELDS, MEDIA_SPANS, MEDIA_TENSOR_COLUMNS, PIXEL_VALUES, ROW_SHAPES_SUFFIX
from rollproof.spec.extras import committed_extras
from rollproof.spec.outcomes import Dims, RolloutOutcome
from rollproof.spec.plane import Effect, Get, Staging
from rollproof.spec.records import FinalizedRollout, LinearizedRow, ReassemblerConfig
from rollproof.spec.rejections import Code, Rejected
from rollproof.spec.routes import fragment_of
from rollproof.spec.spans import MediaItem, check_media, check_tokens, parse_items
from rollproof.spec.staged import StagedRow
from rollproof.spec.tensor import Tensor

# ── one rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


def rollout_media(
    config: ReassemblerConfig,
    row: LinearizedRow,
    chain: Sequence[StagedRow],
    staging: Staging,
    effects: list[Effect],
) -> Mapping[str, Tensor] | None:
    """A verified chain's media in trainer layout, or None where none of its calls has any.

    ``chain`` holds the staged rows, root first. Raises ``Rejected`` with the first violated rule, each checked over
    the whole chain before the next, and ``Outage``.
    """
    if [staged.call.model_call_id for staged in chain] != [link.model_call_id for link in row.link_spans]:
        raise Rejected(Code.MEDIA_CHAIN_IDENTITY)
    carriers = [staged for staged in chain if staged.media_present]
    if len({staged.media_has_frames for staged in carriers}) > 1:
        raise Rejected(Code.MEDIA_CHAIN_INCOMPATIBLE, "images and videos")
    bundles = read_bundles(config, carriers, staging, effects) if carriers else {}
    fields = trainer_layout(join(list(bundles.values()))) if bundles else None
    check_placeholders(config, row, chain, bundles)
    return fields


def read_bundles(
    config: ReassemblerConfig, carriers: Sequence[StagedRow], staging: Staging, effects: list[Effect]
) -> dict[str, Bundle]:
    """One batched read of the calls that carry media: their valid bundles by call id, in the order of the chain."""
    keys = tuple(staged.key for staged in carriers)
    done = tuple(effects)
    effects.append(Get(config.staging_partition, keys, MEDIA_TENSOR_COLUMNS))
    try:
        rows = staging.get(keys, done)
        return {
            staged.call.model_call_id: read_media(found, has_frames=staged.media_has_frames)
            for staged, found in zip(carriers, rows, strict=True)
        }
    except (Rejected, ValueError) as error:
        # A row may be gone since its base columns were read: then its media are what is missing.
        raise Rejected(Code.INVALID_MEDIA_COLUMNS, str(error)) from None


def check_placeholders(
    config: ReassemblerConfig, row: LinearizedRow, chain: Sequence[StagedRow], bundles: Mapping[str, Bundle]
) -> None:
    """Media spans, tokens, bundles and flags agree in every call whose extras can be checked.

    A call without spans and without media passes whatever its tokens spell. Then nothing that the policy generated
    anywhere in the chain is one of the ids that stand for embeddings: a trainer would look for pixels there.
    """
    token_ids: dict[int, str] = {}
    for staged, link in zip(chain, row.link_spans, strict=True):
        items = checkable_items(config, staged)
        if items is None:
            continue
        call = staged.call
        try:
            check_tokens(items, call.token_ids_delta[: link.carry_len], call.prev_len)
            check_media(items, bundles.get(call.model_call_id))
        except ValueError as error:
            raise mismatch(call.model_call_id, str(error)) from None
        token_ids |= {item.token_id: call.model_call_id for item in items}
    for staged, link in zip(chain, row.link_spans, strict=True):
        for token in staged.call.token_ids_delta[link.carry_len :]:
            if token in token_ids:
                raise mismatch(staged.call.model_call_id, f"generated token {token} of the media of {token_ids[token]}")


def mismatch(call_id: str, detail: str) -> Rejected:
    """The rejection of a chain for one of its calls."""
    return Rejected(Code.MEDIA_PLACEHOLDER_MISMATCH, detail, subject=call_id)


def checkable_items(config: ReassemblerConfig, staged: StagedRow) -> tuple[MediaItem, ...] | None:
    """The media items of a call, or None where its extras cannot be checked against their commitment.

    Extras without ``media_spans`` have no items. Raises ``Rejected(MEDIA_PLACEHOLDER_MISMATCH)`` for extras that were
    committed to and hold no well-formed items.
    """
    try:
        fragment = fragment_of(staged) if config.direct_routes and staged.routed_len else None
        extras = committed_extras(fragment, staged.extras_metadata_json, staged.call.extras_digest)
    except ValueError:
        return None
    try:
        return parse_items(extras.get(MEDIA_SPANS, []))
    except ValueError as error:
        raise mismatch(staged.call.model_call_id, str(error)) from None


# ── one group ───────────────────────────────────────────────────────────────────────────────────────────────────────


def fit_into_group(outcome: RolloutOutcome, earlier: Sequence[RolloutOutcome], dims: Dims | None) -> RolloutOutcome:
    """``outcome``, or its rejection where its media differ in kind from the group's first media row (decision D19).

    A trainer concatenates the rows' media, which takes one pixel dtype, one feature width and one modality. ``dims``
    is (L, K) before this rollout: rejected, it teaches nothing.
    """
    first = next((other for other in earlier if other.rollout.media), None)
    if first is None or not outcome.rollout.media:
        return outcome
    wanted, found = media_kind(first), media_kind(outcome)
    if found == wanted:
        return outcome
    return outcome.rejected(Rejected(Code.MEDIA_GROUP_INCOMPATIBLE, f"{found} after {wanted}"), dims)


def media_kind(outcome: RolloutOutcome) -> tuple[str, int, bool]:
    """What must agree within a group: pixel dtype, feature width, and whether the items are videos."""
    assert outcome.rollout.media is not None
    pixels = outcome.rollout.media[PIXEL_VALUES]
    return pixels.dtype, pixels.shape[1], outcome.media_has_frames


def group_fields(rollouts: Sequence[FinalizedRollout]) -> dict[str, tuple[Tensor | None, ...]]:
    """Per media field one logical row per rollout, in order; None for text rollouts and placeholders.

    No field at all where no rollout has media.
    """
    if not any(rollout.media for rollout in rollouts):
        return {}
    return {
        name: tuple(rollout.media[name] if rollout.media else None for rollout in rollouts) for name in MEDIA_FIELDS
    }


def row_columns(fields: Mapping[str, Sequence[Tensor | None]], index: int) -> dict[str, Tensor]:
    """The published media columns of one row: flat, so that rows differ in length alone; empty without media."""
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
    """The tags that give a row's flat media columns their shapes back.

    ``shapes`` lists the shape of every tensor in the row, one or none; ``pad`` says that nothing is to be padded.
    """
    return {
        f"{name}{ROW_SHAPES_SUFFIX}": {"shapes": [] if row is None else [list(row.shape)], "pad": False}
        for name, row in ((name, rows[index]) for name, rows in fields.items())
    }
