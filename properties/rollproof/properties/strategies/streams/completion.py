"""Logs of generations that were cut and completed, with the rows that were trained from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollproof.properties.strategies.scalars import Bytes, draw_bytes
from rollproof.spec.cut_records import Completion, Cut, TrainedRow
from rollproof.spec.judge.requests import CheckCompletion
from rollproof.spec.records import LinkSpan
from rollproof.spec.rejections import Code


def draw_row(decide: Bytes, rollout_id: str) -> TrainedRow:
    """Draw a row of one to three calls, the first with two or more generated tokens. Ids are few, to repeat."""
    links = tuple(
        LinkSpan(f"{rollout_id}-c{index}", decide.below(3), 1 + (index == 0) + decide.below(4))
        for index in range(1 + decide.below(3))
    )
    count = sum(link.carry_len + link.generation_len for link in links)
    return TrainedRow(rollout_id, links, tuple(decide.below(4) for _ in range(count)))


def generated(row: TrainedRow, at: int) -> tuple[int, ...]:
    """Return the tokens that one call of a row generated."""
    before = sum(link.carry_len + link.generation_len for link in row.link_spans[:at]) + row.link_spans[at].carry_len
    return row.token_ids[before : before + row.link_spans[at].generation_len]


def completed(decide: Bytes, row: TrainedRow, at: int, number: int) -> tuple[Cut, Completion]:
    """Draw a cut before the end of a call, or at it if the call was complete then, and its completion."""
    tokens = generated(row, at)
    terminal = decide.chance(48)
    length = len(tokens) if terminal and decide.chance(192) else decide.below(len(tokens))
    source = f"cut-{number}"
    keys = tuple(f"{row.rollout_id}/{source}/{chunk}" for chunk in range(decide.below(3)))
    entry = Completion(source, row.link_spans[at].model_call_id, length, len(tokens) - length)
    return Cut(source, row.rollout_id, tokens[:length], keys, terminal), entry


def draw_log(decide: Bytes) -> CheckCompletion:
    """Draw trained rows with some calls cut, rejected rollouts and dead branches; everything completed."""
    rows: list[TrainedRow] = []
    cuts: list[Cut] = []
    entries: list[Completion] = []
    for index in range(1 + decide.below(3)):
        row = draw_row(decide, f"g{index}")
        rows.append(row)
        for at in range(len(row.link_spans)):
            if at == 0 or decide.chance(96):
                cut, entry = completed(decide, row, at, len(cuts))
                cuts.append(cut)
                entries.append(entry)
    if decide.chance(64):
        # A rejected rollout, or a dead branch of an accepted one: nothing of it can be compared.
        rollout_id = decide.choose(("lost", rows[0].rollout_id))
        cuts.append(Cut(f"cut-{len(cuts)}", rollout_id, (9, 9), ()))
        entries.append(Completion(cuts[-1].source_call_id, "nowhere", 7, 0))
    successors = tuple(key for cut in cuts for key in cut.prefix_keys if decide.chance(64))
    live = (*successors, *(("other/key",) if decide.chance(64) else ()))
    if decide.chance(64):
        entries.reverse()
    return CheckCompletion(tuple(cuts), tuple(entries), tuple(rows), live, successors)


LogEdit = Callable[[Bytes, CheckCompletion], CheckCompletion]


def with_entry(log: CheckCompletion, changed: Completion) -> CheckCompletion:
    """Return the log with the completion of one cut exchanged."""
    entries = (changed if entry.source_call_id == changed.source_call_id else entry for entry in log.completions)
    return evolve(log, completions=tuple(entries))


def first(log: CheckCompletion) -> tuple[Cut, Completion]:
    """Return the first cut, which is of a trained call, and its completion."""
    cut = log.cuts[0]
    return cut, next(entry for entry in log.completions if entry.source_call_id == cut.source_call_id)


def miscounted(decide: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Leave a cut incomplete, complete it twice, or complete something that was never cut."""
    _, entry = first(log)
    others = tuple(other for other in log.completions if other is not entry)
    return evolve(
        log,
        completions=decide.choose(
            (others, (*log.completions, entry), (*log.completions, evolve(entry, source_call_id="stranger")))
        ),
    )


def empty_tail(_: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Put the cut after the call's last token, so that nothing was added."""
    cut, entry = first(log)
    row = next(row for row in log.rows if row.rollout_id == cut.rollout_id)
    tokens = generated(row, [link.model_call_id for link in row.link_spans].index(entry.new_call_id))
    whole = evolve(cut, prefix_token_ids=tokens, terminal=False)
    log = evolve(log, cuts=(whole, *log.cuts[1:]))
    return with_entry(log, evolve(entry, prefix_len=len(tokens), tail_len=0))


def other_counts(decide: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Make the log's counts differ from the row's: one token more, one fewer, or one moved from prefix to tail.

    The last of these leaves the log's own sum right.
    """
    _, entry = first(log)
    prefix, tail = entry.prefix_len, entry.tail_len
    counts = decide.choose(
        ((prefix, tail + 1), (prefix + 1, tail), (prefix - 1, tail + 1), (prefix + 1, tail - 1), (prefix, tail + 7))
    )
    if counts[1] < 1:
        counts = prefix, tail + 1
    return with_entry(log, evolve(entry, prefix_len=counts[0], tail_len=counts[1]))


def lost_token(_: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Lose a token of the call from the row and its span: only the log still has the old count."""
    cut, entry = first(log)
    rows = []
    for row in log.rows:
        at = next((at for at, link in enumerate(row.link_spans) if link.model_call_id == entry.new_call_id), None)
        if at is None or row.rollout_id != cut.rollout_id:
            rows.append(row)
            continue
        link = row.link_spans[at]
        end = sum(span.carry_len + span.generation_len for span in row.link_spans[: at + 1])
        links = list(row.link_spans)
        links[at] = evolve(link, generation_len=link.generation_len + 1)
        rows.append(evolve(row, link_spans=tuple(links), token_ids=(*row.token_ids[:end], 5, *row.token_ids[end:])))
    return evolve(log, rows=tuple(rows))


def other_prefix(decide: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Change a token of the cut, or drop one and repeat one, so that the count is right."""
    cut, entry = first(log)
    ids = list(cut.prefix_token_ids)
    if not ids:
        ids = [2**40]
        row = next(row for row in log.rows if row.rollout_id == cut.rollout_id)
        tokens = generated(row, [link.model_call_id for link in row.link_spans].index(entry.new_call_id))
        log = with_entry(log, evolve(entry, prefix_len=1, tail_len=len(tokens) - 1))
    elif len(ids) > 1 and decide.chance(128):
        shifted = [ids[0], *ids[:-1]]
        ids = shifted if shifted != ids else [ids[0] + 1, *ids[1:]]
    else:
        ids[decide.below(len(ids))] += 1
    return evolve(log, cuts=(evolve(cut, prefix_token_ids=tuple(ids)), *log.cuts[1:]))


def live_prefix(decide: Bytes, log: CheckCompletion) -> CheckCompletion:
    """Leave a prefix row staged."""
    cut, _ = first(log)
    keys = cut.prefix_keys or ("g0/cut/0",)
    kept = tuple(key for key in log.successor_keys if key not in keys)
    log = evolve(log, cuts=(evolve(cut, prefix_keys=keys), *log.cuts[1:]), successor_keys=kept)
    return evolve(log, live_keys=(*(key for key in log.live_keys if key not in keys), decide.choose(keys)))


COMPLETION_EDITS: Final[dict[Code, tuple[LogEdit, ...]]] = {
    Code.COMPLETION_COUNT: (miscounted,),
    Code.EMPTY_TAIL: (empty_tail,),
    Code.TOKEN_COUNT: (other_counts, lost_token),
    Code.PREFIX_TOKENS: (other_prefix,),
    Code.RETIRED_KEY_LIVE: (live_prefix,),
}


@st.composite
def _completions(draw: DrawFn, code: Code | None) -> CheckCompletion:
    decide = draw_bytes(draw, 96)
    log = draw_log(decide)
    if code is not None:
        return decide.choose(COMPLETION_EDITS[code])(decide, log)
    if decide.chance(64):
        # Two faults of any kind: all of them are to be reported.
        for _ in range(2):
            edits = [edit for every in COMPLETION_EDITS.values() for edit in every if edit is not miscounted]
            log = decide.choose(edits)(decide, log)
    return log


def completions(code: Code | None = None) -> SearchStrategy[CheckCompletion]:
    """Draw logs, sound or with several faults; with ``code``, one whose first violation is that one."""
    return _completions(code)
