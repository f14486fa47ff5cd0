"""Invariants of merging calls into rows (section 14). None compares with the spec's own rows: layouts are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rollproof.spec.judge.contexts import Contexts, rectangular, unshifted
from rollproof.spec.judge.invariant import Case, describe, difference, invariant
from rollproof.spec.judge.portable import MergeCalls, MergedTwice, MergeTwice
from rollproof.spec.judge.requests import Accepted, Area, Crashed, Request
from rollproof.spec.portable import DROPS, Call, Policy, Row
from rollproof.spec.tensor import to_float32


def rows_of(case: Case[MergeCalls]) -> list[tuple[int, Row]]:
    """Return the rows with their numbers, labels where their tokens are; without those of MERGE-5's columns."""
    if not isinstance(case.answer, Accepted):
        return []
    policies = case.answer.policies
    return [(number, unshifted(row, policies)) for number, row in enumerate(case.answer.value.rows) if rectangular(row)]


def trained(contexts: Contexts, row: Row) -> Iterator[tuple[int, int | None]]:
    """Yield the trained positions of a row with their prefixes; padding has none."""
    places = dict(contexts.walk(row))
    yield from ((position, places.get(position)) for position, one in enumerate(row.mask) if one)


def extends(call: Call, earlier: Call) -> bool:
    """Return whether a call's prompt begins with the context of an earlier one."""
    return call.prompt_ids[: len(earlier.context)] == earlier.context


# ── what may be dropped ─────────────────────────────────────────────────────────────────────────────────────────────


def untrue(index: int, reason: str, request: MergeCalls, policies: frozenset[str]) -> str | None:
    """Return why a call is not one that may be dropped for a reason, or None."""
    calls = request.calls
    if not 0 <= index < len(calls):
        return f"there is no call {index}"
    if reason not in policies or reason not in DROPS:
        return f"call {index} is dropped for {reason!r}, which is not declared"
    call, later = calls[index], calls[index + 1 :]
    if reason == Policy.DEAD_BRANCH and (not later or extends(calls[-1], call)):
        return f"call {index} is dropped as a dead branch, but the last call's context begins with it"
    if reason == Policy.DRIFT and not any(drifts(one, call) for one in later):
        return f"call {index} is dropped as drifted, but no later prompt departs from its context"
    if reason == Policy.OVER_LIMIT and not over_limit(index, request):
        return f"call {index} is dropped as over the limit, but neither it nor what continues it exceeds it"
    if reason == Policy.EXTEND_ONLY and all(extends(one, before) for before, one in pairwise(calls[: index + 1])):
        return f"call {index} is dropped for {reason!r}, but up to it each call extends the one before"
    return None


def drifts(later: Call, call: Call) -> bool:
    """Return whether a later prompt begins as a call's context does, and departs from it before its end."""
    prompt, context = later.prompt_ids, call.context
    shorter = min(len(prompt), len(context))
    common = next((at for at in range(shorter) if prompt[at] != context[at]), shorter)
    return 0 < common < len(context) and (common < len(prompt) or common > len(call.prompt_ids))


def over_limit(index: int, request: MergeCalls) -> bool:
    """Return whether a call's context, or one that continues it, is longer than the limit."""
    if request.max_len is None:
        return False
    call, later = request.calls[index], request.calls[index + 1 :]
    lines = [call, *(one for one in later if extends(one, call))]
    return any(len(one.context) > request.max_len for one in lines)


# ── the invariants ──────────────────────────────────────────────────────────────────────────────────────────────────


@invariant(
    "MERGE-1",
    Area.MERGE,
    "14",
    "A trained position is a generated token in the context that it was sampled in.",
    (MergeCalls,),
    of_values=True,
)
def context_of_tokens(case: Case[MergeCalls]) -> str | None:
    """The row's ids up to it are one call's prompt and generation up to it; elsewhere the log-prob means nothing."""
    contexts = Contexts.of(case.request.calls)
    for number, row in rows_of(case):
        for position, place in trained(contexts, row):
            if place is None or place not in contexts.samplings:
                what = "no call has this context" if place is None else "in this context it is no call's generation"
                return f"row {number} trains position {position} (token {row.ids[position]}): {what}"
    return None


@invariant(
    "MERGE-2",
    Area.MERGE,
    "14",
    "Over all rows of a rollout a token is trained at most as often as it was generated.",
    (MergeCalls,),
    of_values=True,
)
def trained_once(case: Case[MergeCalls]) -> str | None:
    """A token that two branches share would count twice in the loss. Equal samplings are interchangeable."""
    contexts = Contexts.of(case.request.calls)
    for place, where in places_of(contexts, rows_of(case)).items():
        sampled = len(contexts.samplings.get(place, ()))
        if 0 < sampled < len(where):
            rows = ", ".join(f"row {number} position {position}" for number, position in where)
            return f"a token that was generated {sampled} times is trained {len(where)} times: {rows}"
    return None


def places_of(contexts: Contexts, rows: Sequence[tuple[int, Row]]) -> dict[int, list[tuple[int, int]]]:
    """Return by prefix where it is trained: row and position."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, row in rows:
        for position, place in trained(contexts, row):
            if place is not None:
                found.setdefault(place, []).append((number, position))
    return found


@invariant(
    "MERGE-3",
    Area.MERGE,
    "14",
    "A generated token is trained, unless its call is dropped for a declared reason that is true of it.",
    (MergeCalls,),
    of_values=True,
)
def all_kept(case: Case[MergeCalls]) -> str | None:
    """Not required of a token without a recorded log-prob, nor of one that nothing comes before (decision D41)."""
    if not isinstance(case.answer, Accepted):
        return None
    dropped = case.answer.value.dropped
    for index, reason in dropped:
        if (complaint := untrue(index, reason, case.request, case.answer.policies)) is not None:
            return complaint
    contexts = Contexts.of(case.request.calls)
    places = places_of(contexts, rows_of(case))
    excused = {index for index, _ in dropped}
    for place, samplings in contexts.samplings.items():
        needed = [one for one in samplings if one.log_prob is not None and one.call not in excused]
        missing = len(needed) - len(places.get(place, ()))
        if missing > 0 and contexts.depths[place] > 1:
            calls = " and ".join(str(one.call) for one in needed)
            return f"position {contexts.depths[place] - 1} of the context of call {calls} is not trained"
    return None


@invariant(
    "MERGE-4",
    Area.MERGE,
    "14",
    "A trained position has the log-prob recorded for it, as float32; any other has 0 or none.",
    (MergeCalls,),
    of_values=True,
)
def recorded_log_probs(case: Case[MergeCalls]) -> str | None:
    """A shifted or rounded log-prob makes the importance ratio wrong. A row may be without log-probs."""
    contexts = Contexts.of(case.request.calls)
    context_too = isinstance(case.answer, Accepted) and Policy.CONTEXT_LOGPROBS in case.answer.policies
    used: dict[int, list[float | None]] = {}
    for number, row in rows_of(case):
        if row.log_probs is None:
            continue
        places = dict(contexts.walk(row))
        for position, value in enumerate(row.log_probs):
            samplings = contexts.samplings.get(places.get(position) or -1, ())
            recorded = [rounded(one.log_prob) for one in samplings]
            found = rounded(value)
            where = f"row {number} position {position}: log-prob {value}"
            if row.mask[position]:
                if samplings and found not in recorded:
                    return f"{where}, recorded {' or '.join(map(str, recorded))}"
                used.setdefault(places.get(position) or -1, []).append(found)
            elif value and not (context_too and found in recorded):
                return f"{where}, though it is not trained"
    for place, values in used.items():
        recorded_here = [rounded(one.log_prob) for one in contexts.samplings.get(place, ())]
        repeated = Counter(values) - Counter(recorded_here)
        if repeated and len(values) <= len(recorded_here):
            return f"two samplings of one token: log-prob {next(iter(repeated))} is used for both"
    return None


def rounded(value: float | None) -> float | None:
    """Return a log-prob as float32, None for none."""
    return None if value is None else to_float32(value)


@invariant(
    "MERGE-5",
    Area.MERGE,
    "14",
    "The columns of a row are as long as its ids, its mask is 0 or 1, and padding trains nothing.",
    (MergeCalls,),
    of_values=True,
)
def row_shape(case: Case[MergeCalls]) -> str | None:
    """The pad id may be in use: only ``attention`` says what is padding."""
    if not isinstance(case.answer, Accepted):
        return None
    for number, row in enumerate(case.answer.value.rows):
        if not rectangular(row):
            lengths = {"mask": row.mask, "log_probs": row.log_probs, "attention": row.attention}
            found = ", ".join(f"{len(column)} of {name}" for name, column in lengths.items() if column is not None)
            return f"row {number} has {len(row.ids)} ids, {found}"
        for name, column in (("mask", row.mask), ("attention", row.attention or ())):
            odd = next((position for position, value in enumerate(column) if value not in (0, 1)), None)
            if odd is not None:
                return f"row {number} {name}[{odd}]: got {column[odd]}, expected 0 or 1"
        mask = unshifted(row, case.answer.policies).mask
        for position, (one, real) in enumerate(zip(mask, row.attention or mask, strict=True)):
            if one and not real:
                return f"row {number} trains position {position}, which is padding"
    return None


@invariant(
    "MERGE-6",
    Area.MERGE,
    "14",
    "Merging changes none of its arguments, and merging again gives the same.",
    (MergeTwice,),
    of_values=True,
)
def pure(case: Case[MergeTwice]) -> str | None:
    """A prompt list that grows in place is another prompt in the next rollout of its group."""
    if not isinstance(case.answer, Accepted):
        return None
    twice: MergedTwice = case.answer.value
    if twice.changed is not None:
        return f"it changed {twice.changed}"
    return difference(twice.first, twice.second, "the second time")


@invariant("MERGE-7", Area.MERGE, "14", "No session makes it raise anything but a refusal.", (MergeCalls, MergeTwice))
def total(case: Case[Request]) -> str | None:
    """Engines answer with nothing when a request is aborted, and with a lone stop token."""
    return f"it {describe(case.answer)}" if isinstance(case.answer, Crashed) else None


@invariant(
    "MERGE-8",
    Area.MERGE,
    "14",
    "Where labels are shifted by one, the last position of a row has none.",
    (MergeCalls,),
    of_values=True,
)
def shifted_labels(case: Case[MergeCalls]) -> str | None:
    """A shift that wraps around gives it the first token's. All other invariants hold of the tokens shifted back."""
    if not isinstance(case.answer, Accepted) or Policy.SHIFTS_LABELS not in case.answer.policies:
        return None
    for number, row in enumerate(case.answer.value.rows):
        if rectangular(row) and row.ids and (row.mask[-1] or (row.log_probs is not None and row.log_probs[-1])):
            return f"row {number}: the last position, {len(row.ids) - 1}, has a label"
    return None


@invariant(
    "MERGE-9",
    Area.MERGE,
    "14",
    "A session in which each call extends the one before becomes one row.",
    (MergeCalls,),
    of_values=True,
    advisory=True,
)
def one_row(case: Case[MergeCalls]) -> str | None:
    """Several rows are right too, but the prompt is computed once for each."""
    calls = case.request.calls
    if not isinstance(case.answer, Accepted) or not all(map(extends, calls[1:], calls)):
        return None
    training = [row for row in case.answer.value.rows if any(row.mask)]
    return f"{len(training)} rows" if len(training) > 1 else None
