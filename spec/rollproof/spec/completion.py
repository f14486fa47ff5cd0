"""Check that every interrupted generation was completed, on the rows that train (section 7).

A log that says "prefix 3, tail 4, total 7" proves nothing by its total, which was written as prefix plus tail. So the
counts are compared with what the trained row generated in that very call, and the tokens with those that the cut had:
counts alone miss one token dropped and one repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rollproof.spec.cut_records import Completion, Cut, TrainedRow, Violation
from rollproof.spec.rejections import Code


def check_completion(
    cuts: Sequence[Cut],
    completions: Sequence[Completion],
    rows: Sequence[TrainedRow],
    live_keys: Collection[str],
    successor_keys: Collection[str],
) -> tuple[Violation, ...]:
    """Return all violations: cut by cut, in the order of the rules, and at last what completed without a cut.

    ``rows`` are the trained rows; a rejected rollout has none. ``live_keys`` is what staging still holds,
    ``successor_keys`` what it may hold: the rows that took the place of prefix rows.
    """
    violations: list[Violation] = []
    for cut in cuts:
        named = [entry for entry in completions if entry.source_call_id == cut.source_call_id]
        if len(named) != 1:
            violations.append(Violation(Code.COMPLETION_COUNT, cut.source_call_id))
        for entry in named:
            generated = trained_generation(rows, cut.rollout_id, entry.new_call_id)
            if generated is not None:
                violations += [Violation(code, cut.source_call_id) for code in faults(cut, entry, generated)]
        retired = (key for key in cut.prefix_keys if key not in successor_keys)
        violations += [Violation(Code.RETIRED_KEY_LIVE, key) for key in retired if key in live_keys]
    known = {cut.source_call_id for cut in cuts}
    strangers = dict.fromkeys(entry.source_call_id for entry in completions if entry.source_call_id not in known)
    return (*violations, *(Violation(Code.COMPLETION_COUNT, source) for source in strangers))


def trained_generation(rows: Sequence[TrainedRow], rollout_id: str, call_id: str) -> tuple[int, ...] | None:
    """Return what the trained row of a rollout says that one call generated.

    None where nothing of the call is trained: its rollout was rejected, or it is a dead branch. Such a cut needs only
    to complete once.
    """
    for row in rows:
        position = 0
        for link in row.link_spans:
            end = position + link.carry_len + link.generation_len
            if row.rollout_id == rollout_id and link.model_call_id == call_id:
                return row.token_ids[position + link.carry_len : end]
            position = end
    return None


def faults(cut: Cut, completion: Completion, generated: Sequence[int]) -> Iterator[Code]:
    """Yield what is wrong with a completion, given what the trained row generated in the new call's own span."""
    if completion.tail_len < 1 and not cut.terminal:
        yield Code.EMPTY_TAIL
    restored = len(cut.prefix_token_ids)
    if completion.prefix_len != restored or restored + completion.tail_len != len(generated):
        yield Code.TOKEN_COUNT
    if tuple(generated[:restored]) != cut.prefix_token_ids:
        yield Code.PREFIX_TOKENS
