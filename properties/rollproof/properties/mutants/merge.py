"""Mutants of merging calls into rows (section 14)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from attrs import evolve

from rollproof.properties.mutants.mutant import Mutant
from rollproof.spec import merge
from rollproof.spec.portable import Call, Merged, Policy, Row

MERGE: Final = "judge.oracle.merge_calls"
PAD: Final = 2
"""The pad id of listed sessions."""

By = Callable[[Sequence[Call], Any], Merged]


def instead(wrong: By) -> dict[str, Callable[[Any], Any]]:
    """Merge by another function."""
    return {MERGE: lambda _: wrong}


def on_rows(change: Callable[[Row], Row]) -> dict[str, Callable[[Any], Any]]:
    """Change every row of the spec."""

    def replacement(original: By) -> By:
        def wrong(calls: Sequence[Call], max_len: Any = None) -> Merged:
            merged = original(calls, max_len)
            return evolve(merged, rows=tuple(map(change, merged.rows)))

        return wrong

    return {MERGE: replacement}


def on_calls(change: Callable[[Sequence[Call]], Sequence[Call]]) -> dict[str, Callable[[Any], Any]]:
    """Merge other calls than those that are given."""
    return {MERGE: lambda original: lambda calls, max_len=None: original(change(calls), max_len)}


def dropping(reason: str, chosen: Callable[[Sequence[Call], Any], Sequence[int]]) -> dict[str, Callable[[Any], Any]]:
    """Leave out calls, and declare them dropped for a reason."""

    def replacement(original: By) -> By:
        def wrong(calls: Sequence[Call], max_len: Any = None) -> Merged:
            left_out = chosen(calls, max_len)
            kept = [call for index, call in enumerate(calls) if index not in left_out]
            merged = original(kept, max_len)
            return Merged(merged.rows, tuple((index, reason) for index in left_out))

        return wrong

    return {MERGE: replacement}


# ── which tokens are trained ────────────────────────────────────────────────────────────────────────────────────────


def negative_slice(calls: Sequence[Call], max_len: Any = None) -> Merged:
    """Take the generation as the last n ids of the row, also where n is 0."""
    rows = []
    for call in calls:
        check = len(call.generated_ids)
        response = call.context[-check:]
        mask = [1] * check or [PAD] * len(response)
        prompt = call.prompt_ids
        rows.append(Row(prompt + response, (0,) * len(prompt) + tuple(mask)))
    return Merged(tuple(rows))


def every_leaf_trains(calls: Sequence[Call], max_len: Any = None) -> Merged:
    """Train the whole chain in the row of every leaf."""
    parents = [merge.parent_of(index, calls) for index in range(len(calls))]
    leaves = [leaf for leaf in range(len(calls)) if leaf not in parents]
    chains = [merge.chain_to(leaf, parents) for leaf in leaves]
    return Merged(tuple(merge.row_of(calls[chain[-1]], [calls[one] for one in chain], None) for chain in chains))


def last_chain(calls: Sequence[Call]) -> Sequence[Call]:
    """Keep the last call and what it continues."""
    return [call for call in calls if call is calls[-1] or merge.extends(calls[-1], call)]


def spliced(calls: Sequence[Call], max_len: Any = None) -> Merged:
    """Take every prompt for an extension of what is already there, by its length alone."""
    if not calls:
        return Merged(())
    ids, mask, log_probs = list(calls[0].prompt_ids), [0] * len(calls[0].prompt_ids), [0.0] * len(calls[0].prompt_ids)
    for call in calls:
        carry = call.prompt_ids[len(ids) :]
        ids += (*carry, *call.generated_ids)
        mask += [0] * len(carry) + [1] * len(call.generated_ids)
        merge.check_log_probs(call, "call")
        log_probs += [0.0] * len(carry) + list(call.log_probs or [0.0] * len(call.generated_ids))
    return Merged((Row(tuple(ids), tuple(mask), tuple(log_probs)),))


def all_after_prompt(row: Row) -> Row:
    """Train everything after the first trained token."""
    start = row.mask.index(1)
    return evolve(row, mask=row.mask[:start] + (1,) * (len(row.mask) - start))


def by_prompt(calls: Sequence[Call]) -> Sequence[Call]:
    """Keep the last call of each prompt."""
    return list({call.prompt_ids: call for call in calls}.values())


def untrained(row: Row, positions: Sequence[int]) -> Row:
    """Return a row that does not train some positions."""
    kept = [0 if position in positions else one for position, one in enumerate(row.mask)]
    log_probs = [0.0 if position in positions else one for position, one in enumerate(row.log_probs or ())]
    return evolve(row, mask=tuple(kept), log_probs=tuple(log_probs))


def left_truncated(original: By) -> By:
    """Keep the last tokens of a row that is too long."""

    def wrong(calls: Sequence[Call], max_len: Any = None) -> Merged:
        merged = original(calls, None)
        if max_len is None:
            return merged
        tail = -max_len
        rows = [Row(row.ids[tail:], row.mask[tail:], (row.log_probs or ())[tail:]) for row in merged.rows]
        cut = tuple((index, "over-limit") for index, call in enumerate(calls) if len(call.context) > max_len)
        return Merged(tuple(rows), cut)

    return wrong


def attention_by_pad(row: Row) -> Row:
    """Take every pad id for padding, also one that was generated."""
    return evolve(row, attention=tuple(int(token != PAD) for token in row.ids))


def without_empty(original: By) -> By:
    """Look at the first generated token of every call."""

    def wrong(calls: Sequence[Call], max_len: Any = None) -> Merged:
        return original([call for call in calls if call.generated_ids[0] >= 0], max_len)

    return wrong


_KEPT: Final[list[Row]] = []


def once_more(original: By) -> By:
    """Add the last row of the session before."""

    def wrong(calls: Sequence[Call], max_len: Any = None) -> Merged:
        merged = original(calls, max_len)
        before = tuple(_KEPT)
        _KEPT[:] = merged.rows[-1:]
        return evolve(merged, rows=before + merged.rows)

    return wrong


# ── log-probs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def on_log_probs(change: Callable[[Call], Sequence[float] | None]) -> dict[str, Callable[[Any], Any]]:
    """Change the log-probs of calls that have one per token."""

    def changed(call: Call) -> Call:
        if call.log_probs is not None and len(call.log_probs) != len(call.generated_ids):
            return call
        found = change(call)
        return evolve(call, log_probs=None if found is None else tuple(found))

    return on_calls(lambda calls: [changed(call) for call in calls])


def rounded(value: float) -> float:
    """Return a number as bfloat16."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def first_of_equals(calls: Sequence[Call]) -> Sequence[Call]:
    """Give equal samplings the log-probs of the first."""
    first: dict[tuple[object, ...], Call] = {}
    return [first.setdefault((call.prompt_ids, call.generated_ids), call) for call in calls]


def context_shifted(row: Row) -> Row:
    """Fill the context with the log-probs of other positions."""
    values = row.log_probs or ()
    first = next((value for value in values if value), 0.0)
    return evolve(
        row, log_probs=tuple(first if not one else value for value, one in zip(values, row.mask, strict=True))
    )


def shifted(row: Row, *, wrap: bool) -> Row:
    """Return a row with labels shifted by one, the first of which may come out at the end."""
    log_probs = row.log_probs or (0.0,) * len(row.ids)
    end = (row.mask[0], log_probs[0]) if wrap else (0, 0.0)
    return evolve(row, mask=(*row.mask[1:], end[0]), log_probs=(*log_probs[1:], end[1]))


def of_length(row: Row) -> Row:
    """Return a row whose mask covers what follows the first prompt."""
    return evolve(row, mask=row.mask[row.mask.index(1) :])


def per_call(calls: Sequence[Call], max_len: Any = None) -> Merged:
    """Return one row per call."""
    rows = [merge.row_of(call, [call], max_len) for call in calls]
    cut = [index for index, call in enumerate(calls) if max_len is not None and len(call.context) > max_len]
    return Merged(tuple(rows), tuple((index, "over-limit") for index in cut))


RULE: Final = "contract section 14"

MUTANTS: Final = (
    Mutant("spliced-by-length", "MERGE-1", RULE, "Prompts are taken for extensions by their length.", instead(spliced)),
    Mutant("observations-train", "MERGE-1", RULE, "All after the first prompt is trained.", on_rows(all_after_prompt)),
    Mutant("left-truncated", "MERGE-1", RULE, "A row that is too long loses its beginning.", {MERGE: left_truncated}),
    Mutant("shift-unmade", "MERGE-1", RULE, "Labels are declared shifted, and are not.", {MERGE: lambda one: one},
           frozenset({Policy.SHIFTS_LABELS})),
    Mutant("leaves-train-shared", "MERGE-2", RULE, "Both leaves train their trunk.", instead(every_leaf_trains)),
    Mutant("dead-branches-vanish", "MERGE-3", RULE, "Calls off the last chain are left out.", on_calls(last_chain)),
    Mutant("again-overwrites", "MERGE-3", RULE, "A second sampling replaces the first.", on_calls(by_prompt)),
    Mutant("stop-untrained", "MERGE-3", RULE, "The last token of a row is not trained.",
           on_rows(lambda row: untrained(row, [len(row.ids) - 1]))),
    Mutant("pad-untrained", "MERGE-3", RULE, "The pad id is not trained, also where it was generated.",
           on_rows(lambda row: untrained(row, [at for at, token in enumerate(row.ids) if token == PAD]))),
    Mutant("cut-unsaid", "MERGE-3", RULE, "Tokens beyond the limit are left out unsaid.",
           {MERGE: lambda one: lambda calls, max_len=None: evolve(one(calls, max_len), dropped=())}),
    Mutant("drops-the-living", "MERGE-3", RULE, "Calls that the last one continues are dropped as dead branches.",
           dropping(Policy.DEAD_BRANCH, lambda calls, _: range(len(calls) - 1)), frozenset({Policy.DEAD_BRANCH})),
    Mutant("drops-the-steady", "MERGE-3", RULE, "Calls that nothing departs from are dropped as drifted.",
           dropping(Policy.DRIFT, lambda calls, _: range(len(calls) - 1)), frozenset({Policy.DRIFT})),
    Mutant("drops-the-short", "MERGE-3", RULE, "Where one call is over the limit, all are dropped.",
           dropping(Policy.OVER_LIMIT, lambda calls, limit: range(len(calls))
                    if any(limit is not None and len(call.context) > limit for call in calls) else ())),
    Mutant("drops-the-extending", "MERGE-3", RULE, "The last call is dropped as one that does not extend.",
           dropping(Policy.EXTEND_ONLY, lambda calls, _: range(len(calls) - 1, len(calls))),
           frozenset({Policy.EXTEND_ONLY})),
    Mutant("log-probs-shifted", "MERGE-4", RULE, "Every log-prob is that of the token after it.",
           on_log_probs(lambda call: call.log_probs and (*call.log_probs[1:], call.log_probs[0]))),
    Mutant("log-probs-rounded", "MERGE-4", RULE, "Log-probs pass through bfloat16.",
           on_log_probs(lambda call: call.log_probs and [rounded(value) for value in call.log_probs])),
    Mutant("missing-as-zero", "MERGE-4", RULE, "A missing log-prob is trained as 0.",
           on_log_probs(lambda call: (0.0,) * len(call.generated_ids) if call.log_probs is None else call.log_probs)),
    Mutant("equals-share", "MERGE-4", RULE, "Equal samplings share log-probs.", on_calls(first_of_equals)),
    Mutant("context-log-probs-elsewhere", "MERGE-4", RULE, "Log-probs in the context are those of another token.",
           on_rows(context_shifted), frozenset({Policy.CONTEXT_LOGPROBS})),
    Mutant("negative-slice", "MERGE-5", RULE, "The last 0 ids are all ids; the pad id is a weight.",
           instead(negative_slice)),
    Mutant("mask-of-the-rest", "MERGE-5", RULE, "The mask begins after the first prompt.", on_rows(of_length)),
    Mutant("attention-by-pad-id", "MERGE-5", RULE, "Every pad id is padding.", on_rows(attention_by_pad)),
    Mutant("rows-of-before", "MERGE-6", RULE, "A list keeps the row of the rollout before.", {MERGE: once_more}),
    Mutant("empty-generation-raises", "MERGE-7", RULE, "An empty generation raises.", {MERGE: without_empty}),
    Mutant("shift-wraps", "MERGE-8", RULE, "Shifting labels moves the first one to the end.",
           on_rows(lambda row: shifted(row, wrap=True)), frozenset({Policy.SHIFTS_LABELS})),
    Mutant("row-per-call", "MERGE-9", RULE, "Every call is a row of its own.", instead(per_call)),
)  # fmt: skip
