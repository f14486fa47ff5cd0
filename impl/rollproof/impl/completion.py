"""Check that every interrupted generation was completed, on the rows that train (section 7).

One pass over cuts, completions and rows, whatever their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from rollproof.spec.cut_records import Completion, Cut, TrainedRow, Violation
from rollproof.spec.rejections import Code


def check_completion(
    cuts: Sequence[Cut],
    completions: Sequence[Completion],
    rows: Sequence[TrainedRow],
    live_keys: Collection[str],
    successor_keys: Collection[str],
) -> list[Violation]:
    """Return all violations, cut by cut; at last the completions of what was never cut.

    ``rows`` are the trained rows, ``live_keys`` what staging holds, ``successor_keys`` what it may still hold. A new
    call that no row of its rollout names, rejected or outside the chain, is only counted.
    """
    by_source: dict[str, list[Completion]] = defaultdict(list)
    for completion in completions:
        by_source[completion.source_call_id].append(completion)
    generated = _generated(rows)
    lingering = set(live_keys) - set(successor_keys)
    violations = []
    for cut in cuts:
        entries = by_source.get(cut.source_call_id, [])
        codes = [Code.COMPLETION_COUNT] if len(entries) != 1 else []
        for entry in entries:
            tokens = generated.get((cut.rollout_id, entry.new_call_id))
            if tokens is not None:
                codes += _faults(cut, entry, tokens)
        violations += [Violation(code, cut.source_call_id) for code in codes]
        violations += [Violation(Code.RETIRED_KEY_LIVE, key) for key in cut.prefix_keys if key in lingering]
    known = {cut.source_call_id for cut in cuts}
    violations += [Violation(Code.COMPLETION_COUNT, source) for source in by_source if source not in known]
    return violations


def _generated(rows: Sequence[TrainedRow]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Return what every call of every trained row generated, by rollout and call; the first row that names it."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for row in rows:
        end = 0
        for link in row.link_spans:
            start = end + link.carry_len
            end = start + link.generation_len
            found.setdefault((row.rollout_id, link.model_call_id), row.token_ids[start:end])
    return found


def _faults(cut: Cut, completion: Completion, generated: tuple[int, ...]) -> Iterator[Code]:
    prefix = cut.prefix_token_ids
    if not cut.terminal and completion.tail_len < 1:
        yield Code.EMPTY_TAIL
    if completion.prefix_len != len(prefix) or len(generated) != len(prefix) + completion.tail_len:
        yield Code.TOKEN_COUNT
    if generated[: len(prefix)] != prefix:
        yield Code.PREFIX_TOKENS
