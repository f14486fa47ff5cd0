"""Invariants of generation cuts (section 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from attrs import evolve, frozen

from rollproof.spec.constants import ROUTE_SENTINEL
from rollproof.spec.cut_records import DurablePrefix
from rollproof.spec.judge.area import Area
from rollproof.spec.judge.cuts import (
    CutHistory,
    CutStep,
    ParseCutKey,
    PlayCuts,
    RestoreCut,
    RestoredCut,
    RestoredRoutes,
)
from rollproof.spec.judge.invariant import (
    Case,
    Invariant,
    Rule,
    describe,
    difference,
    invariant,
    same_value,
    same_value_or_code,
)
from rollproof.spec.judge.requests import Accepted, Crashed, Refused
from rollproof.spec.plane import Clear, Effect, Put
from rollproof.spec.staged import Row
from rollproof.spec.tensor import Tensor

Tokens: TypeAlias = tuple[tuple[int, float], ...]
"""Generated tokens, each with its log-probability."""


def cut_rule(id: str, sentence: str, *requests: type) -> Callable[[Rule], Invariant]:
    """Declare a check as an invariant of generation cuts."""
    return invariant(id, Area.CUTS, "11", sentence, requests)


def generated(row: Row) -> Tokens:
    """Return what a staged row generated."""
    names = ("token_ids_delta", "generation_logprobs_delta", "token_mask_delta")
    columns = (row[name].values() for name in names)
    return tuple((token, value) for token, value, mask in zip(*columns, strict=True) if mask == 1.0)


@frozen
class Moment:
    """One cut of a history as an implementation made it, read off the request and its writes alone."""

    step: CutStep
    answer: DurablePrefix | None
    writes: tuple[Effect, ...]
    wanted: Tokens
    """Everything that this generation of the call has generated."""
    durable: Tokens
    """What of it was acknowledged before."""
    staged: Mapping[str, Row]
    """The rows that are staged after the cut."""


def moments(case: Case[PlayCuts]) -> Iterator[Moment]:
    """Yield the cuts of a history; none where there is no answer with as many of them."""
    history = case.answer.value if isinstance(case.answer, Accepted) else None
    if not isinstance(history, CutHistory) or len(history.writes) != len(case.request.steps) + 1:
        return
    staged: dict[str, Row] = {}
    wanted: Tokens = ()
    durable: Tokens = ()
    for step, answer, writes in zip(case.request.steps, history.acknowledgements, history.writes, strict=False):
        new = tuple(zip(step.token_ids, step.log_probs, strict=False))
        wanted = (durable if step.worker_dies else wanted) + new
        for effect in writes:
            apply(effect, staged)
        yield Moment(step, answer, writes, wanted, durable, dict(staged))
        durable = durable if answer is None else wanted


def apply(effect: Effect, staged: dict[str, Row]) -> None:
    """Let a write take effect."""
    if isinstance(effect, Put):
        staged.update({key: row.columns for key, row in zip(effect.sample_ids, effect.rows, strict=True)})
    elif isinstance(effect, Clear):
        for key in effect.keys:
            staged.pop(key, None)


def at_each_cut(check: Callable[[Moment], str | None]) -> Callable[[Case[PlayCuts]], str | None]:
    """Make a check of one cut a check of a whole history."""

    def rule(case: Case[PlayCuts]) -> str | None:
        for index, moment in enumerate(moments(case)):
            if (complaint := check(moment)) is not None:
                return f"cut {index}: {complaint}"
        return None

    rule.__doc__ = check.__doc__
    return rule


# ── keys, and what a cut promises ───────────────────────────────────────────────────────────────────────────────────


@cut_rule("CUTS-1", "A chunk's key is read strictly: five parts, the last of them a decimal number.", ParseCutKey)
def keys_read(case: Case[ParseCutKey]) -> str | None:
    """Two spellings of one place would be two chunks; a key of somebody else's is none."""
    if isinstance(case.contract, Refused):
        return None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected a refusal"
    return same_value(case)


@cut_rule("CUTS-2", "Only chunks that were put, by a put that returned, are acknowledged.", PlayCuts)
@at_each_cut
def promised_after_the_put(moment: Moment) -> str | None:
    """The acknowledgement is a promise: whoever relies on it has nothing else."""
    if moment.answer is None:
        return None
    if moment.step.failing_put and any(isinstance(effect, Put) for effect in moment.writes):
        return "acknowledged although the put failed"
    absent = [key for key in moment.answer.staging_keys if key not in moment.staged]
    return f"acknowledged {absent[0]!r}, which is not staged" if absent else None


@cut_rule("CUTS-3", "Acknowledged chunks, in order, hold every generated token once, with its log-prob.", PlayCuts)
@at_each_cut
def nothing_lost_nothing_twice(moment: Moment) -> str | None:
    """Checked on the staged rows, also after failed puts and after the worker died."""
    if moment.answer is None:
        return None
    rows = [moment.staged[key] for key in moment.answer.staging_keys if key in moment.staged]
    found = tuple(token for row in rows for token in generated(row))
    if moment.answer.prefix_token_count != len(moment.wanted):
        return f"prefix_token_count is {moment.answer.prefix_token_count}, expected {len(moment.wanted)}"
    return difference(moment.wanted, found, "generated tokens of the chunks")


@cut_rule("CUTS-4", "A cut puts what is not durable yet, in one put, and nothing where there is nothing.", PlayCuts)
@at_each_cut
def costs_what_is_new(moment: Moment) -> str | None:
    """Otherwise the last of many cuts costs as much as the call is long."""
    puts = [effect for effect in moment.writes if isinstance(effect, Put)]
    new = len(moment.wanted) - len(moment.durable)
    written = sum(len(generated(row.columns)) for put in puts for row in put.rows)
    if len(puts) > 1 or written > new or (puts and not new):
        return f"{len(puts)} puts with {written} generated tokens, of which {new} are new"
    return None


@cut_rule("CUTS-5", "A put that failed is taken back: its rows are cleared, and no others.", PlayCuts)
@at_each_cut
def taken_back(moment: Moment) -> str | None:
    """They may be there all the same, and nobody would ever look for them."""
    puts = [effect for effect in moment.writes if isinstance(effect, Put)]
    cleared = tuple(key for effect in moment.writes if isinstance(effect, Clear) for key in effect.keys)
    wanted = tuple(key for put in puts for key in put.sample_ids) if moment.step.failing_put else ()
    return None if cleared == wanted else f"cleared {cleared}, expected {wanted}"


@cut_rule("CUTS-6", "A cut is a failure exactly where the call cannot be restored from it.", PlayCuts)
def cut_verdicts(case: Case[PlayCuts]) -> str | None:
    """Nothing generated, columns of different lengths, half a character, no limit, media without a digest."""
    wanted, found = history_of(case.contract), history_of(case.answer)
    if wanted is None or found is None:
        return None
    given, expected = ([one is not None for one in history.acknowledgements] for history in (found, wanted))
    return difference(expected, given, "acknowledged")


@cut_rule("CUTS-7", "The prefix digest is that of all chunks joined, and keys are numbered from 0.", PlayCuts)
def promises_agree(case: Case[PlayCuts]) -> str | None:
    """Another implementation may restore the call."""
    wanted, found = history_of(case.contract), history_of(case.answer)
    if wanted is None or found is None:
        return None
    for index, pair in enumerate(zip(wanted.acknowledgements, found.acknowledgements, strict=False)):
        if None not in pair and (complaint := difference(*pair, f"acknowledgement {index}")) is not None:
            return complaint
    return None


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def history_of(answer: Any) -> CutHistory | None:
    """Return the history in an answer."""
    value = answer.value if isinstance(answer, Accepted) else None
    return value if isinstance(value, CutHistory) else None


def last_writes(case: Case[PlayCuts]) -> tuple[Moment | None, list[Put], list[Clear]]:
    """Return the last cut that there is, and the puts and clears at the end."""
    history = history_of(case.answer)
    cuts = list(moments(case))
    writes = () if history is None else history.writes[-1]
    puts = [effect for effect in writes if isinstance(effect, Put)]
    return cuts[-1] if cuts else None, puts, [effect for effect in writes if isinstance(effect, Clear)]


@cut_rule("CUTS-8", "At the end the call's own chunks are cleared by one clear, after the final row's put.", PlayCuts)
def cleared_once(case: Case[PlayCuts]) -> str | None:
    """Earlier, a crash would lose the call; other keys are other calls'."""
    history = history_of(case.answer)
    if history is None:
        return None
    own = next((answer.staging_keys for answer in reversed(history.acknowledgements) if answer is not None), ())
    writes = history.writes[-1]
    cleared = [effect.keys for effect in writes if isinstance(effect, Clear)]
    if cleared != ([own] if own else []):
        return f"cleared {cleared}, expected {[own] if own else 'nothing'}"
    if case.request.tail is not None and not isinstance(writes[0], Put):
        return "chunks are cleared before the final row is put"
    failing = case.request.tail is not None and case.request.tail.failing_clear and bool(own)
    return difference(int(failing), history.failed_clears, "failed clears")


@cut_rule("CUTS-9", "The final row is the prompt, the prefix and the tail, with the prefix's log-probs.", PlayCuts)
def final_row(case: Case[PlayCuts]) -> str | None:
    """Checked against what the engine generated, whichever workers died in between."""
    last, puts, _ = last_writes(case)
    tail = case.request.tail
    if tail is None or history_of(case.answer) is None:
        return f"{len(puts)} puts of an abandoned call" if tail is None and puts else None
    if len(puts) != 1 or puts[0].sample_ids != (f"{case.request.call.capture_key}/{tail.model_call_id}",):
        return f"puts of {[put.sample_ids for put in puts]}, expected the final row alone"
    row = puts[0].rows[0].columns
    wanted = (last.wanted if last else ()) + tuple(zip(tail.token_ids, tail.log_probs, strict=False))
    carry = case.request.call.carry_ids
    prompt = row["token_ids_delta"].values()[: len(carry)]
    return difference(carry, prompt, "prompt") or difference(wanted, generated(row), "generated tokens")


@cut_rule("CUTS-10", "Pixels are staged once, with the final row; no chunk has any.", PlayCuts)
def pixels_with_the_final_row(case: Case[PlayCuts]) -> str | None:
    """Chunks have a digest in their place."""
    history = history_of(case.answer)
    if history is None or case.request.pixel_dtype is None:
        return None
    for index, writes in enumerate(history.writes):
        for put in (effect for effect in writes if isinstance(effect, Put)):
            for row in put.rows:
                final = index == len(history.writes) - 1
                wanted = final and case.request.bundle is not None
                if row.columns["media_present"].values() != (wanted,):
                    return f"{put.sample_ids[0]!r} {'lacks' if wanted else 'carries'} media"
                if not wanted and row.columns["media_imgs"].count > 1:
                    return f"{put.sample_ids[0]!r} carries pixels without saying so"
    return None


# ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def restored(answer: Any) -> RestoredCut | None:
    """Return what an answer restored."""
    value = answer.value if isinstance(answer, Accepted) else None
    return value if isinstance(value, RestoredCut) else None


@cut_rule("CUTS-11", "A restore accepts exactly the chunks and the media that were acknowledged.", RestoreCut)
def restore_verdicts(case: Case[RestoreCut]) -> str | None:
    """Anything else would train tokens that nobody generated in that order."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Accepted):
        return f"restored, expected {case.contract.reason}"
    if isinstance(case.contract, Accepted) and not isinstance(case.answer, Accepted):
        return f"it {describe(case.answer)}, expected it to be restored"
    return f"it {describe(case.answer)}" if isinstance(case.answer, Crashed) else None


@cut_rule("CUTS-12", "A refused restore names the first violated rule.", RestoreCut)
def restore_order(case: Case[RestoreCut]) -> str | None:
    """A chunk that is missing says something else about a run than one that was overwritten."""
    if isinstance(case.contract, Refused) and isinstance(case.answer, Refused):
        return same_value_or_code(case)
    return None


@cut_rule(
    "CUTS-13", "What is restored is the chunks' own tokens, masks and log-probs, in the order of keys.", RestoreCut
)
def restored_tokens(case: Case[RestoreCut]) -> str | None:
    """Checked on the staged rows."""
    found, rows = restored(case.answer), case.request.staging.rows
    keys = case.request.acknowledged.staging_keys
    if found is None or not all(key in rows for key in keys):
        return None
    for name, column in (
        ("token_ids", "token_ids_delta"),
        ("token_mask", "token_mask_delta"),
        ("log_probs", "generation_logprobs_delta"),
    ):
        wanted = tuple(value for key in keys for value in rows[key][column].values())
        if (complaint := difference(wanted, getattr(found, name), name)) is not None:
            return complaint
    return None


@cut_rule("CUTS-14", "The tokens left are the limit without the prefix; the weight version is the oldest.", RestoreCut)
def what_is_left(case: Case[RestoreCut]) -> str | None:
    """With a newer one, tokens would count as of weights that never saw them."""
    found, request = restored(case.answer), case.request
    if found is None:
        return None
    rows = [request.staging.rows[key] for key in request.acknowledged.staging_keys if key in request.staging.rows]
    oldest = min((row["weight_version"].values()[0] for row in rows), default=0)
    left = request.acknowledged.effective_output_limit - found.token_mask.count(1.0)
    return difference(left, found.tokens_left, "tokens_left") or difference(
        oldest, found.weight_version, "weight_version"
    )


@cut_rule("CUTS-15", "A restored call goes on with the fresh tensors themselves, where the cut saw media.", RestoreCut)
def restored_media(case: Case[RestoreCut]) -> str | None:
    """Nothing of theirs was staged with the chunks."""
    wanted, found = restored(case.contract), restored(case.answer)
    if wanted is None or found is None:
        return None
    return difference(wanted.with_media, found.with_media, "with_media") or difference(
        wanted.fresh, found.fresh, "fresh"
    )


@cut_rule("CUTS-16", "A restored prefix has no routes unless one prefill observed all of it.", RestoredRoutes)
def routes_of_one_prefill(case: Case[RestoredRoutes]) -> str | None:
    """Routes from several contexts are no model's; every other token keeps its own."""
    request, found = case.request, case.answer.value if isinstance(case.answer, Accepted) else None
    if not isinstance(found, Tensor):
        return f"it {describe(case.answer)}" if isinstance(case.contract, Accepted) else None
    if (found.dtype, found.shape) != (request.routes.dtype, request.routes.shape):
        return f"{found.dtype}{list(found.shape)}"
    observed = any(first <= request.start and request.end <= last for first, last in request.prefills)
    each = request.routes.count // max(1, request.routes.shape[0])
    for position in range(request.routes.shape[0]):
        own = slice(position * each, (position + 1) * each)
        masked = request.start <= position < request.end and not observed
        wanted = (ROUTE_SENTINEL,) * each if masked else request.routes.values()[own]
        if (complaint := difference(wanted, found.values()[own], f"token {position}")) is not None:
            return complaint
    return None


@cut_rule(
    "CUTS-17", "The rows of a history, from the first chunk to the final row, are exactly the contract's.", PlayCuts
)
def histories_agree(case: Case[PlayCuts]) -> str | None:
    """Everything that no narrower invariant covers: hashes, extras, media columns, weight versions."""
    if isinstance(case.contract, Refused):
        return None if isinstance(case.answer, Refused) else f"it {describe(case.answer)}, expected a refusal"
    wanted, found = history_of(case.contract), history_of(case.answer)
    if wanted is None or found is None:
        return f"it {describe(case.answer)}, expected a history"
    return difference(untagged(wanted), untagged(found))


def untagged(history: CutHistory) -> CutHistory:
    """Return a history without tags: they repeat columns, for tools that list a partition."""
    return evolve(
        history,
        writes=tuple(
            tuple(
                evolve(effect, rows=tuple(evolve(row, tags={}) for row in effect.rows))
                if isinstance(effect, Put)
                else effect
                for effect in writes
            )
            for writes in history.writes
        ),
    )
