"""Requests about generation cuts: histories of calls that are cut, keys, and routes of what was restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from rollproof.properties.strategies.named_tensors import draw_scheme
from rollproof.properties.strategies.rollouts.media import draw_kind
from rollproof.properties.strategies.scalars import (
    CALL_IDS,
    EXTRAS,
    Bytes,
    draw_bytes,
    log_prob,
    rollout_id,
    token_id,
)
from rollproof.properties.strategies.stream import Stream, StreamsOf, listed
from rollproof.properties.strategies.streams.cut_restores import RESTORE_EDITS, odd_restores, restores
from rollproof.properties.strategies.streams.retained import draw_media
from rollproof.spec.chunks import capture_key, cut_key
from rollproof.spec.cut_records import CutKey, CutOrder, RunningCall
from rollproof.spec.digest import chain_digest
from rollproof.spec.judge.cuts import CutStep, ParseCutKey, PlayCuts, RestoredRoutes, Tail
from rollproof.spec.judge.requests import Area
from rollproof.spec.tensor import Tensor

CHECKPOINTS: Final = ("step_100", "0", "cut é", "-1")
CUT_CALL_IDS: Final = tuple(name for name in CALL_IDS if "/" not in name(1))
"""Ways to name a call that can be cut."""
CHARACTERS: Final = ("a", " ", "é", "€", "😀", "\n", "\ud55c")
"""What one generated token may read as: of one to four bytes."""

# ── calls and what is generated ─────────────────────────────────────────────────────────────────────────────────────


def draw_call(decide: Bytes) -> RunningCall:
    """Draw a root, or a child behind some tokens, with a prompt of no tokens or some."""
    capture = capture_key(rollout_id(decide), decide.below(3) if decide.chance(64) else 0)
    call_id = decide.choose(CUT_CALL_IDS)(1)
    before = tuple(token_id(decide) for _ in range(1 + decide.below(3))) if decide.chance(96) else ()
    return RunningCall(
        capture_key=capture,
        model_call_id=call_id,
        parent_call_id="parent" if before else None,
        parent_chain_hash=chain_digest(None, before) if before else None,
        before=before,
        carry_ids=tuple(token_id(decide) for _ in range(decide.below(4))),
        extras=decide.choose(EXTRAS),
    )


def draw_step(decide: Bytes, version: int, last: bool) -> CutStep:
    """Draw what is generated before a cut that succeeds; the last one may be of a call that is complete."""
    count = 1 + decide.below(3)
    order = CutOrder(decide.choose(CHECKPOINTS), 64 + decide.below(64))
    if last and decide.chance(64):
        order = evolve(order, terminal=True, finish_reason=decide.choose(("stop", "length", None)))
    return CutStep(
        token_ids=tuple(token_id(decide) for _ in range(count)),
        log_probs=tuple(log_prob(decide) for _ in range(count)),
        text="".join(decide.choose(CHARACTERS) for _ in range(count)).encode(),
        weight_version=version,
        order=order,
    )


def nothing_new(_: Bytes, step: CutStep) -> CutStep:
    """Cut again before anything else is generated."""
    return evolve(step, token_ids=(), log_probs=(), text=b"")


def half_a_character(decide: Bytes, step: CutStep) -> CutStep:
    """Cut between the bytes of a character."""
    whole = decide.choose(CHARACTERS[2:5]).encode()
    return evolve(step, text=step.text + whole[: 1 + decide.below(len(whole) - 1)])


def broken_text(decide: Bytes, step: CutStep) -> CutStep:
    """End with bytes that are no character, and the beginning of none: that is no reason not to cut."""
    return evolve(step, text=step.text + decide.choose((b"\xff", b"\x80", b"\xe0\x80", b"\xed\xa0", b"\xf5", b"\xc1")))


def columns_of_two_lengths(decide: Bytes, step: CutStep) -> CutStep:
    """Lose a log-prob, or have one too many."""
    more = (*step.log_probs, -0.5)
    return evolve(step, log_probs=step.log_probs[:-1] if decide.chance(128) else more)


def no_limit(decide: Bytes, step: CutStep) -> CutStep:
    """Cut a call of which nobody knows how long it may get."""
    return evolve(step, order=evolve(step.order, effective_output_limit=decide.choose((None, 0))))


def unfinished_reason(decide: Bytes, step: CutStep) -> CutStep:
    """Give a reason to have finished to a call that has not, or one that is none."""
    terminal = decide.chance(128)
    reason = decide.choose(("abort", "")) if terminal else decide.choose(("stop", "length"))
    return evolve(step, order=evolve(step.order, terminal=terminal, finish_reason=reason))


def odd_checkpoint(decide: Bytes, step: CutStep) -> CutStep:
    """Name the checkpoint so that the key has no one reading."""
    return evolve(step, order=evolve(step.order, checkpoint=decide.choose(("a/b", "", "/"))))


def failing_put(_: Bytes, step: CutStep) -> CutStep:
    """Lose the answer to the put."""
    return evolve(step, failing_put=True)


def dead_worker(_: Bytes, step: CutStep) -> CutStep:
    """Let another worker take the call up before."""
    return evolve(step, worker_dies=True)


STEP_EDITS: Final = (
    failing_put,
    dead_worker,
    nothing_new,
    half_a_character,
    broken_text,
    no_limit,
    unfinished_reason,
    odd_checkpoint,
    columns_of_two_lengths,
)


def with_media(decide: Bytes, request: PlayCuts) -> PlayCuts:
    """Give a call images or videos; or none, in a partition that carries media."""
    kind = draw_kind(decide)
    spans, bundle = draw_media(decide, kind)
    scheme = draw_scheme(decide)
    if decide.chance(64):
        return evolve(request, pixel_dtype=kind.pixel_dtype)
    return evolve(request, spans=spans, bundle=bundle, pixel_dtype=kind.pixel_dtype, scheme=scheme)


def draw_history(decide: Bytes) -> PlayCuts:
    """Draw a call that is cut one to four times, each time with success, and then completed or abandoned."""
    count, versions = 1 + decide.below(4), [decide.below(3)]
    for _ in range(count):
        versions.append(versions[-1] + decide.below(2))
    steps = tuple(draw_step(decide, versions[index], index == count - 1) for index in range(count))
    terminal = steps[-1].order.terminal
    length = 0 if terminal and decide.chance(192) else 1 + decide.below(3)
    values = [(token_id(decide), log_prob(decide)) for _ in range(length)]
    ids, log_probs = zip(*values, strict=True) if values else ((), ())
    tail = Tail("final", ids, log_probs, versions[-1])
    request = PlayCuts(draw_call(decide), steps, tail)
    if decide.chance(80):
        request = with_media(decide, request)
    if decide.chance(48):
        return evolve(request, tail=None)
    return evolve(request, tail=evolve(tail, failing_clear=decide.chance(64)))


@st.composite
def histories(draw: DrawFn, edited: bool = False) -> PlayCuts:
    """Draw a history; with ``edited``, one in which up to three cuts are not what they should be."""
    decide = draw_bytes(draw, 160)
    request = draw_history(decide)
    for _ in range(1 + decide.below(3) if edited else 0):
        at = decide.below(len(request.steps))
        edit = decide.choose(STEP_EDITS)
        steps = list(request.steps)
        steps[at] = edit(decide, steps[at])
        request = evolve(request, steps=tuple(steps))
    return request


@st.composite
def interrupted(draw: DrawFn) -> PlayCuts:
    """Draw histories in which puts fail and workers die, and nothing else is odd."""
    decide = draw_bytes(draw, 160)
    request = draw_history(decide)
    steps = []
    for step in request.steps:
        step = evolve(step, failing_put=decide.chance(80), worker_dies=decide.chance(80))
        steps.append(nothing_new(decide, step) if decide.chance(40) else step)
    return evolve(request, steps=tuple(steps))


def odd_histories() -> Iterator[PlayCuts]:
    """Yield every edit of the first cut and of the second one, each with a few choices."""
    for seed in range(6):
        decide = Bytes(bytes([1, seed]))
        plain = draw_history(decide)
        for edit in STEP_EDITS:
            for at in range(len(plain.steps)):
                steps = list(plain.steps)
                steps[at] = edit(Bytes(bytes([seed * 43])), steps[at])
                yield evolve(plain, steps=tuple(steps))
        first, second = evolve(plain.steps[0], log_probs=(*plain.steps[0].log_probs, -0.5)), plain.steps[-1]
        yield evolve(plain, steps=(first, evolve(second, log_probs=second.log_probs[:-1])))
    call = draw_call(Bytes(b""))
    yield PlayCuts(call, (), Tail("c", (1,), (-0.5,), 0))
    yield PlayCuts(call, (), Tail("c", (), (), 0))
    yield PlayCuts(call, ())


# ── keys and routes ─────────────────────────────────────────────────────────────────────────────────────────────────

ODD_KEYS: Final[tuple[Any, ...]] = (
    None, 0, [], "", "/", "////", "__generation_cut__", "__generation_cut__////0", "__generation_cut__/k/r/c",
    "__generation_cut__/k/r/c/", "__generation_cut__/k/r/c/00", "__generation_cut__/k/r/c/01",
    "__generation_cut__/k/r/c/-1", "__generation_cut__/k/r/c/+1", "__generation_cut__/k/r/c/1_0",
    "__generation_cut__/k/r/c/1 ", "__generation_cut__/k/r/c/1\n", "__generation_cut__/k/r/c/\u0661",
    "__generation_cut__/k/r/c/\u00b2", "__generation_cut__/k/r/c/0x1", "__generation_cut__/k/r/c/1.0",
    "__generation_cut__/k/r/c/d/0", "__generation_cut__//r/c/0", "__generation_cut__/k//c/0",
    "__generation_cut__/k/r//0", "__generation_cut__/k/__generation_cut__/c/0", "_generation_cut_/k/r/c/0",
    "__GENERATION_CUT__/k/r/c/0", " __generation_cut__/k/r/c/0", "r/c", "\ud800",
    "__generation_cut__/k/r/c/0/", "/__generation_cut__/k/r/c/0", "__generation_cut__/k/r-a1/c",
    "__generation_cut__/0/g7_g0/0", "__generation_cut__/k/r/\u00e9", "__generation_cut__/step_1/r/c 1",
)  # fmt: skip
"""Keys that are none of a chunk."""

GOOD_KEYS: Final = (
    "__generation_cut__/k/r/c/0",
    "__generation_cut__/k/r/c/10",
    "__generation_cut__/k/r-a1/c/9",
    "__generation_cut__/__generation_cut__/r/__generation_cut__/18446744073709551616",
    "__generation_cut__/ /\u0661/\n/7",
)
"""Keys that look odd and are a chunk's."""


@st.composite
def keys(draw: DrawFn) -> ParseCutKey:
    """Draw keys of chunks, now and then with a part more, less or other."""
    decide = draw_bytes(draw, 64)
    call = draw_call(decide)
    sequence = decide.next() * decide.choose((1, 1, 10**6, 10**20))
    key = cut_key(CutKey(decide.choose(CHECKPOINTS), call.capture_key, call.model_call_id, sequence))
    if decide.chance(128):
        parts = key.split("/")
        at = decide.below(len(parts))
        parts[at : at + 1] = decide.choose(([], [""], [parts[at], "x"], [f"0{parts[at]}"], [parts[at].upper()]))
        key = "/".join(parts)
    return ParseCutKey(key)


@st.composite
def routes(draw: DrawFn) -> RestoredRoutes:
    """Draw routes of a restored call: prefills that observed all of the prefix, pieces of it, or anything."""
    decide = draw_bytes(draw)
    tokens, shape = 4 + decide.below(4), (1 + decide.below(2), 1 + decide.below(2))
    start, end = decide.below(2), tokens - decide.below(2)
    ids = [decide.below(8) for _ in range(tokens * shape[0] * shape[1])]
    prefills: list[tuple[int, int]] = []
    kind = decide.below(4)
    if kind == 1:
        between = start + 1 + decide.below(end - start - 1)
        prefills = [(decide.below(start + 1), between), (between - decide.below(between - start), tokens)]
    elif kind == 2:
        prefills = [(start - decide.below(start + 1), end + decide.below(tokens + 1 - end))]
    elif kind == 3:
        start = decide.below(tokens + 1)
        end = start + decide.below(tokens + 1 - start)
    for _ in range(decide.below(3) if kind in (0, 3) else 0):
        first = decide.below(tokens + 1)
        prefills.append((first, first + decide.below(tokens + 1 - first)))
    return RestoredRoutes(Tensor.of("int16", ids, (tokens, *shape)), start, end, tuple(prefills))


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def streams(area: Area) -> Iterator[Stream]:
    """Yield the streams of the area cuts."""
    if area is not Area.CUTS:
        return
    stream = StreamsOf(area)
    yield listed("each odd key", area, map(ParseCutKey, (*GOOD_KEYS, *ODD_KEYS)))
    yield stream("keys", keys())
    yield stream("histories", histories())
    yield stream("edited histories", histories(edited=True), 2.0)
    yield stream("interrupted histories", interrupted(), 2.0)
    yield listed("each odd history", area, odd_histories())
    yield stream("restored routes", routes())
    yield stream("cut restores", restores(), 2.0)
    yield listed("each odd cut restore", area, odd_restores())
    for code in RESTORE_EDITS:
        yield stream(f"break:cut restore:{code.code}", restores(code), 1.0, (code.code,))
