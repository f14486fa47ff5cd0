"""Invariants of retained media (section 7): the digest, the cut, the restore, and completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rollproof.spec.constants import MEDIA_DIGEST_FIELDS, MEDIA_SPANS
from rollproof.spec.invariant import Check, Invariant, describe, difference, invariant, same_value
from rollproof.spec.rejections import Code
from rollproof.spec.requests import (
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

HASHED: Final = (MediaDigest, SameMedia)


def retained_rule(id: str, sentence: str, *requests: type) -> Callable[[Check], Invariant]:
    """Declare a check as an invariant of retained media."""
    return invariant(id, Area.RETAINED, "7", sentence, requests)


@retained_rule("RETAINED-1", "Tensors that differ in a name, dtype, shape or byte have different digests.", SameMedia)
def digests_differ(_: SameMedia, expected: Answer, actual: Answer) -> str | None:
    """Otherwise a restore goes on with pixels that the cut did not see. None and no tensors differ too."""
    if expected == Accepted(False) and actual == Accepted(True):
        return "one digest for different tensors"
    return None


@retained_rule(
    "RETAINED-2",
    "Equal tensors have equal digests, however they lie in memory, NaN pixels included.",
    SameMedia,
)
def digests_agree(_: SameMedia, expected: Answer, actual: Answer) -> str | None:
    """Otherwise a restore refuses what the cut saw: layout, contiguity and lazy views are no values."""
    if expected == Accepted(True) and actual == Accepted(False):
        return "different digests for equal tensors"
    return None


@retained_rule(
    "RETAINED-3",
    "What has no dtype, shape and bytes of its own is refused, and so is a name that is no text.",
    *HASHED,
)
def valueless_refused(_: Request, expected: Answer, actual: Answer) -> str | None:
    """Quantized bytes mean nothing without their scale; a name 1 reads like the name "1"."""
    if isinstance(expected, Refused) and not isinstance(actual, Refused):
        return f"it {describe(actual)}, expected {expected.reason}"
    return None


@retained_rule(
    "RETAINED-4",
    "Every tensor of a named dtype has a digest: 0-dimensional, empty, conjugated or negated.",
    *HASHED,
)
def everything_hashed(_: Request, expected: Answer, actual: Answer) -> str | None:
    """A hash that raises ends the generation that it was to save."""
    if isinstance(expected, Accepted) and not isinstance(actual, Accepted):
        return f"it {describe(actual)}, expected a digest"
    return None


@retained_rule(
    "RETAINED-5", "The digest is its scheme's hash of exactly the bytes that the contract lists.", MediaDigest
)
def digest_value(_: MediaDigest, expected: Answer, actual: Answer) -> str | None:
    """A cut may be restored by another implementation."""
    return same_value(expected, actual) if isinstance(actual, Accepted) else None


@retained_rule("RETAINED-6", "Prefix rows carry no pixels; the call's final row carries them once.", CutGeneration)
def pixels_once(request: CutGeneration, _: Answer, actual: Answer) -> str | None:
    """Read off the flags and the size of the columns."""
    rows = actual.value if isinstance(actual, Accepted) else ()
    for index, row in enumerate(rows):
        present = row.columns["media_present"].values() == (True,)
        final = index == len(rows) - 1
        if present != (final and request.bundle is not None):
            return f"row {index} of {len(rows)} {'carries' if present else 'lacks'} media"
        if not present and row.columns["media_imgs"].count > 1:
            return f"row {index} of {len(rows)} carries pixels without saying so"
    return None


@retained_rule(
    "RETAINED-7",
    "A prefix row's extras hold spans and digest exactly where the call is one with media.",
    CutGeneration,
)
def prefix_extras(request: CutGeneration, expected: Answer, actual: Answer) -> str | None:
    """A restore needs both, and a row without them says that there was nothing."""
    rows: tuple[StagedMedia, ...] = actual.value if isinstance(actual, Accepted) else ()
    names = {MEDIA_SPANS, MEDIA_DIGEST_FIELDS[request.scheme]}
    for row in rows[:-1]:
        held = {MEDIA_SPANS, *MEDIA_DIGEST_FIELDS.values()} & set(row.extras or ())
        if held != (set() if request.bundle is None else names):
            return f"a prefix row holds {sorted(held)}"
    return same_value(expected, actual) if isinstance(actual, Accepted) else None


@retained_rule(
    "RETAINED-8",
    "A cut with media that cannot be retained is refused; every other one is staged.",
    CutGeneration,
)
def cut_verdict(_: CutGeneration, expected: Answer, actual: Answer) -> str | None:
    """Refusing is what keeps a prefix from being continued on trust."""
    if isinstance(expected, Refused):
        return None if isinstance(actual, Refused) else f"it {describe(actual)}, expected {expected.reason}"
    return None if isinstance(actual, Accepted) else f"it {describe(actual)}, expected it to be staged"


@retained_rule("RETAINED-9", "A restore accepts exactly what the cut saw.", Restore)
def restores_what_was_seen(_: Restore, expected: Answer, actual: Answer) -> str | None:
    """Same spans, same tensors; or no media, then and now."""
    if isinstance(expected, Refused) and isinstance(actual, Accepted):
        return f"restored, expected {expected.reason}"
    if isinstance(expected, Accepted) and not isinstance(actual, Accepted):
        return f"it {describe(actual)}, expected it to be restored"
    if isinstance(expected, Accepted) and isinstance(actual, Accepted):
        return difference(expected.value.with_media, actual.value.with_media, "with_media")
    return None


@retained_rule("RETAINED-10", "A refused restore names the first failure: not retainable, or changed.", Restore)
def restore_codes(_: Restore, expected: Answer, actual: Answer) -> str | None:
    """One is a broken row, the other a request that was processed otherwise; they are handled differently."""
    if isinstance(actual, Crashed):
        return f"it {describe(actual)}"
    if isinstance(expected, Refused) and isinstance(actual, Refused) and actual.code != expected.code:
        return f"{actual.reason}, expected {expected.reason}"
    return None


@retained_rule("RETAINED-11", "A restore returns the fresh tensors themselves.", Restore)
def fresh_tensors(_: Restore, __: Answer, actual: Answer) -> str | None:
    """They are the ones that the cut saw, so nothing needs to be read back."""
    value = actual.value if isinstance(actual, Accepted) else None
    if isinstance(value, Restored) and not value.fresh:
        return "other tensors came back than were handed in"
    return None


def violations(answer: Answer, *codes: Code) -> list[tuple[str, str]] | None:
    """The violations with one of some codes; None where there is no list of them."""
    if not isinstance(answer, Accepted):
        return None
    names = {code.code for code in codes}
    return [(code, subject) for code, subject in answer.value if code in names]


def same_violations(expected: Answer, actual: Answer, *codes: Code) -> str | None:
    """Whether both report the same violations with some codes, in order."""
    wanted, found = violations(expected, *codes), violations(actual, *codes)
    if found is None:
        return f"it {describe(actual)}"
    return None if wanted == found else f"reported {found}, expected {wanted}"


@retained_rule("RETAINED-12", "Every cut completes exactly once, and nothing else completes.", CheckCompletion)
def completed_once(_: CheckCompletion, expected: Answer, actual: Answer) -> str | None:
    """For rejected rollouts and dead branches that is all that is asked."""
    return same_violations(expected, actual, Code.COMPLETION_COUNT)


@retained_rule(
    "RETAINED-13",
    "Prefix and tail add up to what the trained row generated in the new call's own span.",
    CheckCompletion,
)
def counted_in_the_row(_: CheckCompletion, expected: Answer, actual: Answer) -> str | None:
    """The log's own total proves nothing: it was written as prefix plus tail."""
    return same_violations(expected, actual, Code.EMPTY_TAIL, Code.TOKEN_COUNT)


@retained_rule("RETAINED-14", "The trained row begins that generation with the cut's own tokens.", CheckCompletion)
def prefix_in_the_row(_: CheckCompletion, expected: Answer, actual: Answer) -> str | None:
    """A count alone misses one token dropped and one repeated."""
    return same_violations(expected, actual, Code.PREFIX_TOKENS)


@retained_rule("RETAINED-15", "No prefix row outlives its call, unless it is a successor's.", CheckCompletion)
def prefixes_retired(_: CheckCompletion, expected: Answer, actual: Answer) -> str | None:
    """It would be restored again."""
    return same_violations(expected, actual, Code.RETIRED_KEY_LIVE)


@retained_rule("RETAINED-16", "All violations are reported, cut by cut.", CheckCompletion)
def completion_agrees(_: CheckCompletion, expected: Answer, actual: Answer) -> str | None:
    """An operator needs the whole list."""
    return same_value(expected, actual)


INVARIANTS: Final[tuple[Invariant, ...]] = (
    digests_differ,
    digests_agree,
    valueless_refused,
    everything_hashed,
    digest_value,
    pixels_once,
    prefix_extras,
    cut_verdict,
    restores_what_was_seen,
    restore_codes,
    fresh_tensors,
    completed_once,
    counted_in_the_row,
    prefix_in_the_row,
    prefixes_retired,
    completion_agrees,
)
