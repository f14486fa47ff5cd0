"""Sessions: the calls of one rollout as any framework has them, each in a way that frameworks meet.

All log-probs of a session are distinct and exact in float32, and none is exact in a narrower type, so that any shift,
copy or rounding shows. Few token ids are in use, so that contexts meet by accident too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import define, evolve, field

from rollproof.properties.strategies.scalars import Bytes
from rollproof.spec.judge.portable import MergeCalls
from rollproof.spec.portable import Call

Ids: TypeAlias = tuple[int, ...]
Change: TypeAlias = Callable[[Sequence[float]], Sequence[float] | None]
"""From a call's log-probs to others."""

PAD: Final = 2
EOS: Final = 9
"""The ids of listed sessions. Both are also generated."""


@define
class Session:
    """Calls that are added one after the other."""

    calls: list[Call] = field(factory=list)
    count: int = 0
    """Log-probs given away."""

    def ask(self, prompt: Sequence[int], generated: Sequence[int], finish: str = "stop") -> Session:
        """Add a call with a log-prob of its own for each generated token."""
        log_probs = tuple(self.log_prob() for _ in generated)
        self.calls.append(Call(tuple(prompt), tuple(generated), log_probs, finish))
        return self

    def log_prob(self) -> float:
        """Return the next log-prob: 14 significant bits, more than float16 or bfloat16 holds."""
        self.count += 1
        return -(2**13 + 2 * self.count + 1) / 2**13

    def then(self, observed: Sequence[int], generated: Sequence[int], finish: str = "stop") -> Session:
        """Add a call whose prompt is the last context with more tokens after it."""
        return self.ask(self.calls[-1].context + tuple(observed), generated, finish)

    def request(self, *, max_len: int | None = None, pad_id: int = PAD, reward: float = 1.0) -> MergeCalls:
        """Return the request to merge the calls."""
        return MergeCalls(tuple(self.calls), reward, max_len, pad_id, (EOS,))


def start(prompt: Sequence[int], generated: Sequence[int], finish: str = "stop") -> Session:
    """Return a session of one call."""
    return Session().ask(prompt, generated, finish)


def with_log_probs(request: MergeCalls, index: int, change: Change) -> MergeCalls:
    """Return a request with other log-probs in one call."""
    call = request.calls[index]
    found = change(call.log_probs or ())
    changed = evolve(call, log_probs=None if found is None else tuple(found))
    return evolve(request, calls=(*request.calls[:index], changed, *request.calls[index + 1 :]))


def listed_sessions() -> dict[str, list[MergeCalls]]:
    """Return sessions by what is special about them; every check asks all."""
    two = start([3, 4], [5, 9]).then([6], [7, 9])
    three = start([3, 4], [5, 6], "length").then([], [7, 9]).then([8, 3], [4, 9])
    forked = start([3], [4]).ask([3, 4, 5], [6]).ask([3, 4, 7], [6])
    deep = start([3, 4], [5]).then([6], [7]).ask([3, 4, 5, 8], [7]).ask([3, 4, 5, 8, 7, 1], [2])
    limits = [two.request(max_len=limit) for limit in range(1, 9)]
    return {
        "one call": [start([3, 4], [5, 6, 9]).request(), start([3], [4]).request()],
        "extend": [two.request(), three.request()],
        "continue": [start([3, 4], [5, 6], "length").then([], [7, 9]).request()],
        "fork": [forked.request(), deep.request()],
        "again": [
            start([3, 4], [5, 6]).ask([3, 4], [7, 8]).request(),
            start([3, 4], [5, 6]).ask([3, 4], [5, 6]).request(),
            start([3, 4], [5, 6]).ask([3, 4], [5, 6]).then([8], [1]).request(),
            start([3, 4], [5]).ask([3, 4], [5, 6]).request(),
        ],
        "restart": [start([3, 4], [5, 6]).ask([7, 8], [1, 9]).request()],
        "drift": [
            start([3, 4], [5, 6, 9]).ask([3, 4, 5, 7, 9, 8], [1, 9]).request(),
            start([3, 4, 1], [5, 6]).ask([3, 8, 1, 5, 6, 7], [1, 9]).request(),
            start([3, 4], [5, 6, 7]).ask([3, 4, 56, 7, 8], [1, 9]).request(),
        ],
        "strip": [
            start([3, 4], [5, 5, 6, 9]).ask([3, 4, 6, 9, 8], [7, 9]).request(),
            start([3, 4], [5, 6, 9]).then([8], [7, 9]).ask([3, 4, 8, 7, 9, 1], [6, 9]).request(),
        ],
        "lost stop": [
            start([3, 4], [5, 6, 9]).ask([3, 4, 5, 6, 8], [7, 9]).request(),
            start([3, 4], [5, 6, 9]).ask([3, 4, 5, 6], [7, 9]).request(),
        ],
        "compacted": [start([3, 4], [5]).then([6], [7]).ask([3, 7, 1], [8, 9]).request()],
        "empty generation": [
            start([3, 4], []).request(),
            start([3, 4], []).then([5], [6]).request(),
            start([3, 4], [5]).then([6], []).then([], [7]).request(),
            start([3, 4], [5]).then([6], []).request(pad_id=3),
        ],
        "no prompt": [start([], [3, 4]).request(), start([], [3]).request(), start([], []).request()],
        "no calls": [Session().request()],
        "stop tokens": [
            start([3, 4], stop).then([6], [7, *stop]).request() for stop in ([EOS], [PAD], [EOS, PAD], [PAD, EOS])
        ],
        "pad id in use": [
            start([PAD, 3], [PAD, PAD, 4]).then([PAD], [PAD, 9]).request(),
            start([3, 4], [5, 6]).then([7], [8]).request(pad_id=5),
            start([3, 4], [5, 6]).ask([7], [8, 9]).request(pad_id=7),
        ],
        "limits": [*limits, forked.request(max_len=3), deep.request(max_len=4), deep.request(max_len=5)],
        "large ids": [start([2**31, 2**17], [2**40, 2**16]).then([300], [2**15]).request()],
        "log-probs missing": [
            with_log_probs(two.request(), 0, lambda _: None),
            with_log_probs(with_log_probs(two.request(), 0, lambda _: None), 1, lambda _: None),
            *(with_log_probs(three.request(), at, lambda _: None) for at in range(3)),
            with_log_probs(forked.request(), 0, lambda _: None),
        ],
        "log-probs short": [with_log_probs(two.request(), at, lambda found: found[:-1]) for at in (0, 1)],
        "log-probs surplus": [with_log_probs(two.request(), at, lambda found: (*found, -2.25)) for at in (0, 1)],
    }


# ── drawn ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def drawn_session(decide: Bytes, most: int) -> Session:
    """Return a session of up to ``most`` calls, each related to the ones before it in some way."""
    tokens = (3, 4, 5, EOS, PAD, 6, 7, 8, 300, 2**17)[: 3 + decide.below(8)]

    def some(low: int, high: int) -> Ids:
        return tuple(decide.choose(tokens) for _ in range(low + decide.below(high - low + 1)))

    def generation() -> Ids:
        return () if decide.chance(24) else some(1, 4)

    session = start(() if decide.chance(12) else some(1, 4), generation())
    for _ in range(decide.below(most)):
        last = session.calls[-1]
        kind = decide.below(10)
        if kind < 4:
            prompt = last.context + some(1, 3)
        elif kind == 4:
            prompt = last.context
        elif kind == 5:
            prompt = decide.choose(session.calls).context + some(1, 2)
        elif kind == 6:
            prompt = decide.choose(session.calls).prompt_ids
        elif kind == 7:
            prompt = some(1, 4)
        elif kind == 8:
            prompt = drifted(last.context, decide, some(1, 1)) + some(0, 2)
        else:
            kept = decide.below(len(last.generated_ids) + 1)
            prompt = last.prompt_ids + last.generated_ids[kept:] + some(0, 2)
        if decide.chance(16):
            session.ask(prompt, decide.choose(session.calls).generated_ids)
        else:
            session.ask(prompt, generation(), "length" if decide.chance(64) else "stop")
    return session


def drifted(context: Ids, decide: Bytes, token: Ids) -> Ids:
    """Return a context with one token replaced or left out."""
    if not context:
        return context
    at = decide.below(len(context))
    return context[:at] + (token if decide.chance(128) else ()) + context[at + 1 :]


def drawn_request(decide: Bytes, most: int) -> MergeCalls:
    """Return a request about a drawn session, some with a limit within it, or with log-probs that do not fit."""
    session = drawn_session(decide, most)
    longest = max(len(call.context) for call in session.calls)
    ids = sorted({token for call in session.calls for token in call.context}) or [PAD]
    limit = 1 + decide.below(longest + 1) if decide.chance(64) else None
    reward = decide.choose((1.0, 0.0, -1.0, 0.5))
    request = session.request(max_len=limit, pad_id=decide.choose((PAD, 0, *ids)), reward=reward)
    if decide.chance(32):
        index = decide.below(len(request.calls))
        changes: tuple[Change, ...] = (
            lambda _: None,
            lambda found: found[:-1],
            lambda found: (*found, -2.25),
        )
        request = with_log_probs(request, index, decide.choose(changes))
    return request
