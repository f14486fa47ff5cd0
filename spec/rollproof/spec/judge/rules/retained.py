"""Invariants of retained media (section 7): the digest, the cut, the restore, and completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rollproof.spec.constants import MEDIA_DIGEST_FIELDS, MEDIA_SPANS
from rollproof.spec.judge.invariant import Case, Invariant, Rule, describe, difference, invariant, same_value
from rollproof.spec.judge.requests import (
    Accepted,
    Answer,
    Area,
    CheckCompletion,
    Crashed,
    CutGeneration,
    MediaDigest,
    Refused,
    Request,
    Restore,
    Restored,
    SameMedia,
    StagedMedia,
)
from rollproof.spec.rejections import Code

HASHED: Final = (MediaDigest, SameMedia)


def retained_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of retained media."""
    return invariant(id, Area.RETAINED, "7", sentence, requests)


@retained_rule("RETAINED-1", "Tensors that differ in a name, dtype, shape or byte have different digests.", SameMedia)
def digests_differ(case: Case[SameMedia]) -> str | None:
    """Otherwise a restore continues with pixels that the cut did not see. None and no tensors differ too."""
    if case.contract == Accepted(False) and case.answer == Accepted(True):
        return "one digest for different tensors"
    return None


@retained_rule(
    "RETAINED-2",
    "Equal tensors have equal digests, in any memory layout, NaN pixels included.",
    SameMedia,
)
def digests_agree(case: Case[SameMedia]) -> str | None:
    """Otherwise a restore refuses what the cut saw: layout, contiguity and lazy views are not part of a value."""
    if case.contract == Accepted(True) and case.answer == Accepted(False):
        return "different digests for equal tensors"
    return None


@retained_rule(
    "RETAINED-3",
    "A value without a dtype, shape and bytes of its own is refused, and so is a name that is not a string.",
    *HASHED,
)
def valueless_refused(case: Case[Request]) -> str | None:
    """Quantized bytes mean nothing without their scale; a name 1 reads like the name "1"."""
    if isinstance(case.contract, Refused) and not isinstance(case.answer, Refused):
        return f"it {describe(case.answer)}, expected {case.contract.reason}"
    return None


@retained_rule(
    "RETAINED-4",
    "Every tensor of a named dtype has a digest: 0-dimensional, empty, conjugated or negated.",
    *HASHED,
)
def everything_hashed(case: Case[Request]) -> str | None:
    """A hash that raises ends the generation that it was to save."""
    if isinstance(case.contract, Accepted) and not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}, expected a digest"
    return None


@retained_rule(
    "RETAINED-5", "The digest is its scheme's hash of exactly the bytes that the contract lists.", MediaDigest
)
def digest_value(case: Case[MediaDigest]) -> str | None:
    """A cut may be restored by another implementation."""
    return same_value(case) if isinstance(case.answer, Accepted) else None


@retained_rule("RETAINED-6", "Prefix rows carry no pixels; the call's final row carries them once.", CutGeneration)
def pixels_once(case: Case[CutGeneration]) -> str | None:
    """Checked on the flags and the size of the columns."""
    rows = case.answer.value if isinstance(case.answer, Accepted) else ()
    for index, row in enumerate(rows):
        present = row.columns["media_present"].values() == (True,)
        final = index == len(rows) - 1
        if present != (final and case.request.bundle is not None):
            return f"row {index} of {len(rows)} {'carries' if present else 'lacks'} media"
        if not present and row.columns["media_imgs"].count > 1:
            return f"row {index} of {len(rows)} carries pixels without saying so"
    return None


@retained_rule(
    "RETAINED-7",
    "A prefix row's extras hold spans and digest exactly where the call is one with media.",
    CutGeneration,
)
def prefix_extras(case: Case[CutGeneration]) -> str | None:
    """A restore needs both, and a row without them states that there was nothing."""
    rows: tuple[StagedMedia, ...] = case.answer.value if isinstance(case.answer, Accepted) else ()
    names = {MEDIA_SPANS, MEDIA_DIGEST_FIELDS[case.request.scheme]}
    for row in rows[:-1]:
        held = {MEDIA_SPANS, *MEDIA_DIGEST_FIELDS.values()} & set(row.extras or ())
        if held != (set() if case.request.bundle is None else names):
            return f"a prefix row holds {sorted(held)}"
    return same_value(case) if isinstance(case.answer, Accepted) else None


@retained_rule(
    "RETAINED-8",
    "A cut with media that cannot be retained is refused; every other one is staged.",
    CutGeneration,
)
def cut_verdict(case: Case[CutGeneration]) -> str | None:
    """A refusal keeps a prefix from being continued unverified."""
    if isinstance(case.contract, Refused):
        return (
            None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected {case.contract.reason}"
        )
    return None if isinstance(case.answer, Accepted) else f"it {describe(case.answer)}, expected it to be staged"


@retained_rule("RETAINED-9", "A restore accepts exactly what the cut saw.", Restore)
def restores_what_was_seen(case: Case[Restore]) -> str | None:
    """Same spans, same tensors; or no media, then and now."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Accepted):
        return f"restored, expected {case.contract.reason}"
    if isinstance(case.contract, Accepted) and not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}, expected it to be restored"
    if isinstance(case.contract, Accepted) and isinstance(case.answer, Accepted):
        return difference(case.contract.value.with_media, case.answer.value.with_media, "with_media")
    return None


@retained_rule("RETAINED-10", "A refused restore names the first failure: not retainable, or changed.", Restore)
def restore_codes(case: Case[Restore]) -> str | None:
    """One is a broken row, the other a request that was processed otherwise; they are handled differently."""
    if isinstance(case.answer, Crashed):
        return f"it {describe(case.answer)}"
    if (
        isinstance(case.contract, Refused)
        and isinstance(case.answer, Refused)
        and case.answer.code != case.contract.code
    ):
        return f"{case.answer.reason}, expected {case.contract.reason}"
    return None


@retained_rule("RETAINED-11", "A restore returns the fresh tensors themselves.", Restore)
def fresh_tensors(case: Case[Restore]) -> str | None:
    """They are the ones that the cut saw, so nothing needs to be read back."""
    value = case.answer.value if isinstance(case.answer, Accepted) else None
    if isinstance(value, Restored) and not value.fresh:
        return "other tensors came back than were handed in"
    return None


def violations(answer: Answer, *codes: Code) -> list[tuple[str, str]] | None:
    """Return the violations with one of some codes; None where there is no list of them."""
    if not isinstance(answer, Accepted):
        return None
    names = {code.code for code in codes}
    return [(code, subject) for code, subject in answer.value if code in names]


def same_violations(case: Case[CheckCompletion], *codes: Code) -> str | None:
    """Return how the violations with some codes differ, in order, or None."""
    wanted, found = violations(case.contract, *codes), violations(case.answer, *codes)
    if found is None:
        return f"it {describe(case.answer)}"
    return None if wanted == found else f"reported {found}, expected {wanted}"


@retained_rule("RETAINED-12", "Every cut completes exactly once, and nothing else completes.", CheckCompletion)
def completed_once(case: Case[CheckCompletion]) -> str | None:
    """For rejected rollouts and dead branches nothing else is required."""
    return same_violations(case, Code.COMPLETION_COUNT)


@retained_rule(
    "RETAINED-13",
    "Prefix and tail add up to what the trained row generated in the new call's own span.",
    CheckCompletion,
)
def counted_in_the_row(case: Case[CheckCompletion]) -> str | None:
    """The log's own total proves nothing: it was written as prefix plus tail."""
    return same_violations(case, Code.EMPTY_TAIL, Code.TOKEN_COUNT)


@retained_rule("RETAINED-14", "In the trained row, that generation begins with the cut's own tokens.", CheckCompletion)
def prefix_in_the_row(case: Case[CheckCompletion]) -> str | None:
    """A count alone misses one token dropped and one repeated."""
    return same_violations(case, Code.PREFIX_TOKENS)


@retained_rule("RETAINED-15", "No prefix row outlives its call, unless it is a successor's.", CheckCompletion)
def prefixes_retired(case: Case[CheckCompletion]) -> str | None:
    """It would be restored again."""
    return same_violations(case, Code.RETIRED_KEY_LIVE)


@retained_rule("RETAINED-16", "All violations are reported, cut by cut.", CheckCompletion)
def completion_agrees(case: Case[CheckCompletion]) -> str | None:
    """An operator needs the whole list."""
    return same_value(case)
