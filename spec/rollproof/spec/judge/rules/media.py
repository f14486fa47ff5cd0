"""Invariants of media (section 7): bundles, chains, rollouts and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import evolve

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
from rollproof.spec.judge.invariant import Case, Invariant, Rule, describe, difference, invariant, same_value
from rollproof.spec.judge.oracle import answer
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    Area,
    ChainMedia,
    FinalizeGroups,
    FinalizeRollout,
    Refused,
    Request,
    StageMedia,
)
from rollproof.spec.judge.rules.group import StepCase, StepRule, each_step, groups_complaint
from rollproof.spec.judge.rules.rollout import finalized, outcome, rollout_complaint, same_reason
from rollproof.spec.plane import Get, PublishedRow
from rollproof.spec.rejections import Code, Stage
from rollproof.spec.tensor import Tensor

MEDIA_CODES: Final = frozenset(code.code for code in Code if code.stage is Stage.MEDIA)


def media_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of media."""
    return invariant(id, Area.MEDIA, "7", sentence, requests)


def rejection(answer: Answer) -> str | None:
    """Return the code that rejected a rollout, or None."""
    found = finalized(answer)
    return None if found is None or found.rejection_reason is None else found.rejection_reason.partition(":")[0]


def media_reads(answer: Answer) -> list[Get]:
    """Return the reads of media tensors."""
    result = outcome(answer)
    reads = [] if result is None else [effect for effect in result.effects if isinstance(effect, Get)]
    return [read for read in reads if set(read.columns) & set(MEDIA_TENSOR_COLUMNS)]


@media_rule("MEDIA-1", "A bundle is accepted iff its tensors and their exact sums are right.", ChainMedia, StageMedia)
def bundles_are_judged(case: Case[Request]) -> str | None:
    """Decision D18: sums that wrap in 64 bits let sixteen huge images pass as one patch."""
    if isinstance(case.contract, Accepted):
        return None if isinstance(case.answer, Accepted) else f"it {describe(case.answer)}, expected it to be accepted"
    if isinstance(case.answer, Refused):
        return None
    wanted = case.contract.reason if isinstance(case.contract, Refused) else case.contract
    return f"it {describe(case.answer)}, expected {wanted}"


@media_rule("MEDIA-2", "Joining a chain keeps every patch, size and frame count, in order.", ChainMedia)
def joined_in_order(case: Case[ChainMedia]) -> str | None:
    """Checked on the parts, without the spec's own joining. Pixels keep dtype and bits."""
    if not isinstance(case.answer, Accepted):
        return None
    found: Mapping[str, Tensor] = case.answer.value
    pixels = [part[BUNDLE_PIXELS] for part in case.request.parts]
    if found[PIXEL_VALUES].data != b"".join(part.data for part in pixels):
        return "other pixels, or in another order"
    if found[PIXEL_VALUES].dtype != pixels[0].dtype:
        return f"pixels became {found[PIXEL_VALUES].dtype}"
    sizes = tuple(value for part in case.request.parts for value in part[BUNDLE_SIZES].values())
    stills = tuple(1 for part in case.request.parts for _ in range(part[BUNDLE_SIZES].shape[0]))
    frames = (
        tuple(value for part in case.request.parts for value in part[BUNDLE_FRAMES].values())
        if all(BUNDLE_FRAMES in part for part in case.request.parts)
        else stills
    )
    return difference(sizes, found[BUNDLE_SIZES].values(), BUNDLE_SIZES) or difference(
        frames, found[BUNDLE_FRAMES].values(), BUNDLE_FRAMES
    )


@media_rule("MEDIA-3", "A chain that mixes pixel dtypes, widths or modalities is refused as such.", ChainMedia)
def mixed_chains(case: Case[ChainMedia]) -> str | None:
    """Concatenating them would promote silently, or fail in the trainer."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Refused):
        return (
            None if case.answer.code == case.contract.code else f"{case.answer.reason}, expected {case.contract.reason}"
        )
    return None


@media_rule(
    "MEDIA-4",
    "A staged row has the columns of section 9, each in one dtype, with or without media.",
    StageMedia,
)
def staged_columns(case: Case[StageMedia]) -> str | None:
    """Storage keeps one dtype per column over all live rows, and no empty rows."""
    return same_value(case) if isinstance(case.answer, Accepted) else None


@media_rule(
    "MEDIA-5",
    "Media are read with the base columns, in one more read of the chain's calls with media, or not at all.",
    FinalizeRollout,
)
def one_read(case: Case[FinalizeRollout]) -> str | None:
    """A read of its own moves no pixels of a rollout that is rejected earlier, nor of a text rollout."""
    wanted, reads = media_reads(case.contract), media_reads(case.answer)
    if reads and not case.request.config.capture_media:
        return "read media of a text-only partition"
    found = [read for read in reads if "token_ids_delta" not in read.columns]
    if len(found) > 1:
        return f"{len(found)} reads of media"
    answered = outcome(case.contract)
    if answered is None or answered.failure is not None:
        return None
    if found and not wanted:
        return f"read media of a rollout that is {rejection(case.contract) or 'text only'}"
    if found and found[0].keys != wanted[0].keys:
        return f"read the media of {found[0].keys}, expected {wanted[0].keys}"
    return None


@media_rule(
    "MEDIA-6",
    "A rollout without media and without spans is not rejected for media, whatever its tokens are.",
    FinalizeRollout,
)
def text_stays_valid(case: Case[FinalizeRollout]) -> str | None:
    """A prompt may mention placeholders."""
    spans = MEDIA_SPANS.encode()
    for row in case.request.staging.rows.values():
        flag, metadata = row.get("media_present"), row.get("extras_metadata_json")
        if flag is None or metadata is None or True in flag.values() or spans in metadata.data:
            return None
    code = rejection(case.answer)
    forged = rejection(case.contract) == Code.MEDIA_COMMITMENT.code
    return f"rejected a text rollout as {code}" if code in MEDIA_CODES and not forged else None


@media_rule(
    "MEDIA-7",
    "Spans, tokens, pixels and flags of a row agree, or the rollout is rejected with the first failing check.",
    FinalizeRollout,
)
def media_verdicts(case: Case[FinalizeRollout]) -> str | None:
    """Pixels under the wrong tokens train the model on another picture than it saw."""
    wanted, found = finalized(case.contract), finalized(case.answer)
    if wanted is None or found is None or same_reason(wanted.rejection_reason, found.rejection_reason):
        return None
    return f"{found.rejection_reason or 'accepted'}, expected {wanted.rejection_reason or 'it to be accepted'}"


def media_steps(rule: StepRule) -> Rule:
    """Return a rule that holds where ``rule`` holds for every step after which both have published."""

    def of_published(case: StepCase) -> str | None:
        return None if case.contract.rows is None or case.answer.rows is None else rule(case)

    of_published.__doc__ = rule.__doc__
    return each_step(of_published)


def described(row: PublishedRow) -> Iterator[tuple[str, int, list[list[int]]]]:
    """Yield, per media field of a row, its name, its elements, and the shapes that its tag says."""
    for name in MEDIA_FIELDS:
        tag = row.tags.get(f"{name}{ROW_SHAPES_SUFFIX}", {})
        yield name, row.columns[name].count if name in row.columns else -1, tag.get("shapes", [])


@media_rule(
    "MEDIA-8",
    "Either every row of a group has the media fields or none has; a row without media is empty in each.",
    FinalizeGroups,
)
@media_steps
def row_aligned(case: StepCase) -> str | None:
    """A field that skips a row gives every later row the pixels of another one."""
    illustrated = [bool(rollout.media) for rollout in case.contract.rollouts]
    for index, row in enumerate(case.answer.rows or ()):
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
    "A row's media are its own rollout's, flattened, with a tag that restores their shapes.",
    FinalizeGroups,
)
@media_steps
def own_media(case: StepCase) -> str | None:
    """Bit for bit; image rows that are shuffled by another permutation than token rows train on other pictures."""
    for index, (rollout, row) in enumerate(zip(case.contract.rollouts, case.answer.rows or (), strict=False)):
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
def one_kind(case: StepCase) -> str | None:
    """Decision D19: the trainer would fail, with the whole batch."""
    name = f"finalize/capture_failure_reason_{Code.MEDIA_GROUP_INCOMPATIBLE.code}_count"
    if case.contract.group is None or case.answer.group is None:
        return None
    counts = case.contract.group.metrics.get(name, 0.0), case.answer.group.metrics.get(name, 0.0)
    return None if counts[0] == counts[1] else f"{counts[1]:.0f} rows rejected, expected {counts[0]:.0f}"


@media_rule(
    "MEDIA-12",
    "Deferred mode accepts what direct mode accepts, but for what only the bytes of routes show.",
    FinalizeRollout,
)
def modes_agree(case: Case[FinalizeRollout]) -> str | None:
    """Decision D35: an image-blind row is no better where routes are assembled later."""
    config = case.request.config
    if not (config.capture_media and config.defer_routed_experts_to_policy):
        return None
    wanted = finalized(answer(evolve(case.request, config=evolve(config, defer_routed_experts_to_policy=False))))
    found = finalized(case.answer)
    if wanted is None or found is None or (wanted.rejection_reason or "").startswith(Code.ROUTE_ASSEMBLY.code):
        return None
    if same_reason(wanted.rejection_reason, found.rejection_reason):
        return None
    return f"{found.rejection_reason or 'accepted'}, in direct mode {wanted.rejection_reason or 'accepted'}"


@media_rule(
    "MEDIA-11",
    "Accepted values, finalized rollouts, and the effects and results of groups equal the contract's in every field.",
    FinalizeRollout,
    FinalizeGroups,
    ChainMedia,
)
def media_agree(case: Case[Request]) -> str | None:
    """Everything that no narrower invariant covers."""
    if not isinstance(case.contract, Accepted):
        return None
    if not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}"
    if isinstance(case.request, ChainMedia):
        return difference(case.contract.value, dict(case.answer.value))
    if isinstance(case.request, FinalizeRollout):
        return rollout_complaint(case)
    return groups_complaint(case)
