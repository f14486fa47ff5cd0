"""Invariants of media (section 7): bundles, chains, rollouts and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rollproof.spec.constants import (
    BUNDLE_FRAMES,
    BUNDLE_PIXELS,
    BUNDLE_SIZES,
    MEDIA_FIELDS,
    MEDIA_SPANS,
    MEDIA_TENSOR_COLUMNS,
    PIXEL_VALUES,
    ROW_SHAPES_SUFFIX,
)
from rollproof.spec.invariant import Check, Invariant, describe, difference, invariant, same_value
from rollproof.spec.outcomes import GroupOutcome
from rollproof.spec.plane import Get, PublishedRow
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.requests import (
    Accepted,
    Answer,
    Area,
    ChainMedia,
    FinalizeGroups,
    FinalizeRollout,
    GroupStep,
    Refused,
    Request,
    StageMedia,
)
from rollproof.spec.rules.group import each_step
from rollproof.spec.rules.rollout import finalized, outcome, same_reason
from rollproof.spec.tensor import Tensor

MEDIA_CODES: Final = frozenset(code.code for code in Code if code.stage is Stage.MEDIA)


def media_rule(id: str, sentence: str, *requests: type) -> Callable[[Check], Invariant]:
    """Declare a check as an invariant of media."""
    return invariant(id, Area.MEDIA, "7", sentence, requests)


def rejection(answer: Answer) -> str | None:
    """The code that rejected a rollout, or None."""
    found = finalized(answer)
    return None if found is None or found.rejection_reason is None else found.rejection_reason.partition(":")[0]


def media_reads(answer: Answer) -> list[Get]:
    """The reads of media tensors."""
    result = outcome(answer)
    reads = [] if result is None else [effect for effect in result.effects if isinstance(effect, Get)]
    return [read for read in reads if set(read.columns) & set(MEDIA_TENSOR_COLUMNS)]


@media_rule("MEDIA-1", "A bundle is accepted iff its tensors and their exact sums are right.", ChainMedia, StageMedia)
def bundles_are_judged(_: Request, expected: Answer, actual: Answer) -> str | None:
    """Decision D18: sums that wrap in 64 bits let sixteen huge images pass as one patch."""
    if isinstance(expected, Accepted):
        return None if isinstance(actual, Accepted) else f"it {describe(actual)}, expected it to be accepted"
    if isinstance(actual, Refused):
        return None
    return f"it {describe(actual)}, expected {expected.reason if isinstance(expected, Refused) else expected}"


@media_rule("MEDIA-2", "Joining a chain keeps every patch, size and frame count, in order.", ChainMedia)
def joined_in_order(request: ChainMedia, _: Answer, actual: Answer) -> str | None:
    """Read off the parts, without the spec's own joining. Pixels keep dtype and bits."""
    if not isinstance(actual, Accepted):
        return None
    found: Mapping[str, Tensor] = actual.value
    pixels = [part[BUNDLE_PIXELS] for part in request.parts]
    if found[PIXEL_VALUES].data != b"".join(part.data for part in pixels):
        return "other pixels, or in another order"
    if found[PIXEL_VALUES].dtype != pixels[0].dtype:
        return f"pixels became {found[PIXEL_VALUES].dtype}"
    sizes = tuple(value for part in request.parts for value in part[BUNDLE_SIZES].values())
    stills = tuple(1 for part in request.parts for _ in range(part[BUNDLE_SIZES].shape[0]))
    frames = (
        tuple(value for part in request.parts for value in part[BUNDLE_FRAMES].values())
        if all(BUNDLE_FRAMES in part for part in request.parts)
        else stills
    )
    return difference(sizes, found[BUNDLE_SIZES].values(), BUNDLE_SIZES) or difference(
        frames, found[BUNDLE_FRAMES].values(), BUNDLE_FRAMES
    )


@media_rule("MEDIA-3", "A chain that mixes pixel dtypes, widths or modalities is refused as such.", ChainMedia)
def mixed_chains(_: ChainMedia, expected: Answer, actual: Answer) -> str | None:
    """Concatenating them would promote silently, or fail in the trainer."""
    if isinstance(expected, Refused) and isinstance(actual, Refused):
        return None if actual.code == expected.code else f"{actual.reason}, expected {expected.reason}"
    return None


@media_rule(
    "MEDIA-4",
    "A staged row has the columns of section 9, each in one dtype, with or without media.",
    StageMedia,
)
def staged_columns(_: StageMedia, expected: Answer, actual: Answer) -> str | None:
    """Storage keeps one dtype per column over all live rows, and no empty rows."""
    return same_value(expected, actual) if isinstance(actual, Accepted) else None


@media_rule(
    "MEDIA-5",
    "Media are read once per rollout, for the chain's calls that carry some, or not at all.",
    FinalizeRollout,
)
def one_read(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """A rollout that is rejected earlier, a text rollout and a text-only partition move no pixels."""
    wanted, found = media_reads(expected), media_reads(actual)
    if len(found) > 1:
        return f"{len(found)} reads of media"
    answered = outcome(expected)
    if answered is None or answered.failure is not None:
        return None
    if found and not wanted:
        return f"read media of a rollout that is {rejection(expected) or 'text only'}"
    if found and found[0].keys != wanted[0].keys:
        return f"read the media of {found[0].keys}, expected {wanted[0].keys}"
    return None


@media_rule(
    "MEDIA-6",
    "A rollout without media and without spans is not rejected for media, whatever its tokens spell.",
    FinalizeRollout,
)
def text_stays_valid(request: FinalizeRollout, _: Answer, actual: Answer) -> str | None:
    """A prompt may talk about placeholders."""
    spans = MEDIA_SPANS.encode()
    for row in request.staging.rows.values():
        flag, metadata = row.get("media_present"), row.get("extras_metadata_json")
        if flag is None or metadata is None or True in flag.values() or spans in metadata.data:
            return None
    code = rejection(actual)
    return f"rejected a text rollout as {code}" if code in MEDIA_CODES else None


@media_rule(
    "MEDIA-7",
    "Spans, tokens, pixels and flags of a row agree, or the rollout is rejected with the first failing check.",
    FinalizeRollout,
)
def media_verdicts(_: FinalizeRollout, expected: Answer, actual: Answer) -> str | None:
    """Pixels under the wrong tokens train the model on another picture than it saw."""
    wanted, found = finalized(expected), finalized(actual)
    if wanted is None or found is None or same_reason(wanted.rejection_reason, found.rejection_reason):
        return None
    return f"{found.rejection_reason or 'accepted'}, expected {wanted.rejection_reason or 'it to be accepted'}"


def media_steps(check: Callable[[GroupOutcome, GroupOutcome], str | None]) -> Check:
    """A check of every published group, from the contract's outcome and the implementation's."""

    def of_step(_: FinalizeGroups, __: GroupStep, wanted: GroupOutcome, found: GroupOutcome) -> str | None:
        return None if wanted.rows is None or found.rows is None else check(wanted, found)

    of_step.__doc__ = check.__doc__
    return each_step(of_step)


def described(row: PublishedRow) -> Iterator[tuple[str, int, list[list[int]]]]:
    """Per media field of a row: its name, its elements, and the shapes that its tag says."""
    for name in MEDIA_FIELDS:
        tag = row.tags.get(f"{name}{ROW_SHAPES_SUFFIX}", {})
        yield name, row.columns[name].count if name in row.columns else -1, tag.get("shapes", [])


@media_rule(
    "MEDIA-8",
    "Every row of a group has the media fields or none has, and a row without media is empty in each.",
    FinalizeGroups,
)
@media_steps
def row_aligned(wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """A field that skips a row gives every later row the pixels of another one."""
    illustrated = [bool(rollout.media) for rollout in wanted.rollouts]
    for index, row in enumerate(found.rows or ()):
        for name, elements, shapes in described(row):
            if not any(illustrated):
                if elements >= 0 or shapes:
                    return f"row {index} has {name} in a group without media"
                continue
            if elements < 0:
                return f"row {index} has no {name}"
            if (elements > 0 or bool(shapes)) != illustrated[index]:
                return f"row {index}: {elements} elements of {name}, shapes {shapes}"
    return None


@media_rule(
    "MEDIA-9",
    "A row's media are its own rollout's, flat, with a tag that gives them their shapes back.",
    FinalizeGroups,
)
@media_steps
def own_media(wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Bit for bit; image rows that are shuffled by another permutation than token rows train on other pictures."""
    for index, (rollout, row) in enumerate(zip(wanted.rollouts, found.rows or (), strict=False)):
        for name, kept in (rollout.media or {}).items():
            column, tag = row.columns.get(name), row.tags.get(f"{name}{ROW_SHAPES_SUFFIX}")
            flat = Tensor(kept.dtype, (kept.count,), kept.data)
            complaint = difference(flat, column, f"row {index} {name}") or difference(
                {"shapes": [list(kept.shape)], "pad": False}, tag, f"row {index} tag of {name}"
            )
            if complaint:
                return complaint
    return None


@media_rule(
    "MEDIA-10",
    "A row whose media cannot be concatenated with the group's first media row becomes a placeholder.",
    FinalizeGroups,
)
@media_steps
def one_kind(wanted: GroupOutcome, found: GroupOutcome) -> str | None:
    """Decision D19: the trainer would fail, with the whole batch."""
    name = f"finalize/capture_failure_reason_{Code.MEDIA_GROUP_INCOMPATIBLE.code}_count"
    if wanted.group is None or found.group is None:
        return None
    counts = wanted.group.metrics.get(name, 0.0), found.group.metrics.get(name, 0.0)
    return None if counts[0] == counts[1] else f"{counts[1]:.0f} rows rejected, expected {counts[0]:.0f}"


@media_rule(
    "MEDIA-11",
    "What is accepted, published and reported is the contract's, in every field.",
    FinalizeRollout,
    FinalizeGroups,
    ChainMedia,
)
def media_agree(request: Request, expected: Answer, actual: Answer) -> str | None:
    """What no narrower invariant said."""
    if not isinstance(expected, Accepted):
        return None
    if not isinstance(actual, Accepted):
        return f"it {describe(actual)}"
    if isinstance(request, ChainMedia):
        return difference(expected.value, dict(actual.value))
    if isinstance(request, FinalizeRollout):
        wanted, found = finalized(expected), finalized(actual)
        return difference(wanted, found) if wanted is not None and wanted.valid else None
    for left, right in zip(expected.value, actual.value, strict=True):
        complaint = difference(left.group, right.group, "group") or difference(left.rows, right.rows, "rows")
        if complaint:
            return complaint
    return None


INVARIANTS: Final[tuple[Invariant, ...]] = (
    bundles_are_judged,
    joined_in_order,
    mixed_chains,
    staged_columns,
    one_read,
    text_stays_valid,
    media_verdicts,
    row_aligned,
    own_media,
    one_kind,
    media_agree,
)
